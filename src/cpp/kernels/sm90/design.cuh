// A kernel's shape: its tile, its cluster and its stages, and what lies where in shared memory.
//
// What wgmma takes as A is the left operand here, what it takes as B the right one; gemm.cuh says which is whose, for
// the two may change places. `left_along`, `right_along`: read along rows, or columns, and not along k.
#pragma once

#include "kernels/sm90/wgmma.cuh"

namespace cutlass_py::sm90 {

constexpr int kMostShared = 227 << 10;  // bytes of a block

constexpr int kMostStages = 12;
constexpr int kWarpgroups = 2;  // that multiply, beside one of which a thread loads
constexpr int kThreads = 128 * (kWarpgroups + 1);
constexpr int kGranule = 16;      // bytes that a thread copies of an operand at once
constexpr int kLoadingWarps = 4;  // where threads load the operands
constexpr int kCopying = 96;      // that copy factors: the warps beside the one of the thread that loads
constexpr int kLoaderRegisters = 40, kRegisters = 232;  // of a thread: together what a multiprocessor has

// How wide a part of a tile is finished at once, by the bytes of an element of D: whole panels, in 128 bytes or little
// more. Narrow ones leave room for matrices beside D; and of a tile whose k is split the blocks finish a part each.
// Parts do not have to divide a tile: the last one begins before the one in front of it ends, and stores the same once
// more, if all of them take no more than a quarter over what there is (docs/performance/epilogues.md). Not where a
// matrix is read, which D may be stored over, and not where columns are summed (`reduces`), which would count twice.
__host__ __device__ constexpr int part_columns(int columns, int size, bool narrow, bool reduces) {
  const int panel = panel_of(columns), line = narrow ? 32 : kLine / size, most = line > 32 ? 112 : panel;
  if (columns % line == 0) return line;
  const int even = line < 64 ? line : 64, parts = (columns + even - 1) / even;
  if (columns > even && 4 * parts * even <= 5 * columns && !narrow && !reduces) return even;
  int part = panel;
  for (int width = panel; width <= most; width += panel) {
    if (columns % width == 0) part = width;
  }
  return part;
}
// And how wide the panels are in which the elements of such a part lie: 128 bytes at most. Turned, they are as wide as
// its 64 rows at most.
__host__ __device__ constexpr int part_panel(int part, int size) {
  int panel = kLine / size;
  while (part % panel) panel /= 2;
  return panel;
}
__host__ __device__ constexpr int turned_panel(int size) { return part_panel(64, size); }

// Of x, not above `most`.
__host__ __device__ constexpr int largest_divisor(int x, int most) {
  while (x % most) --most;
  return most;
}

// Dtypes of matrices that lie as D does.
template <class... T>
struct Dtypes {
  static constexpr int bytes = (0 + ... + int(sizeof(typename T::Type)));
};

// What an epilogue takes beside D, matrices first; the host always has room for most of them.
constexpr int kMostOperands = 16;
enum class Reduces : int { none, rows, columns };  // leaves a value for each row of D, or for each column
struct Beside {
  int index;  // in the table of a user's epilogue; or one of these
  int size;   // bytes of a matrix's element; 0 of all else
  Reduces reduces = Reduces::none;

  // C, the gate or aux; sums of D's columns. And where gates and values make pairs, the half with the values: of aux,
  // of D, of B.
  static constexpr int like_d = -1, column_sums = -2, aux_values = -3, d_values = -4, b_values = -5;
};

// What it reduces (reductions.cuh), and how one of them joins values, which of the epilogue's results it takes, where
// its operand is, and what it leaves.
template <class Join_, int result_, int operand_, Reduces reduces_>
struct Reduction {
  using Join = Join_;
  static constexpr int result = result_, operand = operand_;
  static constexpr Reduces reduces = reduces_;
};
template <class... R>
struct Reductions {
  static constexpr int count = sizeof...(R);
};

// Slices of k: none; one for each block of a cluster; all of a tile in one block, one after the other.
enum class Slices { none, by_block, serial };

// What groups divide, where a product is of many: rows of the left operand or columns of the right one; or k.
enum class Grouping { none, lines, depth };

// The operand whose lines are gates and values, of which two make one of D: a tile has as many of these as of those.
enum class Pairs { none, left, right };

// What the host has to know of a kernel to launch it; plain, for a cubin says it of itself.
struct Shape {
  int m, n, lines;  // of a block's tile of D; of k in a stage
  int cluster_m, cluster_n;
  int size, d_size;  // bytes of an element: of either operand, of D
  bool direct, unaligned, left_along, right_along;
  bool tf32;    // operands are rounded to it as they are loaded
  int columns;  // of a part
  int shared_bytes;
  int operands;  // of the epilogue
  Beside beside[kMostOperands];
  int slices;   // of k
  bool serial;  // one block has all of them
  Grouping grouping;
  bool swap;  // the left operand is B, the right one A, and D is turned

