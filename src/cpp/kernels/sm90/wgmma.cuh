// Products of the tensor cores: D += A B of 64 rows, by warpgroups, with A and B in shared memory.
//
// The instructions themselves are written for the types and widths that a source uses (declaration/wgmma_cpp.py), as
// specialisations of Wgmma. PTX ISA, Asynchronous Warpgroup Level Matrix Instructions.
#pragma once

#include "kernels/sm90/instructions.cuh"

namespace cutlass_py::sm90 {

// The bytes of k that lie side by side, and what an instruction multiplies of them.
constexpr int kLine = 128, kSlab = 32;

// What sums are held as: the registers of a thread for N columns, and the i-th of its numbers.
template <class T>
struct OneToARegister {
  using Register = T;
  static constexpr int registers(int n) { return n / 2; }
  template <int count>
  static __device__ T value(const T (&sums)[count], int i) {
    return sums[i];
  }
};
struct SumF32 : OneToARegister<float> {
  static constexpr const char* name = "f32";
};
struct SumS32 : OneToARegister<int32_t> {
  static constexpr const char* name = "s32";
};
struct SumF16 {  // two to a register
  using Register = uint32_t;
  static constexpr const char* name = "f16";
  static constexpr int registers(int n) { return n / 4; }
  template <int count>
  static __device__ float value(const uint32_t (&sums)[count], int i) {
    return numbers::F16::value(uint16_t(sums[i / 2] >> i % 2 * 16));
  }
};

// sums (+)= A B for 64 rows of A, N columns of B and a line of k. `a_along`: the operand lies along its rows (of B: its
// columns), not along k.
//
//   static void multiply(Register (&sums)[registers], uint64_t a, uint64_t b, int accumulate);
//   static void multiply_slab(sums, a, b, accumulate);  // the first of a line
//   template <int groups> static void wait_but(sums);   // until all but so many groups are done, these among them
//   static void wait(sums);
template <class A, class B, class Sum, int N, bool a_along, bool b_along>
struct Wgmma;

// How wide the panels are in which an operand lies that is read along its rows: those that fill the extent.
__host__ __device__ constexpr int panel_of(int extent) { return extent % 64 == 0 ? 64 : extent % 32 == 0 ? 32 : 16; }

// Where a byte of a row of a box lies, from the first row on: 16 bytes change places with others of the row.
template <int row_bytes>
__device__ constexpr Address swapped(int row, int byte) {
  static_assert(row_bytes == 128 || row_bytes == 64 || row_bytes == 32 || row_bytes == 16);
  constexpr int rows_to_swap = 128 / row_bytes, chunks = row_bytes / 16;
  return Address(row * row_bytes + (byte ^ (row / rows_to_swap % chunks * 16)));
}

// Where an operand lies, as wgmma takes it: a swizzle, and the distances of what it reads in one go (units of 16
// bytes). Along k: lines, eight by eight. Along rows: panels of `width` by 64 of k, eight by eight.
template <bool along, int width>
__device__ uint64_t descriptor(Address at) {
  constexpr uint64_t line = uint64_t(1) << 62 | uint64_t(8 * kLine / 16) << 32 | uint64_t(1) << 16;
  constexpr uint64_t swizzle = width == 64 ? 1 : width == 32 ? 2 : 3;  // 128, 64 or 32 bytes
  constexpr uint64_t panels = swizzle << 62 | uint64_t(width) << 32 | uint64_t(8 * width) << 16;
  return uint64_t(at >> 4 & 0x3fff) | (along ? panels : line);
}

// How far the next slab of k is, in the same units: along k, or 16 rows of k on in a panel.
template <bool along, int width>
constexpr int next_bytes() {
  return along ? 16 * width * 2 / 16 : 32 / 16;
}

}  // namespace cutlass_py::sm90
