// Parts of D, and of matrices that lie like it, between registers and memory.
//
// A warpgroup finishes 64 rows of the left operand by some columns of the right one at a time. What is read for it, and
// what is stored, goes through shared memory by the copy engine, while the part before is on its way out and the next
// one on its way in. D may lie with the left operand's rows as its own, or, where the operands have changed places, as
// its columns: which of the two is told at run time.
#pragma once

#include "kernels/sm90/vectors.cuh"

namespace cutlass_py::sm90 {

// How the elements of a part lie in a buffer, and which are this thread's.
//
// They lie in panels, as boxes are copied: rows of 16 to 128 bytes, in which the copy engine swaps 16 bytes with others
// by the row. Turned, a row is a column of the right operand and has up to 128 bytes of the left one's rows.
template <class X, class T>
struct Fragment {
  using Element = typename T::Type;
  static constexpr int size = int(sizeof(Element)), columns = X::columns, bytes = 64 * columns * size;
  static constexpr int panel = part_panel(columns, size), row_bytes = panel * size, panel_bytes = 64 * row_bytes;
  static constexpr int turned_rows = turned_panel(size), turned_row_bytes = turned_rows * size;
  static constexpr int turned_bytes = columns * turned_row_bytes;  // of a panel
  static constexpr bool by_matrix = size == 2;
  static constexpr Address next_swap = turned_row_bytes == kLine ? 16 : 0;  // of an odd row, turned, and the one before

  const bool turned;
  Address own;  // where this thread's first number lies, or of matrices its row

  __device__ explicit Fragment(bool turned) : turned(turned) {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4;
    if constexpr (by_matrix) {  // the four matrices: rows, rows + 8, and the same of columns + 8
      const int row = warp * 16 + lane / 8 % 2 * 8, column = lane / 16 * 8, in_matrix = lane % 8;
      own = turned ? swapped<turned_row_bytes>(column + in_matrix, row * size)
                   : swapped<row_bytes>(row + in_matrix, column * size);
    } else {
      own = element(warp * 16 + lane / 4, lane % 4 * 2);
    }
  }

  // A unit of so many columns from the part's first.
  template <class Number>
  __device__ void put(Address buffer, const Number (&x)[kUnit], int column) const {
    if constexpr (by_matrix) {
      const uint32_t words[4] = {packed<T>(x[0], x[1]), packed<T>(x[2], x[3]), packed<T>(x[4], x[5]),
                                 packed<T>(x[6], x[7])};
      if (turned) {
        store_matrices<true>(matrices(buffer, column), words);
      } else {
        store_matrices<false>(matrices(buffer, column), words);
      }
    } else {
      each_pair(buffer, column, [&](int i, Address first, Address second, bool neighbours) {
        if constexpr (size == 1) {
          const uint16_t pair = packed_bytes<T>(x[i], x[i + 1]);
          if (neighbours) {
            store_shared(first, pair);
          } else {
            store_shared(first, uint8_t(pair)), store_shared(second, uint8_t(pair >> 8));
          }
        } else if (neighbours) {
          store_shared(first, word(x[i]), word(x[i + 1]));
        } else {
          store_shared(first, word(x[i])), store_shared(second, word(x[i + 1]));
        }
      });
    }
  }
  template <class Number>
  __device__ void get(Address buffer, Number (&x)[kUnit], int column) const {
    if constexpr (by_matrix) {
      uint32_t words[4];
      if (turned) {
        load_matrices<true>(matrices(buffer, column), words);
      } else {
        load_matrices<false>(matrices(buffer, column), words);
      }
#pragma unroll
      for (int i = 0; i < kUnit; ++i) x[i] = T::value(uint16_t(words[i / 2] >> i % 2 * 16));
    } else {
      each_pair(buffer, column, [&](int i, Address first, Address second, bool) {
        x[i] = T::value(load_shared<Element>(first)), x[i + 1] = T::value(load_shared<Element>(second));
      });
    }
  }

  // By one thread: boxes of the matrix, whose map clips what is outside.
  template <class Copy>
  __device__ void boxes(Address buffer, const PartPlace& at, Copy copy) const {
    if (turned) {
#pragma unroll
      for (int i = 0; i < 64 / turned_rows; ++i) copy(buffer + i * turned_bytes, at.m + i * turned_rows, at.n);
    } else {
#pragma unroll
      for (int i = 0; i < columns / panel; ++i) copy(buffer + i * panel_bytes, at.n + i * panel, at.m);
    }
  }