  int blocks_of_tile() const { return serial ? 1 : slices; }
  int cluster() const { return cluster_m * cluster_n * blocks_of_tile(); }
  int line() const { return kLine / size; }
};

template <class Left_, class Right_, class Sum_, class D_, int m, int n, int lines_, int cluster_m_, int cluster_n_,
          bool pingpong_, bool promoted_, bool direct_, bool unaligned_, int left_group_, int right_group_,
          bool left_along_, bool right_along_, Slices slices_, class Epilogue_, Grouping grouping_ = Grouping::none,
          Pairs pairs_ = Pairs::none>
struct Design {
  using Left = Left_;
  using Right = Right_;
  using Sum = Sum_;
  using D = D_;
  using Epilogue = Epilogue_;
  static constexpr int M = m, N = n;
  static constexpr int lines = lines_;  // of k in a stage
  static constexpr int cluster_m = cluster_m_, cluster_n = cluster_n_, cluster = cluster_m * cluster_n;
  static constexpr bool pingpong = pingpong_;  // warpgroups have a tile each, and take turns; or half of one
  static constexpr bool promoted = promoted_;  // sums leave the tensor cores after every line of k
  // Rows of the left operand, and columns of the right one, that share a factor for every line of k; 0 without factors.
  static constexpr int left_group = left_group_, right_group = right_group_;
  static constexpr bool direct = direct_;        // D and what lies like it goes by elements: it may lie anywhere
  static constexpr bool unaligned = unaligned_;  // threads load the operands: their lines may begin anywhere
  static constexpr bool left_along = left_along_, right_along = right_along_;

  // Of one tile's k; told at run time how many there are.
  static constexpr bool split = slices_ == Slices::by_block, serial = slices_ == Slices::serial;

  static constexpr Grouping grouping = grouping_;
  static constexpr bool grouped = grouping != Grouping::none, deep = grouping == Grouping::depth;

  // A tile's gates come first, and its values behind them.
  static constexpr Pairs pairs = pairs_;
  static constexpr bool paired = pairs != Pairs::none;

  static constexpr int line = kLine / int(sizeof(typename Left::Type));  // elements of k
  static constexpr int rows = pingpong ? M : M / kWarpgroups;            // of a warpgroup
  static constexpr int blocks = rows / 64;
  // Of D, in a tile.
  static constexpr int d_rows = pairs == Pairs::left ? M / 2 : M, d_columns = pairs == Pairs::right ? N / 2 : N;
  static constexpr int d_blocks = pairs == Pairs::left ? blocks / 2 : blocks;  // of a warpgroup
  static constexpr int panel = panel_of(N);
  static constexpr int left_line = M * kLine, right_line = N * kLine;  // bytes
  static constexpr int stage_bytes = lines * (left_line + right_line);

  static constexpr int d_size = int(sizeof(typename D::Type));
  static constexpr bool beside_d = Epilogue::Matrices::bytes > 0, reduces = Epilogue::Reductions::count > 0;
  static constexpr int columns = part_columns(d_columns, d_size, split || beside_d, reduces);  // of a part
  static constexpr int in_row = (d_columns + columns - 1) / columns, parts = d_blocks * in_row;
  static __host__ __device__ constexpr int first_column(int part) {
    return part % in_row * columns < d_columns - columns ? part % in_row * columns : d_columns - columns;
  }
  using Matrices = typename Epilogue::Matrices;  // first those that are read
  static constexpr int reads = Epilogue::reads;
  static constexpr int widest = part_columns(d_columns, d_size, beside_d, reduces);
  // A warpgroup has a part in the making and one on its way out; of what is read, one that is used and one to come. A
  // part that is all of its tile leaves while the next tile is multiplied, and takes one buffer: the rest is for
  // stages.
  static constexpr int widest_buffers = d_blocks == 1 && widest == d_columns && !beside_d && !direct ? 1 : 2;
  static constexpr int buffers_bytes = widest_buffers * 64 * widest * (d_size + Matrices::bytes);  // of a warpgroup
  static constexpr int buffer_bytes = 64 * (split ? columns : widest) * (d_size + Matrices::bytes);
  static constexpr int buffers = buffers_bytes < 2 * buffer_bytes ? 1 : 2;

