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
    const auto [left, right] = descriptors(rows, stage);
#pragma unroll
    for (int i = 0; i < X::lines; ++i) {
      X::Product::multiply(sums, left + i * X::left_line / 16, right + i * X::right_line / 16, adds | i);
    }
  }
  // Those of its first slabs.
  __device__ void slabs(Sums& sums, int rows, int stage, bool adds, int count) const {
    const auto [left, right] = descriptors(rows, stage);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      X::Product::multiply_slab(sums, left + i * next_bytes<X::left_along, 64>(),
                                right + i * next_bytes<X::right_along, X::panel>(), adds | i);
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
    const auto queue = [&](bool first, auto products) {
      begin_products();
#pragma unroll
      for (int rows = 0; rows < X::blocks; ++rows) products(sums[rows], rows);
      commit_products();
      wait_for_products<1>();
      if (!first) release(before);
      before = at.stage;
    };
    const int whole = X::deep ? within.end / X::line : steps.end;
#pragma unroll 1  // its products are most of what a kernel takes to compile
    for (int step = steps.begin; step < whole; ++step, at.advance()) {
      wait(shared.full(at.stage), at.parity);
      // Threads have written what products read; to say so themselves they would wait for copies on their way.
      if constexpr (X::unaligned) publish_to_copies();
      if constexpr (X::deep && !X::left_along) {
        if (step == 0) keep_group(at.stage, within, step);
      }
      const bool first = step == steps.begin;
      queue(first, [&](Sums& block, int rows) { stage(block, rows, at.stage, X::grouped || !first); });
    }
    if constexpr (X::deep) {
      if (whole < steps.end) {
        wait(shared.full(at.stage), at.parity);
        const int count = keep_group(at.stage, within, whole);
        queue(whole == 0, [&](Sums& block, int rows) { slabs(block, rows, at.stage, true, count); });
        at.advance();
      }
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
    } else if constexpr (X::deep) {
      // Lines that another group has a part of are on their own.
      const int begin = min(int(within.begin > 0), steps.end), end = max(within.end / X::line, begin);
      if (begin) part_of_line(sums, at, within, 0, factors);
      by_parts(sums, at, {begin, end}, factors);
      if (end < steps.end) part_of_line(sums, at, within, end, factors);
    } else {
      by_parts(sums, at, steps, factors);
    }
    done();
  }

 private:
  struct Descriptors {
    uint64_t left, right;
  };
  __device__ Descriptors descriptors(int rows, int stage) const {
    return {descriptor<X::left_along, 64>(shared.left(stage) + (first_row / 64 + rows) * block),
            descriptor<X::right_along, X::panel>(shared.right(stage))};
  }

  // How many slabs of a stage, or other units of it, are a group's of k. What others have of these, in front of it and
  // behind, becomes zeros: by all threads of a warpgroup, of what it reads.
  template <int unit = kSlab>
  __device__ int keep_group(int stage, const Within& within, int step) const {
    static_assert(unit == kSlab || !(X::left_along || X::right_along), "a thread clears one granule of a panel");
    constexpr int size = kLine / X::line;
    const int begin = max((within.begin - step * X::line) * size, 0);
    const int end = min((within.end - step * X::line) * size, kLine), count = (end + unit - 1) / unit;
    if (begin || end % unit) {
      clear_others<X::left_along, X::rows>(shared.left(stage) + first_row / 64 * block, begin, end, count * unit);
      clear_others<X::right_along, X::N>(shared.right(stage), begin, end, count * unit);
      publish_to_copies();
      named_barrier(warp_index() / 4);
    }
    return count;
  }

  // Of an operand that is read along its rows, where groups begin with a stage: of each panel the lines up to `stop`,
  // however they are swizzled within.
  template <bool along, int extent>
  static __device__ void clear_others(Address operand, int begin, int end, int stop) {
    if constexpr (!along) return clear_row_ends<extent>(operand, begin, end, stop);
    constexpr int panel = panel_of(extent), row = panel * 2;
    static_assert(kSlab / 2 * row <= 128 * kGranule);
    const int at = end / 2 * row + int(threadIdx.x) % 128 * kGranule;
    if (at >= stop / 2 * row) return;
#pragma unroll
    for (int i = 0; i < extent / panel; ++i) store_shared(operand + i * X::line * row + at, {0.f, 0.f, 0.f, 0.f});
  }
  // Of one that is read along k: of each row the first bytes, less than a granule, and from the end on to the next
  // granule one by one, then by granules.
  template <int extent>
  static __device__ void clear_row_ends(Address operand, int begin, int end, int stop) {
#pragma unroll 1
    for (int row = int(threadIdx.x) % 128; row < extent; row += 128) {
      const auto at = [&](int byte) { return operand + swapped<kLine>(row, byte); };
      for (int byte = 0; byte < begin; ++byte) store_shared(at(byte), uint8_t(0));
      int byte = end;
      for (; byte % kGranule; ++byte) store_shared(at(byte), uint8_t(0));
      for (; byte < stop; byte += kGranule) store_shared(at(byte), {0.f, 0.f, 0.f, 0.f});
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

  // Of a line the slabs that are a group's.
  __device__ void part_of_line(Sums (&sums)[X::blocks], Pipeline<X>& at, const Within& within, int line,
                               const Factors<X>& factors) const {
    wait(shared.full(at.stage), at.parity);
    const int count = keep_group(at.stage, within, line);
    Sums part;
#pragma unroll
    for (int rows = 0; rows < X::blocks; ++rows) {
      begin_products();
      slabs(part, rows, at.stage, false, count);
      commit_products();
      X::Product::wait(part);
      add(part, sums[rows], factors.read(rows, at.stage), rows == X::blocks - 1, at.stage);
    }
    at.advance();
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
      if constexpr (X::deep) keep_group<kLine>(at.stage, within, step);  // for slabs there are no registers
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