  // By all threads of a warpgroup, where the copy engine cannot: from a buffer to a matrix, or the other way. In words
  // where its lines and this part of them are whole ones, or else element by element.
  template <bool out>
  __device__ void copy_by_threads(Address buffer, const Operand& matrix, const PartPlace& at, int end_m,
                                  int end_n) const {
    const int rows = min(end_m - at.m, 64), columns = min(end_n - at.n, X::columns);
    const int64_t first = turned ? at.n * matrix.row + at.m : at.m * matrix.row + at.n;
    Element* memory = static_cast<Element*>(matrix.data) + at.batch * matrix.batch + first;
    const uintptr_t offsets = reinterpret_cast<uintptr_t>(memory) | uintptr_t(matrix.row * size) |
                              uintptr_t((turned ? rows : columns) * size);
    const bool words = offsets % sizeof(uint32_t) == 0;
    // Each of these is a loop of its own: one loop for both would divide, for every element, by what `turned` tells.
    if (turned && words) {
      copy_lines<out, true, uint32_t>(buffer, memory, matrix.row, rows, columns);
    } else if (turned) {
      copy_lines<out, true, Element>(buffer, memory, matrix.row, rows, columns);
    } else if (words) {
      copy_lines<out, false, uint32_t>(buffer, memory, matrix.row, columns, rows);
    } else {
      copy_lines<out, false, Element>(buffer, memory, matrix.row, columns, rows);
    }
  }

 private:
  // So many lines of a matrix, of so many elements: rows of the part, or, turned, its columns. Neighbours in memory are
  // copied by neighbours, and several words are on their way at once.
  template <bool out, bool by_column, class Word>
  __device__ void copy_lines(Address buffer, Element* memory, int64_t stride, int length, int count) const {
    constexpr int in_word = int(sizeof(Word)) / size, words = (by_column ? 64 : columns) / in_word;
    constexpr int lanes = words & -words, abreast = 128 / lanes;  // as many lanes as divide a line
    constexpr int rounds = (by_column ? columns : 64) / abreast, at_once = largest_divisor(rounds, 4);
    const int thread = int(threadIdx.x) % 128, own = thread / lanes;
    for (int x = thread % lanes * in_word; x < length; x += lanes * in_word) {
      Element* there = memory + own * stride + x;
      for (int y = own; y < count; y += at_once * abreast, there += at_once * abreast * stride) {
        Word moved[at_once] = {};
        const auto held = [&](int i) {
          return buffer + (by_column ? element(x, y + i * abreast) : element(y + i * abreast, x));
        };
        const auto in_memory = [&](int i) { return reinterpret_cast<Word*>(there + i * abreast * stride); };
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
          if constexpr (out) {
            moved[i] = load_shared<Word>(held(i));
          } else if (y + i * abreast < count) {
            moved[i] = *in_memory(i);
          }
        }
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
          if constexpr (!out) {
            store_shared(held(i), moved[i]);
          } else if (y + i * abreast < count) {
            *in_memory(i) = moved[i];
          }
        }
      }
    }
  }
  static __device__ uint32_t word(float x) { return __float_as_uint(x); }
  static __device__ uint32_t word(int32_t x) { return uint32_t(x); }
  __device__ Address element(int row, int column) const {
    return turned ? row / turned_rows * turned_bytes + swapped<turned_row_bytes>(column, row % turned_rows * size)
                  : column / panel * panel_bytes + swapped<row_bytes>(row, column % panel * size);
  }
  // What a swizzle swaps, it swaps within a row, whose offset has none of these bits.
  __device__ Address matrices(Address buffer, int column) const {
    return turned ? buffer + column * turned_row_bytes + own
                  : buffer + column / panel * panel_bytes + (own ^ (column % panel * size));
  }
  // each(i, address of number i, of number i + 1, whether they are neighbours)
  template <class Each>
  __device__ void each_pair(Address buffer, int column, Each each) const {
    const Address at = buffer + (turned ? column * turned_row_bytes : column / panel * panel_bytes);
#pragma unroll
    for (int i = 0; i < kUnit; i += 2) {
      const int row = row_in_unit(i), right = column_in_unit(i);
      if (turned) {
        const Address first = at + right * turned_row_bytes + (own ^ row * size);
        each(i, first, (first + turned_row_bytes) ^ next_swap, false);
      } else {
        const Address first = at + row * row_bytes + (own ^ ((column % panel + right) * size));
        each(i, first, first + size, true);
      }
    }
  }
};

// Those of matrices, one behind the other in a buffer: use(fragment, number of the matrix, offset).
template <class X, class... T>
struct Fragments {
  __device__ explicit Fragments(bool) {}
  template <class Use>
  __device__ void each(Use, int = 0, Address = 0) const {}
};
template <class X, class First, class... Rest>
struct Fragments<X, First, Rest...> {
  const Fragment<X, First> first;
  const Fragments<X, Rest...> rest;

  __device__ explicit Fragments(bool turned) : first(turned), rest(turned) {}
  template <class Use>
  __device__ void each(Use use, int number = 0, Address offset = 0) const {
    use(first, number, offset);
    rest.each(use, number + 1, offset + first.bytes);
  }
};

// The parts of a warpgroup, one after the other: of D, and of every matrix beside it.
template <class X, class Matrices = typename X::Matrices>
struct Parts;

template <class X, class... T>
struct Parts<X, Dtypes<T...>> {
  static constexpr int count = sizeof...(T), rows = count ? count : 1;
  using Given = ParametersWith<X::Epilogue::operands>;
  using Number = typename X::Number;
  using Numbers = Number[rows][kUnit];  // of a unit, of each matrix

