// Loading what the copy engine cannot stride over: lines that begin at any element.
//
// Four warps load, each some lines of a stage: granules of 16 bytes that they lie in, asynchronously and some stages
// ahead, to memory that only the warp reads. What has come it shifts into boxes as the copy engine would write them.
#pragma once

#include "kernels/sm90/load.cuh"

namespace cutlass_py::sm90 {

// What a stage has of an operand whose rows or columns are `extent`: lines of the operand, of which it has `width`
// bytes, as boxes of shared memory.
template <class X, bool along, int extent>
struct UnalignedBox {
  static constexpr int size = int(sizeof(typename X::Left::Type)), panel = panel_of(extent);
  static constexpr int lines = along ? X::lines * 64 : extent, width = along ? extent * size : X::lines * kLine;
  static constexpr int raw_line = width + kGranule;  // which may lie in one granule more than it would fill
  static constexpr int own = lines / kLoadingWarps;  // lines of a warp
  static constexpr int kAtOnce = 8;                  // words that a lane shifts
  static constexpr int row = along ? panel * size : kLine, next = extent * kLine;  // bytes: of a box's row, of a `line`
  static_assert(size == 2 && lines % kLoadingWarps == 0 && own <= 32 && (width & (width - 1)) == 0);

  const UnalignedOperand& x;
  const char* const data;  // of the batch's matrix
  const int64_t byte;      // where it begins
  const int line;

  // Granules of this warp's lines. Nothing is read behind the end of a matrix, nor of lines that are not there; in
  // front of the first one what lies in its first granule.
  __device__ void copy(Address raw) const {
    const char* const end = data + (x.outer - 1) * x.line + x.inner;
    if (line + lines <= x.outer && from(lines - 1) + raw_line <= end) {
      granules(raw, [](const char*, int) { return kGranule; });
    } else {
      granules(raw, [&](const char* from, int i) {
        const int64_t left = line + i < x.outer ? end - from : 0;
        return left < 0 ? 0 : left < kGranule ? int(left) : kGranule;
      });
    }
  }

  // To where the lines belong, with zeros behind their end.
  __device__ void shift(Address raw, Address to) const {
    constexpr int words = width / 4 < 32 ? width / 4 : 32, abreast = abreast_of(words), times = width / 4 / words;
    constexpr int rounds = own / abreast, at_once = largest_divisor(rounds, kAtOnce / times);
    if (lane() >= abreast * words) return;
    const int first = first_line() + lane() / words, own_byte = lane() % words * 4;
    const auto stride = uint32_t(x.line), begins = uint32_t(reinterpret_cast<uintptr_t>(from(first)));
    uint32_t mask[times];
#pragma unroll
    for (int t = 0; t < times; ++t) {
      const int64_t inside = x.inner - byte - own_byte - t * 128;
      mask[t] = inside >= 4 ? ~0u : inside <= 0 ? 0 : (1u << inside * 8) - 1;
    }
#pragma unroll
    for (int i = 0; i < rounds; i += at_once) {
      uint32_t low[at_once][times], high[at_once][times], bits[at_once];
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
        const uint32_t offset = (begins + (i + j) * abreast * stride) % kGranule;
        const Address at = raw + (first + (i + j) * abreast) * raw_line + own_byte + offset / 4 * 4;
        bits[j] = offset % 4 * 8;
#pragma unroll
        for (int t = 0; t < times; ++t) {
          low[j][t] = load_shared<uint32_t>(at + t * 128), high[j][t] = load_shared<uint32_t>(at + t * 128 + 4);
        }
      }
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
#pragma unroll
        for (int t = 0; t < times; ++t) {
          const uint32_t word = __funnelshift_r(low[j][t], high[j][t], bits[j]) & mask[t];
          store_shared(to + place(first + (i + j) * abreast, own_byte + t * 128), word);
        }
      }
    }
  }

 private:
  static __device__ int lane() { return int(threadIdx.x) % 32; }
  static __device__ int first_line() { return int(threadIdx.x) / 32 * own; }
  static __host__ __device__ constexpr int abreast_of(int lanes) { return 32 / lanes < own ? 32 / lanes : own; }

  __device__ const char* from(int i) const { return data + (line + i) * x.line + byte; }

  // bytes(granule, its line) of each that are there
  template <class Bytes>
  __device__ void granules(Address raw, Bytes bytes) const {
    constexpr int full = width / kGranule, abreast = abreast_of(full);
    const auto granule = [&](int i, const char* begin, int number) {
      const char* at = begin - int(reinterpret_cast<uintptr_t>(begin) % kGranule) + number * kGranule;
      copy_granule(raw + i * raw_line + number * kGranule, at, bytes(at, i));
    };
    if (lane() < abreast * full) {
      const int first = first_line() + lane() / full;
      const char* begin = from(first);
#pragma unroll
      for (int i = 0; i < own; i += abreast, begin += abreast * x.line) granule(first + i, begin, lane() % full);
    }
    const int last = first_line() + lane();
    if (lane() < own) granule(last, from(last), full);
  }

  // Where a byte of a line belongs.
  static __device__ Address place(int i, int byte) {
    if constexpr (along) {
      return i / 64 * next + byte / row * 64 * row + swapped<row>(i % 64, byte % row);
    } else {
      return byte / row * next + swapped<row>(i, byte % row);
    }
  }
};