  // What finishes a tile is written out for so many units of a part, which are finished side by side: as many as the
  // epilogue finds registers for beside the sums of a thread. The last group begins before the one in front of it ends
  // where that saves one; not where sums are taken, which would count twice.
  static constexpr int held = rows * N / 128;  // sums of a thread
  static constexpr int units = columns / 16, most_straight = Epilogue::most_straight(held);
  static __host__ __device__ constexpr int groups(int in_group) { return (units + in_group - 1) / in_group; }
  static constexpr int straight =
      reduces ? largest_divisor(units, most_straight) : (units + groups(most_straight) - 1) / groups(most_straight);
  static __host__ __device__ constexpr int first_unit(int group, int in_group) {
    return group * in_group < units - in_group ? group * in_group : units - in_group;
  }

  static constexpr int totals_bytes = Epilogue::Reductions::count * 4 * widest * 4;  // of columns, by each warp

  // Of each line of numbers one for every column of a tile, then one for every row of a warpgroup.
  static constexpr int vector_bytes = (N + rows) * 4, vectors_bytes = Epilogue::Lines::count * vector_bytes;

  // Factors of a stage: of each column of the tile or one of all, of each row or one of those of a warpgroup.
  static constexpr bool has_factors = left_group > 0;
  static constexpr int left_factors = !has_factors ? 0 : left_group % rows ? M : M / rows;
  static constexpr int right_factors = !has_factors ? 0 : right_group % N ? N : 1;
  static constexpr bool by_column = right_factors > 1;
  static constexpr int factors_bytes = (left_factors + right_factors + 3) / 4 * 16;

  // Where threads load: a stage's granules as they come, one more than it fills of each line of an operand, however it
  // lies.
  static constexpr int raw_left_bytes = lines * left_line + (M > lines * 64 ? M : lines * 64) * kGranule;
  static constexpr int raw_right_bytes = lines * right_line + (N > lines * 64 ? N : lines * 64) * kGranule;
  static constexpr int raw_bytes = unaligned ? raw_left_bytes + raw_right_bytes : 0;

  // Of groups of lines the warp that loads finds the tiles, and tells those that multiply, so many ahead: of each a
  // place, and two barriers.
  static constexpr int told = grouping == Grouping::lines ? 2 * kWarpgroups : 0;

  // Stages are what the rest leaves room for, each with its two barriers.
  static constexpr int besides =
      kWarpgroups * (buffers_bytes + widest_buffers * 8 + totals_bytes + vectors_bytes + 8) + told * (16 + 2 * 8);
  static constexpr int fitting = (kMostShared - besides) / (stage_bytes + factors_bytes + raw_bytes + 16);
  static constexpr int stages = fitting < kMostStages ? fitting : kMostStages;
  static constexpr int shared_bytes = besides + stages * (stage_bytes + factors_bytes + raw_bytes + 16);

  static constexpr Shape shape(bool swap, int slices) {
    Shape x{};
    x.m = d_rows, x.n = d_columns, x.lines = lines;
    x.cluster_m = cluster_m, x.cluster_n = cluster_n;
    x.size = int(sizeof(typename Left::Type)), x.d_size = d_size;
    x.direct = direct, x.unaligned = unaligned, x.left_along = left_along, x.right_along = right_along;
    x.tf32 = std::is_same_v<Left, numbers::Tf32>;
    x.columns = columns, x.shared_bytes = shared_bytes;
    x.operands = Epilogue::operands;
    for (int i = 0; i < x.operands; ++i) x.beside[i] = Epilogue::beside[i];
    x.slices = slices, x.serial = serial, x.swap = swap;
    x.grouping = grouping;
    return x;
  }

  using Number = typename Epilogue::Number;  // what an epilogue computes in
  using Register = typename Sum::Register;
  static constexpr int registers = Sum::registers(N);  // of a thread for 64 rows
  using Product = Wgmma<Left, Right, Sum, N, left_along, right_along>;

