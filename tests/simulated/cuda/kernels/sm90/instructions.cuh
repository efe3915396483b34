// The instructions of sm90, for the compiler of the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hopper.h"
#include "kernels/common/fp8.cuh"
#include "kernels/common/numbers.cuh"

namespace cutlass_py::sm90 {

namespace gpu = simulated::hopper;
using Address = uint32_t;

struct alignas(64) TensorMap {
  uint64_t words[16];
};
inline const gpu::Map& known(const TensorMap& map) { return reinterpret_cast<const gpu::Map&>(map); }

constexpr int kAtom = 1024;
inline Address dynamic_shared_memory() { return kAtom; }

inline void init_barrier(Address at, int arrivals) { gpu::init_barrier(at, arrivals); }
inline void publish_barriers() {}
inline void arrive_expecting(Address at, int bytes) { gpu::arrive(at, simulated::running.rank, bytes); }
inline void arrive(Address at) { gpu::arrive(at, simulated::running.rank); }
inline void arrive(Address at, int rank) { gpu::arrive(at, rank); }
inline void wait(Address at, uint32_t parity) { gpu::wait(at, parity); }
inline void named_barrier(int number, int threads = 128) { gpu::synchronize(number, threads); }

inline void arrive_at_named_barrier(int number, int threads) { gpu::arrive_named(number, threads); }

inline void prefetch(const TensorMap&) {}
inline void load(Address to, const TensorMap& map, Address at, int x, int y, int z, uint16_t blocks) {
  gpu::load(to, known(map), at, {x, y, z}, blocks);
}
inline void load(Address to, const TensorMap& map, Address at, int x, int y, int z) {
  load(to, map, at, x, y, z, uint16_t(1 << simulated::running.rank));
}
inline void store(const TensorMap& map, Address from, int x, int y, int z) { gpu::store(known(map), from, {x, y, z}); }
inline void commit_stores() { gpu::commit_stores(); }
template <int groups>
void wait_for_reads() {
  gpu::wait_for_stores(groups);
}
inline void publish_to_copies() {}

inline void copy(Address to, const float* from) { gpu::copy(to, from, sizeof *from, sizeof *from); }
inline void arrive_when_copied(Address at) { gpu::arrive_when_copied(at); }
inline void copy_granule(Address to, const char* from, int bytes) { gpu::copy(to, from, 16, bytes); }
inline void commit_copies() { gpu::commit_copies(); }
template <int groups>
void wait_for_copies() {
  gpu::wait_for_copies(groups);
}

inline void begin_products() {}
inline void commit_products() { gpu::commit_products(); }
template <int groups>
void wait_for_products() {
  gpu::wait_for_products(groups);
}

template <class T>
void store_shared(Address to, T x) {
  std::memcpy(gpu::shared(to, sizeof x), &x, sizeof x);
}
inline void store_shared(Address to, uint32_t x, uint32_t y) { store_shared(to, x), store_shared(to + 4, y); }
inline void store_shared(Address to, const int (&x)[4]) { std::memcpy(gpu::shared(to, sizeof x), x, sizeof x); }
inline void store_shared(Address to, const float (&x)[4]) { std::memcpy(gpu::shared(to, sizeof x), x, sizeof x); }
inline void load_remote(Address from, int rank, float (&x)[4]) {
  std::memcpy(x, gpu::shared_of(rank, from, sizeof x), sizeof x);
}
template <class T>
T load_shared(Address from) {
  T x;
  std::memcpy(&x, gpu::shared(from, sizeof x), sizeof x);
  return x;
}
inline void load_shared(Address from, int (&x)[4]) { std::memcpy(x, gpu::shared(from, sizeof x), sizeof x); }
inline void load_shared(Address from, float (&x)[4]) { std::memcpy(x, gpu::shared(from, sizeof x), sizeof x); }

// each(number, address) for the 8 numbers of a lane in four matrices, of whose rows each lane has the address of one.
template <bool transposed, class Each>
void matrix_numbers(Address row, Each each) {
  static Address rows[8][simulated::kMostThreads / 32][32];  // of the blocks of a cluster
  const int lane = simulated::running.number % 32;
  auto& of_warp = rows[simulated::running.rank][simulated::running.number / 32];
  of_warp[lane] = row;
  gpu::synchronize_warp();
  for (int i = 0; i < 8; ++i) {
    const int there = lane / 4, pair = lane % 4 * 2 + i % 2;
    each(i, of_warp[i / 2 * 8 + (transposed ? pair : there)] + (transposed ? there : pair) * 2);
  }
  gpu::synchronize_warp();
}
template <bool transposed>
void store_matrices(Address row, const uint32_t (&x)[4]) {
  matrix_numbers<transposed>(row, [&](int i, Address to) { store_shared(to, uint16_t(x[i / 2] >> i % 2 * 16)); });
}
template <bool transposed>
void load_matrices(Address row, uint32_t (&x)[4]) {
  for (uint32_t& word : x) word = 0;
  matrix_numbers<transposed>(
      row, [&](int i, Address from) { x[i / 2] |= uint32_t(load_shared<uint16_t>(from)) << i % 2 * 16; });
}

template <class T>
uint32_t packed(float low, float high) {
  const auto bits = [](float x) {
    if constexpr (std::is_same_v<T, numbers::Bf16>) return uint32_t(__bfloat16_as_ushort(__float2bfloat16_rn(x)));
    return uint32_t(__half_as_ushort(__float2half_rn(x)));
  };
  return bits(low) | bits(high) << 16;
}

template <class T>
uint16_t packed_bytes(float low, float high) {
  const auto byte = [](float x) {
    if constexpr (std::is_same_v<T, numbers::E4m3>) return to_fp8(x, kE4m3);
    if constexpr (std::is_same_v<T, numbers::E5m2>) return to_fp8(x, kE5m2);
    if constexpr (std::is_same_v<T, numbers::S8>) return uint32_t(uint8_t(min(max(__float2int_rn(x), -128), 127)));
  };
  return uint16_t(byte(low) | byte(high) << 8);
}

// What each lane of a warp has, seen by all.
template <class T, class See>
auto seen_by_warp(T x, See see) {
  static T lanes[8][simulated::kMostThreads / 32][32];  // of the blocks of a cluster
  const int lane = simulated::running.number % 32;
  auto& of_warp = lanes[simulated::running.rank][simulated::running.number / 32];
  of_warp[lane] = x;
  gpu::synchronize_warp();
  const auto found = see(of_warp, lane);
  gpu::synchronize_warp();
  return found;
}
template <class T>
T from_lane(T x, int lane) {
  return seen_by_warp(x, [&](const T(&lanes)[32], int) { return lanes[lane]; });
}
inline uint32_t from_below(uint32_t x, int by) {
  return seen_by_warp(x, [&](const uint32_t (&lanes)[32], int lane) { return lanes[lane < by ? lane : lane - by]; });
}
inline uint32_t lanes_where(bool x) {
  return seen_by_warp(x, [](const bool (&lanes)[32], int) {
    uint32_t found = 0;
    for (int i = 0; i < 32; ++i) found |= uint32_t(lanes[i]) << i;
    return found;
  });
}
inline int first_lane(uint32_t lanes) { return __builtin_ctz(lanes); }
inline float exchanged(float x, int bits) {
  return seen_by_warp(x, [&](const float (&lanes)[32], int lane) { return lanes[lane ^ bits]; });
}

inline int warp_index() { return simulated::running.number / 32; }
inline int thread_anew() { return simulated::running.number; }
template <int registers>
void release_registers() {}
template <int registers>
void claim_registers() {}
inline int rank_in_cluster() { return simulated::running.rank; }
inline void synchronize_warp() { gpu::synchronize_warp(); }
inline void synchronize_block() { gpu::synchronize_block(); }
inline void synchronize_cluster() { gpu::synchronize_cluster(); }
inline void meet_in_cluster() { gpu::synchronize_cluster(); }
inline void wait_for_predecessor() { gpu::wait_for_predecessor(); }
inline void let_successor_begin() {}

// ------------------------------------------------------------------------------------------------ products

// An operand's number by its descriptor: its row (of B: its column), and k within 32 bytes.
template <class T, bool along>
float operand(uint64_t descriptor, int row, int k) {
  constexpr uint32_t size = sizeof(typename T::Type);
  const uint32_t start = uint32_t(descriptor & 0x3fff) << 4, swizzle = 256u >> (descriptor >> 62);  // 128, 64, 32
  const uint32_t leading = uint32_t(descriptor >> 16 & 0x3fff) << 4, eighth = uint32_t(descriptor >> 32 & 0x3fff) << 4;
  uint32_t at = start;
  if (along) {
    const uint32_t width = swizzle / size;
    at += row / width * leading + k / 8 * eighth + k % 8 * swizzle + row % width * size;
  } else {
    at += row / 8 * eighth + row % 8 * swizzle + k * size;
  }
  typename T::Type bits;
  std::memcpy(&bits, gpu::shared(gpu::swizzled(at, swizzle), size), size);
  if constexpr (std::is_same_v<T, numbers::E4m3>) {
    return from_e4m3(bits);
  } else if constexpr (std::is_same_v<T, numbers::E5m2>) {
    return from_e5m2(bits);
  } else {
    return T::value(bits);
  }
}

template <bool along, int width>
constexpr int next_bytes();
constexpr int panel_of(int extent);

struct SumF16;
struct SumS32;

template <class A, class B, class Sum, int N, bool a_along, bool b_along>
struct Wgmma {
  static constexpr bool halves = std::is_same_v<Sum, SumF16>, whole = std::is_same_v<Sum, SumS32>;
  using Register = std::conditional_t<halves, uint32_t, std::conditional_t<whole, int32_t, float>>;
  using Number = std::conditional_t<whole, int64_t, float>;  // of which s32 keeps the low bits
  using Sums = Register[halves ? N / 4 : N / 2];

