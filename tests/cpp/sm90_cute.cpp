// Where CuTe's layouts, descriptors and accumulators for sm90 have numbers, for test_sm90_cute.py. Of its own code only
// what tells host from device is ours: addresses of shared memory are those that we say.
#include <cstddef>
#include <cstdint>

#define CUTE_CVTA_GENERIC_TO_SHARED_ACTIVATED 1
inline size_t __cvta_generic_to_shared(const void* at) { return reinterpret_cast<size_t>(at); }

#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/tensor.hpp>

namespace {

namespace gmma = cute::SM90::GMMA;
using cute::_0, cute::_1, cute::_2, cute::_3, cute::_4, cute::_16, cute::Int;

template <class T, class Layout>
auto tensor_at(uint32_t at, const Layout& layout) {
  return cute::make_tensor(cute::make_smem_ptr(reinterpret_cast<T*>(uintptr_t(at))), layout);
}

// Extents are known when this runs, as far as CuTe allows: otherwise it takes the compiler ten times as long.

// An operand that lies along its rows: blocks of so many, which an instruction takes. k comes before the panels, as
// CUTLASS has it, and the widest swizzle that fits is chosen, as CUTLASS does.
template <class Use>
void along_rows(int rows, int blocks, Use use) {
  using T = uint16_t;
  const auto with = [&](auto atom) {
    use(cute::tile_to_shape(atom, cute::make_shape(rows, _16{}, _4{}, blocks), cute::Step<_3, _1, _2, _4>{}));
  };
  if (rows % 64 == 0) return with(gmma::Layout_MN_SW128_Atom<T>{});
  rows % 32 == 0 ? with(gmma::Layout_MN_SW64_Atom<T>{}) : with(gmma::Layout_MN_SW32_Atom<T>{});
}

// One that lies along k, in pieces of 16 rows: CuTe has to know how many, and descriptors do not depend on it.
template <class T>
auto along_k(int pieces) {
  return cute::tile_to_shape(gmma::Layout_K_SW128_Atom<T>{}, cute::make_shape(_16{}, Int<128 / sizeof(T)>{}, pieces));
}

template <class T>
void write_along_k(int rows, int blocks, uint32_t at, uint32_t* places, uint64_t* descriptors) {
  const auto layout = along_k<T>(rows * blocks / 16);
  const auto tensor = tensor_at<T>(at, layout);
  for (int block = 0; block < blocks; ++block) {
    for (int step = 0; step < 4; ++step) {
      const auto piece = tensor(cute::_, cute::_, block * rows / 16);
      const auto shape = cute::Shape<_16, Int<32 / sizeof(T)>>{};
      *descriptors++ =
          gmma::make_gmma_desc<gmma::Major::K>(cute::local_tile(piece, shape, cute::make_coord(_0{}, step)));
    }
  }
  const auto place = cute::as_position_independent_swizzle_layout(layout);
  for (int row = 0; row < rows * blocks; ++row) {
    for (int k = 0; k < 128 / int(sizeof(T)); ++k) *places++ = uint32_t(place(row % 16, k, row / 16) * sizeof(T));
  }
}
void write_along_rows(int rows, int blocks, uint32_t at, uint32_t* places, uint64_t* descriptors) {
  along_rows(rows, blocks, [&](const auto& layout) {
    const auto tensor = tensor_at<uint16_t>(at, layout);
    for (int block = 0; block < blocks; ++block) {
      for (int step = 0; step < 4; ++step) {
        *descriptors++ = gmma::make_gmma_desc<gmma::Major::MN>(tensor(cute::_, cute::_, step, block));
      }
    }
    const auto place = cute::as_position_independent_swizzle_layout(layout);
    for (int row = 0; row < rows * blocks; ++row) {
      for (int k = 0; k < 64; ++k) *places++ = uint32_t(place(row % rows, k % 16, k / 16, row / rows) * 2);
    }
  });
}

template <class T>
void write_part(int lines, int inner, int row_bytes, uint32_t* to) {
  const auto with = [&](auto atom) {
    const auto layout = cute::tile_to_shape(atom, cute::make_shape(lines, inner));
    const auto place = cute::as_position_independent_swizzle_layout(layout);
    for (int i = 0; i < lines; ++i) {
      for (int j = 0; j < inner; ++j) *to++ = uint32_t(place(i, j) * sizeof(T));
    }
  };
  if (row_bytes == 128) with(gmma::Layout_K_SW128_Atom<T>{});
  if (row_bytes == 64) with(gmma::Layout_K_SW64_Atom<T>{});
  if (row_bytes == 32) with(gmma::Layout_K_SW32_Atom<T>{});
  if (row_bytes == 16) with(gmma::Layout_K_INTER_Atom<T>{});
}

// use(an element of so many bytes)
template <class Use>
void with_elements(int size, Use use) {
  if (size == 1) use(uint8_t());
  if (size == 2) use(uint16_t());
  if (size == 4) use(uint32_t());
}

}  // namespace

extern "C" {

// Of an operand's line of k: where each number lies [row][k], and what each instruction is told [block][instruction].
void operand(bool along, int size, int rows, int blocks, uint32_t at, uint32_t* places, uint64_t* descriptors) {
  if (along) return write_along_rows(rows, blocks, at, places, descriptors);
  with_elements(size, [&](auto x) { write_along_k<decltype(x)>(rows, blocks, at, places, descriptors); });
}
// Of a part of D, in panels of such rows, where each number lies [line][place in it].
void part(int lines, int inner, int size, int row_bytes, uint32_t* to) {
  with_elements(size, [&](auto x) { write_part<decltype(x)>(lines, inner, row_bytes, to); });
}
// Of a thread's numbers of 64 rows by 256 columns, the row and 64 times the column; narrower ones are their beginning.
void sums(int32_t* to) {
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < 128; ++i) *to++ = gmma::CLayout_64xN<256>{}(thread, i);
  }
}

}  // extern "C"
