// Zeros in the lines of D that belong to no group: a product of groups leaves them as they are.
//
// Where they lie, the device alone knows. Every block adds up the numbers of the groups by itself, so that one launch
// is all, and its threads share out what they find, by words as wide as the lines are aligned.
#include <algorithm>
#include <numeric>

#include "kernels/elementwise/elementwise.h"

namespace cutlass_py {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 512;  // more would add up the numbers more often
constexpr int kWords = 8;             // for each thread, below which there are fewer blocks

// D as words: strides along and across the lines that groups divide.
struct Rest {
  CutlassPyGroups groups;
  int32_t count;
  char* data;
  int64_t lines, line, others, other;
  bool along;    // neighbouring threads are on neighbouring lines
  bool gapless;  // lines lie one behind the other
};

// The i-th number, cut off as kernels of groups do (kernels/sm90/groups.cuh).
__device__ int64_t number(const Rest& p, int64_t i) {
  const int64_t x = p.groups.wide ? static_cast<const int64_t*>(p.groups.numbers)[i]
                                  : static_cast<const int32_t*>(p.groups.numbers)[i];
  return x < 0 ? 0 : x < p.lines ? x : p.lines;
}

// Where the last group ends.
__device__ int64_t end_of(const Rest& p) {
  if (p.groups.kind == CUTLASS_PY_GROUP_ENDS) return number(p, p.count - 1);
  if (p.groups.kind == CUTLASS_PY_GROUP_STARTS) return number(p, p.count);
  __shared__ int64_t sums[kThreads];
  const int thread = threadIdx.x;
  int64_t sum = 0;
  for (int64_t i = thread; i < p.count; i += kThreads) sum += number(p, i);
  for (int half = kThreads / 2; half; half /= 2) {
    __syncthreads();
    sums[thread] = sum;
    __syncthreads();
    if (thread < half) sum += sums[thread + half];
  }
  if (thread == 0) sums[0] = sum < p.lines ? sum : p.lines;
  __syncthreads();
  return sums[0];
}

template <class Word>
__global__ void __launch_bounds__(kThreads) clear_kernel(const __grid_constant__ Rest p) {
  const int64_t begin = p.groups.kind == CUTLASS_PY_GROUP_STARTS && p.count ? number(p, 0) : 0;
  const int64_t end = p.count ? end_of(p) : 0, lines = begin < end ? begin + p.lines - end : p.lines;
  const int64_t front = begin < end ? begin : 0, skipped = begin < end ? end - begin : 0;
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < lines * p.others; i += step) {
    int64_t at = i < front * p.others ? i : i + skipped * p.others;
    if (!p.gapless) {
      const int64_t nth = p.along ? i % lines : i / p.others, across = p.along ? i / lines : i % p.others;
      at = (nth < front ? nth : nth + skipped) * p.line + across * p.other;
    }
    reinterpret_cast<Word*>(p.data)[at] = Word{};
  }
}

template <class Word>
int launch(const Rest& p, cudaStream_t stream) {
  const int64_t blocks = std::min(ceil_div(p.lines * p.others, kThreads * kWords), kMostBlocks);
  return blocks ? queue(clear_kernel<Word>, unsigned(blocks), kThreads, stream, p) : 0;
}

}  // namespace

int clear_rest(const CutlassPyArray* d, int64_t rows, int64_t cols, const CutlassPyGroups* groups, int32_t count,
               void* stream) {
  if (groups->axis == 'k' || groups->kind == CUTLASS_PY_GROUP_FIRST) return cudaErrorInvalidValue;
  const CutlassPyArray x = groups->axis == 'm' ? *d : transposed(*d);
  if (groups->axis == 'n') std::swap(rows, cols);
  Rest p{*groups, count, static_cast<char*>(x.data), rows, x.row, cols, x.col, false, false};
  p.along = runs_along_rows(x, rows, cols);
  int64_t word = dtype_size(Dtype(x.dtype));
  if (p.other == 1 && cols > 1) {  // as many elements at once as every line begins with and has
    const int64_t bytes = reinterpret_cast<intptr_t>(p.data) | p.line * word | cols * word;
    const int64_t elements = std::gcd(bytes, int64_t(16)) / word;
    if (elements > 1) p.line /= elements, p.others /= elements, word *= elements;
  }
  p.gapless = p.line == p.others && p.other == 1;
  auto* s = cudaStream_t(stream);
  switch (word) {
    case 1: return launch<uint8_t>(p, s);
    case 2: return launch<uint16_t>(p, s);
    case 4: return launch<uint32_t>(p, s);
    case 8: return launch<uint2>(p, s);
    case 16: return launch<uint4>(p, s);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace cutlass_py
