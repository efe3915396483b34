// What a kernel without wgmma takes: waves of tiles, as many at once as are resident; or memory, if that takes longer.
#pragma once

#include <cstdint>

#include "operations/gemm/problem.h"

namespace cutlass_py {

// What the formula knows of a kernel on some GPU (tiled_estimate.py makes it of a calibration's constants). Times are
// in microseconds.
struct TiledDesign {
  int m, n, k;
  int resident;      // tiles that fit on a multiprocessor at once
  bool stream_k;     // the steps of all tiles are dealt out
  int size, d_size;  // bytes of an element of A and B; of D, and what is read or written as D is
  double step;       // of k of one tile, beside others of a multiprocessor
  double alone;      // the least that a step takes, of however few
  double fill;       // of each wave: its pipelines, and its epilogue
  double join;       // parts of a tile that was dealt out, in steps
  double fixed;      // of any product: its launch,
  double deal;       // and of stream-K its workspace
  double memory;     // bytes that come in a microsecond
  int sm_count;

  // Of so many products of a size.
  double microseconds(int64_t rows, int64_t columns, int64_t length, int64_t batch) const;
  // As a problem's, each of this length of k.
  double microseconds(const Problem& p, int64_t length, int64_t batch) const {
    return microseconds(p.m, p.n, length, batch);
  }
};

}  // namespace cutlass_py
