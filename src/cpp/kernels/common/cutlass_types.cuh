// CUTLASS's types by this package's names.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cutlass/complex.h"
#include "cutlass/cutlass.h"
#include "cutlass/layout/matrix.h"
#include "cutlass/numeric_types.h"
#include "kernels/common/cutlass_driver.cuh"

namespace cutlass_py {

// Dtype names as in dtypes.py; a new dtype adds one specialisation.
template <class T>
constexpr const char* dtype_name = nullptr;
template <>
inline constexpr const char* dtype_name<void> = "void";
template <>
inline constexpr const char* dtype_name<cutlass::half_t> = "f16";
template <>
inline constexpr const char* dtype_name<cutlass::bfloat16_t> = "bf16";
template <>
inline constexpr const char* dtype_name<float> = "f32";
template <>
inline constexpr const char* dtype_name<double> = "f64";

template <>
inline constexpr const char* dtype_name<cutlass::float_e4m3_t> = "e4m3";
template <>
inline constexpr const char* dtype_name<cutlass::float_e5m2_t> = "e5m2";
template <>
inline constexpr const char* dtype_name<int8_t> = "s8";
template <>
inline constexpr const char* dtype_name<uint8_t> = "u8";
template <>
inline constexpr const char* dtype_name<int32_t> = "s32";
template <>
inline constexpr const char* dtype_name<cutlass::complex<float>> = "c64";
template <>
inline constexpr const char* dtype_name<cutlass::complex<double>> = "c128";

// Arithmetic of the epilogue: the accumulator's, but f32 for an f16 one and for integers that do not stay integers.
template <class Accumulator, class D>
using EpilogueCompute = std::conditional_t<std::is_same_v<Accumulator, cutlass::half_t> ||
                                               (std::is_same_v<Accumulator, int32_t> && !std::is_same_v<D, int32_t>),
                                           float, Accumulator>;

template <class Layout>
constexpr char layout_letter = std::is_same_v<Layout, cutlass::layout::RowMajor> ? 't' : 'n';

}  // namespace cutlass_py