  static void multiply(Sums& sums, uint64_t a, uint64_t b, int accumulate) { queue(sums, a, b, accumulate, 4); }
  static void multiply_slab(Sums& sums, uint64_t a, uint64_t b, int accumulate) { queue(sums, a, b, accumulate, 1); }
  template <int groups>
  static void wait_but(Sums&) {
    gpu::wait_for_products(groups);
  }
  static void wait(Sums&) { gpu::wait_for_products(0); }

 private:
  static void queue(Sums& sums, uint64_t a, uint64_t b, int accumulate, int slabs) {
    gpu::queue_product([&sums, a, b, accumulate, slabs] {
      constexpr int depth = 32 / int(sizeof(typename A::Type));
      const int thread = simulated::running.number % 128, row = thread / 32 * 16 + thread % 32 / 4;
      for (int i = 0; i < N / 2; ++i) {
        const int m = row + i / 2 % 2 * 8, n = i / 4 * 8 + thread % 4 * 2 + i % 2;
        Number sum = accumulate ? number(sums, i) : 0;
        for (int k = 0; k < slabs * depth; ++k) {
          const uint64_t step = uint64_t(k / depth);
          sum += Number(operand<A, a_along>(a + step * next_bytes<a_along, 64>(), m, k % depth)) *
                 Number(operand<B, b_along>(b + step * next_bytes<b_along, panel_of(N)>(), n, k % depth));
        }
        set(sums, i, sum);
      }
    });
  }
  static Number number(const Sums& sums, int i) {
    if constexpr (halves) return numbers::F16::value(uint16_t(sums[i / 2] >> i % 2 * 16));
    if constexpr (!halves) return sums[i];
  }
  static void set(Sums& sums, int i, Number x) {
    if constexpr (halves) {
      const uint32_t shift = i % 2 * 16, bits = __half_as_ushort(__float2half_rn(x));
      sums[i / 2] = (sums[i / 2] & ~(0xffffu << shift)) | bits << shift;
    } else {
      sums[i] = Register(x);
    }
  }
};

}  // namespace cutlass_py::sm90
