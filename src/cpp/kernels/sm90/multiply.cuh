// Multiplying: a warpgroup's sums of a tile, stage by stage.
//
// Sums of fp8 in f32 are promoted: those of the tensor cores hold about 14 bits, so that after every line of k they are
// added up by ordinary instructions, while other products run.
#pragma once

#include "kernels/sm90/factors.cuh"
#include "kernels/sm90/load.cuh"

namespace cutlass_py::sm90 {

// Tells all blocks that load into a stage that this one has no more use for it.
template <class X>
struct Release {
  static constexpr int sharing = X::cluster_m + X::cluster_n - 1;  // blocks of the row and of the column
  static constexpr int warps = X::pingpong ? 4 : 8;
  const SharedMemory<X>& shared;
  const int lane;
  int rank;  // that this lane tells

  __device__ Release(const SharedMemory<X>& shared, const Place<X>& place)
      : shared(shared), lane(int(threadIdx.x) % 32) {
    const int other = lane - X::cluster_n;
    rank = lane < X::cluster_n ? place.m + lane * X::cluster_m : other + (other >= place.m) + place.n * X::cluster_m;
  }
  __device__ void operator()(int stage) const {
    if (lane >= sharing) return;
    if constexpr (X::cluster > 1) {
      arrive(shared.empty(stage), rank);
    } else {
      arrive(shared.empty(stage));
    }
  }
};

// A warpgroup's rows of a tile.
template <class X>
struct Multiply {
  using Sums = typename X::Register[X::registers];                        // of 64 rows
  static constexpr int block = X::left_along ? 64 * 64 * 2 : 64 * kLine;  // bytes of 64 rows

  const SharedMemory<X>& shared;
  const Release<X>& release;
  const int first_row;

  // A stage's products for 64 rows; the first line begins anew where nothing is to be added to.
  __device__ void stage(Sums& sums, int rows, int stage, bool adds) const {
    const uint64_t left = descriptor<X::left_along, 64>(shared.left(stage) + (first_row / 64 + rows) * block);
    const uint64_t right = descriptor<X::right_along, X::panel>(shared.right(stage));
#pragma unroll
    for (int i = 0; i < X::lines; ++i) {
      X::Product::multiply(sums, left + i * X::left_line / 16, right + i * X::right_line / 16, adds | i);
    }
  }

  // `done` is called as soon as no more products are to be queued. `within`: the elements of a group of k.
  template <class Done>
  __device__ void tile(Sums (&sums)[X::blocks], Pipeline<X>& at, const Steps& steps, Done done,
                       const Within& within = {}) const {
    if (X::split && steps.begin == steps.end) return clear(sums);
    // Of groups there may be no step; but sums written on a path of its own have ptxas wait behind every product.
    if constexpr (X::grouped) clear(sums);
    int before = 0;
#pragma unroll 1  // its products are most of what a kernel takes to compile
    for (int step = steps.begin; step < steps.end; ++step, at.advance()) {
      wait(shared.full(at.stage), at.parity);
      // Threads have written what products read; to say so themselves they would wait for copies on their way.
      if constexpr (X::unaligned) publish_to_copies();
      if constexpr (X::grouping == Grouping::depth) keep_group(at.stage, within, step);
      begin_products();
#pragma unroll
      for (int rows = 0; rows < X::blocks; ++rows) {
        stage(sums[rows], rows, at.stage, X::grouped || step != steps.begin);
      }
      commit_products();
      wait_for_products<1>();
      if (step != steps.begin) release(before);
      before = at.stage;
    }
    done();
#pragma unroll
    for (Sums& rows : sums) X::Product::wait(rows);
    if (!X::grouped || steps.begin != steps.end) release(before);
  }

  // All slices of k, one after the other: their sums are added in that order, as blocks do that have a slice each.
  template <class Done>
  __device__ void serial_tile(Sums (&sums)[X::blocks], Pipeline<X>& at, int steps, int each, Done done) const {
    static_assert(2 * X::blocks * X::registers <= 160, "ptxas spills more than that");
    clear(sums);
    Sums slice[X::blocks];
#pragma unroll 1
    for (int begin = 0; begin < steps; begin += each) {
      const int end = min(begin + each, steps);
      tile(slice, at, {begin, end}, [&] {
        if (end == steps) done();
      });
#pragma unroll
      for (int rows = 0; rows < X::blocks; ++rows) {
#pragma unroll
        for (int i = 0; i < X::registers; ++i) sums[rows][i] += slice[rows][i];
      }
    }
  }