// What a block loads, stage by stage.
template <class X>
struct UnalignedStages {
  const Parameters& p;
  const SharedMemory<X>& shared;
  const Steps steps;
  Tiles tiles;
  int step, stage = 0;

  __device__ UnalignedStages(const Parameters& p, const SharedMemory<X>& shared, const Place<X>& place)
      : p(p), shared(shared), steps(steps_of(p, place)), tiles(tiles_of<X>(p)), step(steps.begin) {}

  __device__ bool left() const { return step < steps.end && tiles.left(); }
  __device__ void advance() {
    if (++step == steps.end) step = steps.begin, tiles.advance();
    if (++stage == X::stages) stage = 0;
  }
  __device__ void copy() const {
    left_box().copy(shared.raw_left(stage));
    right_box().copy(shared.raw_right(stage));
  }
  __device__ void shift() const {
    left_box().shift(shared.raw_left(stage), shared.left(stage));
    right_box().shift(shared.raw_right(stage), shared.right(stage));
  }

 private:
  using Left = UnalignedBox<X, X::left_along, X::M>;
  using Right = UnalignedBox<X, X::right_along, X::N>;
  __device__ Left left_box() const { return box<Left, X::left_along>(p.left_unaligned, tiles.m * X::M); }
  __device__ Right right_box() const { return box<Right, X::right_along>(p.right_unaligned, tiles.n * X::N); }

  template <class Box, bool along>
  __device__ Box box(const UnalignedOperand& x, int row) const {
    const int k = step * X::lines * X::line;
    return {x, x.data + tiles.batch * x.batch, int64_t(along ? row : k) * Box::size, along ? k : row};
  }
};

template <class X>
__device__ void load_unaligned_tiles(const Parameters& p, const SharedMemory<X>& shared, const Place<X>& place) {
  constexpr int ahead = X::stages - 1;
  UnalignedStages<X> copied(p, shared, place), shifted = copied;
  uint32_t parity = 1;  // of stages that are free
  wait_for_predecessor();
  for (int begun = 0; shifted.left(); ++begun) {
    if (copied.left()) copied.copy(), copied.advance();
    commit_copies();
    if (begun < ahead) continue;
    wait_for_copies<ahead>();
    synchronize_warp();  // lanes shift what others have copied
    wait(shared.empty(shifted.stage), parity);
    shifted.shift();
    synchronize_warp();
    if (threadIdx.x % 32 == 0) arrive(shared.full(shifted.stage));
    shifted.advance();
    if (shifted.stage == 0) parity ^= 1;
  }
  let_successor_begin();
}

}  // namespace cutlass_py::sm90