  const Given& p;
  const SharedMemory<X>& shared;
  const int warpgroup;
  const bool leads;
  const Fragment<X, typename X::D> d;
  const Fragments<X, T...> beside;
  Ends<X::grouped> ends;
  Address buffer = 0;
  uint32_t begun = 0, requested = 0;  // parts

  __device__ Parts(const Given& p, const SharedMemory<X>& shared, int warpgroup)
      : p(p),
        shared(shared),
        warpgroup(warpgroup),
        leads(threadIdx.x % 128 == 0),
        d(p.turned),
        beside(p.turned),
        ends(p) {}

  // What is read for a part that is to come: no more than one before it begins.
  __device__ void request(const PartPlace& at) {
    if constexpr (X::reads && !X::direct) {
      const int i = int(requested++ % X::buffers);
      if (!leads) return;
      const Address arrived = shared.arrived(warpgroup, i), to = shared.buffer(warpgroup, i) + d.bytes;
      int bytes = 0;
      each_read([&](const auto& fragment, int, Address) { bytes += fragment.bytes; });
      arrive_expecting(arrived, bytes);
      each_read([&](const auto& fragment, int number, Address offset) {
        const Operand& matrix = p.operand[number];
        fragment.boxes(to + offset, at, [&](Address box, int x, int y) {
          load(box, matrix.map, arrived, x, y, at.batch * matrix.batched);
        });
      });
    }
  }

  // The next part: what is read for it has come. `next` is requested, where there is one.
  __device__ void begin(const PartPlace& at, const PartPlace& next, bool there_is_next) {
    if (there_is_next) request(next);
    const uint32_t i = begun++;
    buffer = shared.buffer(warpgroup, int(i % X::buffers));
    if constexpr (X::reads && X::direct) {
      each_read([&](const auto& fragment, int number, Address offset) {
        fragment.template copy_by_threads<false>(buffer + d.bytes + offset, p.operand[number], at, ends.m(), ends.n());
      });
      named_barrier(1 + warpgroup);
    } else if constexpr (X::reads) {
      wait(shared.arrived(warpgroup, int(i % X::buffers)), i / X::buffers % 2);
    }
  }

  // A unit of what was read; 0 of a matrix that is not there.
  __device__ void get(Numbers& x, int column) const {
    beside.each([&](const auto& fragment, int number, Address offset) {
      if (number >= X::reads) return;
#pragma unroll
      for (Number& each : x[number]) each = 0;
      if (p.operand[number].data) fragment.get(buffer + d.bytes + offset, x[number], column);
    });
  }
  // From now on the part's buffer may be written: it is not on its way out any more. Where threads store, all have read
  // it before the last part was sent.
  __device__ void claim() const {
    if constexpr (!X::direct) {
      if (leads) wait_for_reads<X::buffers - 1>();
      named_barrier(1 + warpgroup);
    }
  }
  // A unit of D, and of what is written beside it.
  __device__ void put(const Number (&z)[kUnit], const Numbers& x, int column) const {
    d.put(buffer, z, column);
    beside.each([&](const auto& fragment, int number, Address offset) {
      if (number >= X::reads) fragment.put(buffer + d.bytes + offset, x[number], column);
    });
  }

  // The part is whole.
  __device__ void send(const PartPlace& at) const {
    if constexpr (!X::direct) publish_to_copies();
    named_barrier(1 + warpgroup);
    send(d, p.d, buffer, at);
    beside.each([&](const auto& fragment, int number, Address offset) {
      if (number >= X::reads) send(fragment, p.operand[number], buffer + d.bytes + offset, at);
    });
    if (!X::direct && leads) commit_stores();
  }

  __device__ void finish() const {
    if (!X::direct && leads) wait_for_reads<0>();  // shared memory goes with the block
  }

 private:
  // Behind the end of a group lies the next one, which boxes would reach. And they begin at whole granules of a line.
  __device__ bool leaves_by_threads(const PartPlace& at) const {
    const int along = p.turned ? at.m : at.n;
    return at.m + 64 > ends.m() || at.n + X::columns > ends.n() || along * d.size % kGranule;
  }

  template <class Use>
  __device__ void each_read(Use use) const {
    beside.each([&](const auto& fragment, int number, Address offset) {
      if (number < X::reads && p.operand[number].data) use(fragment, number, offset);
    });
  }

  template <class Lies>
  __device__ void send(const Lies& fragment, const Operand& matrix, Address from, const PartPlace& at) const {
    if (X::direct || (X::grouped && leaves_by_threads(at))) {
      fragment.template copy_by_threads<true>(from, matrix, at, ends.m(), ends.n());
    } else if (leads) {
      fragment.boxes(from, at,
                     [&](Address box, int x, int y) { store(matrix.map, box, x, y, at.batch * matrix.batched); });
    }
  }
};

}  // namespace cutlass_py::sm90
