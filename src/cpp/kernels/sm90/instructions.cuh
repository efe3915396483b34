// What sm90 does beside arithmetic: barriers in shared memory, bulk copies, groups of products, clusters. A name for
// each instruction.
//
// The PTX ISA has them under mbarrier, cp.async.bulk.tensor, wgmma, stmatrix, setmaxnreg, barrier.cluster,
// griddepcontrol. Shared memory is addressed in its own 32-bit window throughout.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/common/numbers.cuh"

namespace cutlass_py::sm90 {

using Address = uint32_t;  // within the shared memory of a block

// A CUtensorMap: what tensor_map.h encodes and the copy engine reads.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

constexpr int kAtom = 1024;  // bytes that swizzles repeat after

// Where a block's shared memory begins: aligned by the compiler, which knows that the driver has an atom in front of
// it.
__device__ inline Address dynamic_shared_memory() {
  extern __shared__ __align__(kAtom) char memory[];
  return Address(__cvta_generic_to_shared(memory));
}

// ------------------------------------------------------------------------------------------------ barriers

// Each of `arrivals` completes a phase, once the bytes have come that were announced for it.
__device__ inline void init_barrier(Address barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Behind the last init_barrier: other blocks of the cluster, and copies, see them.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive_expecting(Address barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void arrive(Address barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// In another block of the cluster, at the same place.
__device__ inline void arrive(Address barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Until the phase of this parity is over; the one before a barrier's first has parity 1.
__device__ inline void wait(Address barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred over;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@over bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// All threads of a warpgroup, or as many as said.
__device__ inline void named_barrier(int number, int threads = 128) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Without waiting; those that wait are among as many.
__device__ inline void arrive_at_named_barrier(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ------------------------------------------------------------------------------------------------ bulk copies

__device__ inline void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// A box at these coordinates, the innermost first; its bytes count for the barrier.
__device__ inline void load(Address to, const TensorMap& map, Address barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// To the same place in every block of the cluster that `blocks` has a bit for, where it counts for the same barrier.
__device__ inline void load(Address to, const TensorMap& map, Address barrier, int x, int y, int z, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(to),
      "l"(&map), "r"(barrier), "h"(blocks), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ inline void store(const TensorMap& map, Address from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map), "r"(from),
               "r"(x), "r"(y), "r"(z)
               : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all but so many groups of this thread's stores have read their shared memory.
template <int groups>
__device__ void wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
}
// What this thread has written to shared memory is seen by copies that are begun behind the next barrier.
__device__ inline void publish_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ------------------------------------------------------------------------------------------------ copies of numbers

// One of four bytes, by this thread, which does not wait for it.
__device__ inline void copy(Address to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(4) : "memory");
}
// As soon as all numbers have come that this thread copies.
__device__ inline void arrive_when_copied(Address barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// 16 bytes, of which so many are there; the others are zeros.
__device__ inline void copy_granule(Address to, const char* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(16), "r"(bytes) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but so many groups of this thread's copies have come.
template <int groups>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// ------------------------------------------------------------------------------------------------ tensor cores

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all but so many groups of products are done with shared memory.
template <int groups>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}

// ------------------------------------------------------------------------------------------------ registers to memory

// Four matrices of 8x8 numbers of 16 bits. Rows of the i-th go to the addresses of lanes 8i to 8i + 7; of row r the
// lane 4r + c has columns 2c and 2c + 1, or with `transposed` of column r the rows 2c and 2c + 1.
template <bool transposed>
__device__ void store_matrices(Address row, const uint32_t (&x)[4]) {
  if constexpr (transposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
  }
}
// And back.
template <bool transposed>
__device__ void load_matrices(Address row, uint32_t (&x)[4]) {
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
  }
}

__device__ inline void store_shared(Address to, uint8_t x) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "h"(uint16_t(x)) : "memory");
}
__device__ inline void store_shared(Address to, uint16_t x) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
}
__device__ inline void store_shared(Address to, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline void store_shared(Address to, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
}
__device__ inline void store_shared(Address to, const float (&x)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
__device__ inline void load_shared(Address from, float (&x)[4]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(from)
               : "memory");
}
__device__ inline void store_shared(Address to, const int (&x)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
__device__ inline void load_shared(Address from, int (&x)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}
// At this address in another block of the cluster.
__device__ inline void load_remote(Address from, int rank, float (&x)[4]) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
      : "r"(from), "r"(rank)
      : "memory");
}
template <class T>
__device__ T load_shared(Address from) {
  T x;
  if constexpr (sizeof(T) == 1) {
    uint16_t wide;
    asm volatile("ld.shared.u8 %0, [%1];" : "=h"(wide) : "r"(from) : "memory");
    x = T(wide);
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
  } else {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  }
  return x;
}

// The thread's number, read anew: what follows from it takes no register meanwhile.
__device__ inline int thread_anew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Two numbers of 16 bits in a word, the first in its low half: to nearest, ties to even.
template <class T>
__device__ uint32_t packed(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, numbers::Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

// And two of a byte. All saturate, infinities too; NaN stays in fp8, and becomes 0 in integers.
template <class T>
__device__ uint16_t packed_bytes(float low, float high) {
  uint16_t pair;
  if constexpr (std::is_same_v<T, numbers::E4m3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else if constexpr (std::is_same_v<T, numbers::E5m2>) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<T, numbers::S8>);
    uint32_t word;
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(word) : "r"(__float2int_rn(high)), "r"(__float2int_rn(low)));
    pair = uint16_t(word);
  }
  return pair;
}

// What the lane has whose number differs in these bits.
__device__ inline float exchanged(float x, int bits) { return __shfl_xor_sync(~0u, x, bits); }
// Where all lanes of a warp take part: what one of them has; what the lane has that is so many below, or this one,
// where there is none; in which lanes something is so, and the first of these.
template <class T>
__device__ T from_lane(T x, int lane) {
  return __shfl_sync(~0u, x, lane);
}
__device__ inline uint32_t from_below(uint32_t x, int by) { return __shfl_up_sync(~0u, x, by); }
__device__ inline uint32_t lanes_where(bool x) { return __ballot_sync(~0u, x); }
__device__ inline int first_lane(uint32_t lanes) { return __ffs(int(lanes)) - 1; }

// ------------------------------------------------------------------------------------------------ warps and blocks

// The same for all of a warp, and known to be.
__device__ inline int warp_index() { return __shfl_sync(~0u, int(threadIdx.x) / 32, 0); }

// Registers that each thread of a warpgroup has from now on.
template <int registers>
__device__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

__device__ inline int rank_in_cluster() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void synchronize_warp() { __syncwarp(); }
__device__ inline void synchronize_block() { __syncthreads(); }
__device__ inline void synchronize_cluster() {
  asm volatile("barrier.cluster.arrive;" ::: "memory");
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
// All are here; what they have written need not be, which saves a wait for memory.
__device__ inline void meet_in_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  asm volatile("barrier.cluster.wait;" ::: "memory");
}

// Where launches overlap: until the one before has ended, and that the next may begin.
__device__ inline void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void let_successor_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace cutlass_py::sm90