  static_assert(Epilogue::operands <= kMostOperands);
  static_assert(promoted || !left_group);
  static_assert(!unaligned || (cluster == 1 && !promoted));
  static_assert(!grouped || (!unaligned && !direct && slices_ == Slices::none && !reduces));
  static_assert(!deep || (!left_group && lines == 1), "lines of k would be of two groups");
  // Both halves of what makes a part are one warpgroup's, and lie in shared memory as operands of their size do.
  static_assert(pairs != Pairs::left || (pingpong && M == 128));
  static_assert(pairs != Pairs::right || panel_of(d_columns) == panel);
  static_assert(!paired || (!left_group && !unaligned && !direct && !reduces && slices_ == Slices::none));
  static_assert(2 % lines == 0, "slices begin at every other line");
  static_assert(!serial || (!promoted && !unaligned && std::is_same_v<Register, float>));
  static_assert(!split || (cluster == 1 && M * N * 4 <= stages * stage_bytes && std::is_same_v<Register, float>));
  // What is stored as s32 is exact throughout.
  static_assert(!std::is_same_v<D, numbers::S32> ||
                (std::is_same_v<Number, int32_t> && std::is_same_v<Register, int32_t>));
  static_assert(stage_bytes % kAtom == 0 && left_line % kAtom == 0 && buffer_bytes % kAtom == 0 &&
                vector_bytes % 16 == 0);
  static_assert(rows % 64 == 0 && N % 16 == 0 && N <= 256 && stages > 1);
  static_assert(sizeof(typename Left::Type) == sizeof(typename Right::Type));
  static_assert(sizeof(typename Left::Type) == 2 || !(left_along || right_along));
  // What a block loads of an operand for others is whole atoms of eight.
  static_assert(M / cluster_n % 8 == 0 && N / cluster_m % 8 == 0 && 64 / cluster_n % 8 == 0 && 64 / cluster_m % 8 == 0);
};

template <class X>
struct SharedMemory {
  Address stages, buffers, totals, vectors, factors, granules, places, barriers;

  __device__ explicit SharedMemory(Address begin)  // aligned to an atom, as stages are
      : stages(begin),
        buffers(stages + X::stages * X::stage_bytes),
        totals(buffers + kWarpgroups * X::buffers_bytes),
        vectors(totals + kWarpgroups * X::totals_bytes),
        factors(vectors + kWarpgroups * X::vectors_bytes),
        granules(factors + X::stages * X::factors_bytes),
        places(granules + X::stages * X::raw_bytes),
        barriers(places + X::told * 16) {}

  __device__ Address left(int stage) const { return stages + stage * X::stage_bytes; }
  __device__ Address right(int stage) const { return left(stage) + X::lines * X::left_line; }
  __device__ Address buffer(int warpgroup, int i) const {
    return buffers + warpgroup * X::buffers_bytes + i * X::buffer_bytes;
  }
  __device__ Address vectors_of(int warpgroup) const { return vectors + warpgroup * X::vectors_bytes; }
  __device__ Address factors_of(int stage) const { return factors + stage * X::factors_bytes; }
  __device__ Address raw_left(int stage) const { return granules + stage * X::raw_bytes; }
  __device__ Address raw_right(int stage) const { return raw_left(stage) + X::raw_left_bytes; }
  __device__ Address full(int stage) const { return barriers + stage * 8; }
  __device__ Address empty(int stage) const { return barriers + (X::stages + stage) * 8; }
  __device__ Address turn(int warpgroup) const { return barriers + (2 * X::stages + warpgroup) * 8; }
  __device__ Address arrived(int warpgroup, int i) const {  // what is read for a part
    return barriers + (2 * X::stages + kWarpgroups + warpgroup * X::buffers + i) * 8;
  }
  __device__ Address place(int i) const { return places + i * 16; }  // of a tile
  __device__ Address told(int i) const {
    return barriers + (2 * X::stages + kWarpgroups * (1 + X::widest_buffers) + i) * 8;
  }
  __device__ Address heard(int i) const { return told(X::told + i); }
};

// Which stage comes next, and in which round.
template <class X>
struct Pipeline {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == X::stages) stage = 0, parity ^= 1;
  }
  __device__ void advance(int by) {
    const int at = stage + by;
    parity ^= uint32_t(at / X::stages) & 1;
    stage = at % X::stages;
  }
};

// A block of its cluster: blocks of one row read the same rows of the left operand.
template <class X>
struct Place {
  int rank = 0, m = 0, n = 0;

  __device__ Place() {
    if constexpr (X::split) rank = rank_in_cluster();
    if constexpr (X::cluster > 1) rank = rank_in_cluster(), m = rank % X::cluster_m, n = rank / X::cluster_m;
  }
};

}  // namespace cutlass_py::sm90