  // Sums of one line are held in a part, of 64 rows, and then added, times the factors of that line.
  template <class Done>
  __device__ void promoted_tile(Sums (&sums)[X::blocks], Pipeline<X>& at, const Steps& steps, Done done,
                                const Within& within = {}) const {
    static_assert(X::lines == 1);
    clear(sums);
    const Factors<X> factors{shared, first_row};
    if constexpr (!two_parts) {
      by_turns(sums, at, steps, factors, within);
    } else if constexpr (X::grouping == Grouping::depth) {
      // Lines that another group has a part of are on their own: nothing is in flight while that is zeroed.
      const bool ends_within = within.end % X::line;
      for (int line = 0; line < steps.end;) {
        const bool shared_line = (line == 0 && within.begin) || (line == steps.end - 1 && ends_within);
        const int end = shared_line ? line + 1 : steps.end - ends_within;
        if (shared_line) wait(shared.full(at.stage), at.parity), keep_group(at.stage, within, line);
        by_parts(sums, at, {line, end}, factors);
        line = end;
      }
    } else {
      by_parts(sums, at, steps, factors);
    }
    done();
  }

 private:
  // What a stage holds of the groups of k in front of this one and behind it becomes zeros.
  __device__ void keep_group(int stage, const Within& within, int step) const {
    constexpr int elements = X::lines * X::line;
    const Within here{within.begin - step * elements, within.end - step * elements};
    if (here.begin <= 0 && here.end >= elements) return;
    clear_outside<X::left_along, X::M>(shared.left(stage), here);
    clear_outside<X::right_along, X::N>(shared.right(stage), here);
    publish_to_copies();
    named_barrier(warp_index() / 4);
  }

  // By all threads of a warpgroup. In an operand that is read along its rows, where groups begin with a stage: of each
  // panel of a line what is left of its lines, however they are swizzled within.
  template <bool along, int extent>
  static __device__ void clear_outside(Address operand, const Within& within) {
    if constexpr (!along) return clear_row_ends<extent>(operand, within);
    constexpr int panel = panel_of(extent), row = panel * 2, panels = X::lines * (extent / panel);
    const int of_line = extent / panel;
#pragma unroll 1
    for (int i = 0; i < panels; ++i, operand += X::line * row) {
      const int first = max(within.end - i / of_line * X::line, 0) * row;
      for (int at = first + int(threadIdx.x) % 128 * 16; at < X::line * row; at += 128 * 16) {
        store_shared(operand + at, {0.f, 0.f, 0.f, 0.f});
      }
    }
  }
  // In one that is read along k: of each row of each line the first bytes, less than a granule, and from the end on to
  // the next granule one by one, then by granules.
  template <int extent>
  static __device__ void clear_row_ends(Address operand, const Within& within) {
    constexpr int size = kLine / X::line;
#pragma unroll 1
    for (int i = int(threadIdx.x) % 128; i < X::lines * extent; i += 128) {
      const int row = i % extent, line = i / extent;
      const auto at = [&](int byte) { return operand + line * extent * kLine + swapped<kLine>(row, byte); };
      for (int byte = 0; line == 0 && byte < within.begin * size; ++byte) store_shared(at(byte), uint8_t(0));
      int byte = min(max(within.end - line * X::line, 0), X::line) * size;
      for (; byte % kGranule; ++byte) store_shared(at(byte), uint8_t(0));
      for (; byte < kLine; byte += kGranule) store_shared(at(byte), {0.f, 0.f, 0.f, 0.f});
    }
  }

  static constexpr int kMostRegisters = 192;  // for sums and parts
  // Two warpgroups of 64 rows by few columns are faster by turns (docs/performance/fp8.md).
  static constexpr bool small = !X::pingpong && X::blocks == 1 && X::registers <= 32;
  static constexpr bool two_parts = X::pingpong || ((X::blocks + 2) * X::registers <= kMostRegisters && !small);
  static constexpr int kTurn = 1 + kWarpgroups;  // the first of the named barriers that are used here

