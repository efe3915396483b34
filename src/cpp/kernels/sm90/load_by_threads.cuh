// Loading by a warpgroup: operands that the copy engine cannot read, because an address or a stride is no multiple of
// 16 bytes. What a thread reads lies across two granules of 16 bytes, and is shifted to where the copy engine would
// have put it: the tensor cores know of no difference.
#pragma once

#include "kernels/sm90/parameters.cuh"

namespace cutlass_py::sm90 {

struct alignas(16) Granule {
  uint32_t words[4];
};

// 16 bytes of a line, of which the first `valid` are inside of the operand; the others are 0.
struct Piece {
  const uint8_t* from;
  int valid;
  uint32_t words[8];  // of the granules that they lie across

  __device__ int offset() const { return int(reinterpret_cast<uintptr_t>(from) % 16); }
  // Granules that memory has whole, all in one go.
  __device__ void request(const LinesInMemory& x, const uint8_t* address, int bytes) {
    from = address, valid = bytes;
    const uint8_t* granule = from - offset();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Granule read{};
      if (needs(i) && inside(x, granule + i * 16)) read = *reinterpret_cast<const Granule*>(granule + i * 16);
#pragma unroll
      for (int j = 0; j < 4; ++j) words[i * 4 + j] = read.words[j];
    }
  }
  // The others: of the first bytes of all, and the last ones.
  __device__ void complete(const LinesInMemory& x) {
    const uint8_t* granule = from - offset();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!needs(i) || inside(x, granule + i * 16)) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll 1
        for (int byte = 0; byte < 4; ++byte) {
          const uint8_t* at = granule + i * 16 + j * 4 + byte;
          if (at >= x.data && at < x.end) words[i * 4 + j] |= uint32_t(*at) << byte * 8;
        }
      }
    }
  }
  __device__ void shifted(uint32_t (&to)[4]) {
    const int by = offset();
    if (by & 8) {
#pragma unroll
      for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
    }
    if (by & 4) {
#pragma unroll
      for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int left = valid - i * 4;
      to[i] = __funnelshift_r(words[i], words[i + 1], uint32_t(by & 3) * 8);
      if (left < 4) to[i] = left <= 0 ? 0 : to[i] & (1u << left * 8) - 1;
    }
  }

 private:
  __device__ bool needs(int i) const { return valid > 0 && (i == 0 || offset() + valid > 16); }
  static __device__ bool inside(const LinesInMemory& x, const uint8_t* granule) {
    return granule >= x.data && granule + 16 <= x.end;
  }
};

// A line of k of an operand: `extent` of its rows.
template <bool along, int size, int extent>
struct OperandLines {
  // Rows in shared memory; of an operand that is read along its own, 64 for each panel.
  static constexpr int row_bytes = along ? panel_of(extent) * size : kLine, pieces = row_bytes / 16;
  static constexpr int rounds = extent * kLine / 16 / 128, at_once = largest_divisor(rounds, 4);

  const LinesInMemory& x;

  __device__ void line(Address to, int row, int k, int batch) const {
    const uint8_t* data = x.data + batch * x.batch;
    const int thread = int(threadIdx.x) % 128;
#pragma unroll 1
    for (int round = 0; round < rounds; round += at_once) {
      Piece piece[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int number = (round + i) * 128 + thread, at = number / pieces, byte = number % pieces * 16;
        const int line = along ? k + at % 64 : row + at;
        const int64_t first = int64_t(along ? row : k) * size + (along ? at / 64 * row_bytes : 0) + byte;
        const int64_t left = line < x.count ? x.length - first : 0;
        const int valid = left < 16 ? int(left) : 16;
        piece[i].request(x, data + line * x.stride + first, valid);
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int number = (round + i) * 128 + thread, at = number / pieces, byte = number % pieces * 16;
        uint32_t words[4];
        piece[i].complete(x);
        piece[i].shifted(words);
        store_shared(to + swapped<row_bytes>(at, byte), words);
      }
    }
  }
};

// By a warpgroup.
template <class X>
__device__ void load_tiles_by_threads(const Parameters& p, const SharedMemory<X>& shared, const Place<X>& place) {
  constexpr int size = int(sizeof(typename X::Left::Type));
  const OperandLines<X::left_along, size, X::M> left{p.left.lines};
  const OperandLines<X::right_along, size, X::N> right{p.right.lines};
  Pipeline<X> at;
  const Steps steps = X::split ? Steps::slice(p.steps, place.rank, p.slices) : Steps::all(p.steps);
  Tiles tiles = X::split ? Tiles::of_slices(p.order, p.slices) : Tiles::of_cluster(p.order, X::cluster);
  wait_for_predecessor();
  for (; tiles.left(); tiles.advance()) {
    const int m = tiles.m * X::M, n = tiles.n * X::N;
#pragma unroll 1
    for (int step = steps.begin; step < steps.end; ++step, at.advance()) {
      wait(shared.empty(at.stage), at.parity ^ 1);
#pragma unroll 1
      for (int i = 0; i < X::lines; ++i) {
        const int k = (step * X::lines + i) * X::line;
        left.line(shared.left(at.stage) + i * X::left_line, m, k, tiles.batch);
        right.line(shared.right(at.stage) + i * X::right_line, n, k, tiles.batch);
      }
      publish_to_copies();
      arrive(shared.full(at.stage));
    }
  }
  let_successor_begin();
}

}  // namespace cutlass_py::sm90