  static __device__ void clear(Sums (&sums)[X::blocks]) {
#pragma unroll
    for (Sums& rows : sums) {
#pragma unroll
      for (auto& sum : rows) sum = 0;
    }
  }

  using Line = typename Factors<X>::Line;

  // The last part of a stage sets it free: once it is added, or before, where no factors are read meanwhile.
  __device__ void add(const Sums& part, Sums& sums, const Line& line, bool last, int stage) const {
    if (last && !X::by_column) release(stage);
    Factors<X>::add(part, sums, line);
    if (last && X::by_column) {
      synchronize_warp();
      release(stage);
    }
  }

  // One part is added while the products of the other run.
  __device__ void by_parts(Sums (&sums)[X::blocks], Pipeline<X>& at, const Steps& steps,
                           const Factors<X>& factors) const {
    constexpr int most = 8 / X::blocks, half = most / 2;  // of more, ptxas runs one product after the other
    static_assert(half > 0);
    Sums even, odd;
    // Of two warpgroups of a tile, the second one begins with half as many: not both have nothing in flight at once.
    int line = steps.begin;
    for (bool whole = first_row == 0; line < steps.end; whole = true) {
      if (whole && steps.end - line >= most) {
        join<most>(sums, even, odd, at, line, factors);
      } else if (steps.end - line >= half) {
        join<half>(sums, even, odd, at, line, factors);
      } else {
        join<1>(sums, even, odd, at, line, factors);
      }
    }
  }

  // Nothing is in flight before and after: with products in flight where a loop begins, ptxas runs all of them one
  // after the other.
  template <int steps>
  __device__ void join(Sums (&sums)[X::blocks], Sums& even, Sums& odd, Pipeline<X>& at, int& line,
                       const Factors<X>& factors) const {
    constexpr int count = steps * X::blocks;
    int before = at.stage;
    Line read[2];
#pragma unroll
    for (int i = 0; i <= count; ++i) {
      const int rows = i % X::blocks, now = at.stage;
      if (i < count) {
        if (rows == 0) wait(shared.full(at.stage), at.parity);
        begin_products();
        stage(i % 2 ? odd : even, rows, at.stage, false);
        commit_products();
        read[i % 2] = factors.read(rows, at.stage);
        if (rows == X::blocks - 1) at.advance(), ++line;
      }
      if (i > 0) {
        Sums& part = i % 2 ? even : odd;
        if (i < count) {
          X::Product::template wait_but<1>(part);
        } else {
          X::Product::wait(part);
        }
        add(part, sums[(i - 1) % X::blocks], read[(i + 1) % 2], rows == 0, before);
      }
      before = now;
    }
  }

  // Two warpgroups, of which one adds while the products of the other run.
  __device__ void by_turns(Sums (&sums)[X::blocks], Pipeline<X>& at, const Steps& steps, const Factors<X>& factors,
                           const Within& within) const {
    static_assert(two_parts || !X::pingpong, "warpgroups with a tile each do not wait for each other");
    constexpr int last = X::blocks - 1;
    const int warpgroup = first_row != 0;
    Sums part;
    if (warpgroup == 1 && steps.begin < steps.end) arrive_at_named_barrier(kTurn, 2 * 128);
    for (int step = steps.begin; step < steps.end; ++step, at.advance()) {
      wait(shared.full(at.stage), at.parity);
      if constexpr (X::grouping == Grouping::depth) keep_group(at.stage, within, step);
#pragma unroll
      for (int rows = 0; rows < X::blocks; ++rows) {
        named_barrier(kTurn + warpgroup, 2 * 128);
        begin_products();
        stage(part, rows, at.stage, false);
        commit_products();
        if (warpgroup == 0 || step + 1 < steps.end || rows < last)
          arrive_at_named_barrier(kTurn + 1 - warpgroup, 2 * 128);
        const Line read = factors.read(rows, at.stage);
        X::Product::wait(part);
        add(part, sums[rows], read, rows == last, at.stage);
      }
    }
  }
};

}  // namespace cutlass_py::sm90
