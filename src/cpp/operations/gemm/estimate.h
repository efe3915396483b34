// What a wgmma kernel takes for a product, estimated: one formula, whose constants are fitted to measured problems, and
// trees that were grown on what it leaves (docs/performance/choice.md has how near their choices come to the best).
//
// A multiprocessor takes a tile after the other, each bound by the tensor cores or by what it loads; a last wave that
// is not full costs a whole one. What comes from memory adds to that: the operands once, and again as often as the
// order of tiles finds them gone from the L2 cache.
#pragma once

#include <array>
#include <limits>
#include <vector>

#include "operations/gemm/trees.h"

namespace cutlass_py {

// Times are in microseconds, bytes and operations by the microsecond; of those in LOG the logarithm is fitted. Sums
// that leave the tensor cores, or take factors on the way, have constants of their own.
#define CUTLASS_PY_ESTIMATE_CONSTANTS(X, LOG)                                                                  \
  LOG(launch)         /* of an empty product */                                                                \
  LOG(fill)           /* until the first stage is there */                                                     \
  X(meet)             /* how much longer that takes in a cluster */                                            \
  LOG(rate)           /* operations of a multiprocessor on operands of 16 bits; others by their size */        \
  LOG(narrow)         /* columns by which a tile is wider for the tensor cores */                              \
  LOG(low)            /* how much longer a tile of 64 rows takes for its operations */                         \
  X(turns)            /* how much longer, where warpgroups add up what they multiply by turns */               \
  X(columns)          /* and where each column has a factor of its own */                                      \
  X(turned32)         /* how much longer, where the right operand is read along its columns in panels of 32 */ \
  X(turned16)         /* or of 16 */                                                                           \
  LOG(step)           /* the least for 128 bytes of k */                                                       \
  LOG(load)           /* bytes that a multiprocessor loads */                                                  \
  LOG(unaligned_line) /* what threads take that load a line of k of a tile */                                  \
  LOG(unaligned_row)  /* and of each of its rows and columns */                                                \
  X(unaligned_side)   /* how much longer that takes, where an operand is read along them */                    \
  LOG(beside)         /* multiplying and loading hide each other the better the larger it is */                \
  X(lines64)          /* how much longer it takes to load lines of 128 bytes that begin at 64 */               \
  X(lines32)          /* or 32: on top of that */                                                              \
  X(lines16)          /* or 16 */                                                                              \
  X(panels32)         /* or of panels of 32 columns */                                                         \
  X(panels16)         /* or of 16 */                                                                           \
  X(outside)          /* what a byte outside of an operand costs, beside one that is loaded */                 \
  X(outside_along)    /* likewise, where it is read along its rows or columns */                               \
  X(last)             /* how much longer the last of several waves takes, by the part of it that is idle */    \
  LOG(store)          /* bytes that a multiprocessor stores, and reads beside D */                             \
  X(stored32)         /* how much longer that takes, where D goes in panels of 32 columns */                   \
  X(stored16)         /* or of 16 */                                                                           \
  LOG(direct)         /* a share of that: element by element */                                                \
  X(finish)           /* an instruction for each element of a tile of 128x256, by two warpgroups */            \
  LOG(series)         /* from one slice to the next, where a block has all of them */                          \
  LOG(join)           /* for the blocks of a cluster to meet and join their sums */                            \
  LOG(joined)         /* bytes of sums that a block joins */                                                   \
  LOG(memory)         /* bytes that come from memory */                                                        \
  X(paired)           /* by how much less, where all multiprocessors ask for them */                           \
  LOG(alone)          /* what one of them gets of it */                                                        \
  LOG(kept)           /* bytes that the L2 cache keeps half of */                                              \
  LOG(again)          /* what a byte costs that comes once more, beside one that comes first */                \
  X(near)             /* a million bytes that eight neighbouring multiprocessors read for each of them */

struct EstimateConstants {
#define CUTLASS_PY_CONSTANT(name) double name;
  CUTLASS_PY_ESTIMATE_CONSTANTS(CUTLASS_PY_CONSTANT, CUTLASS_PY_CONSTANT)
#undef CUTLASS_PY_CONSTANT
};
constexpr int kEstimateConstants = int(sizeof(EstimateConstants) / sizeof(double));

// From what is fitted, in their order.
EstimateConstants constants_of(const double* fitted);

// What the formula knows of a kernel. `left_along`, `right_along` as in kernels/sm90/design.cuh.
struct EstimatedDesign {
  int m, n, k, cluster_m, cluster_n, slices;
  bool serial;  // one block has all slices, instead of the blocks of a cluster one each
  bool swap, pingpong, turns, by_column, left_along, right_along, direct, unaligned;
  int size;          // bytes of an element of either operand
  int d_size;        // of D, and what is read or written as D is
  int part;          // columns that are stored at once; the last ones may be stored twice
  int instructions;  // of the epilogue, for an element
};

struct WgmmaDesigns {
  std::vector<EstimatedDesign> each;
};

struct EstimatedOrder {
  bool along_m;  // of the kernel's rows
  int band;
};

// Those that tell a kernel's tiles apart: one where there is a single row or column of them.
std::vector<EstimatedOrder> orders_of(const EstimatedDesign& x, double m, double n);

struct Estimate {
  double microseconds;
  EstimatedOrder order;
};

using Clusters = std::array<int, 9>;  // by their size, how many a device runs at once

// What is known of a GPU, for kernels that sum in one way.
struct WgmmaEstimates {
  EstimateConstants constants;
  Clusters clusters;
  Trees residual;  // logarithm of time over the formula's
};

// Of the residual: what follows from few problems goes no further.
constexpr double kMostResidual = 0.1;

// By the formula alone.
double estimate(const WgmmaEstimates& model, double m, double n, double k, double batch, const EstimatedDesign& x,
                EstimatedOrder order);

// In one order, with the residual.
double full_estimate(const WgmmaEstimates& model, double m, double n, double k, double batch, const EstimatedDesign& x,
                     EstimatedOrder order);

// What the trees are grown on, by its names: tile and cluster, how the operand's rows and tiles come out, the formula.
std::vector<const char*> feature_names();
std::vector<float> features(const WgmmaEstimates& model, double m, double n, double k, double batch,
                            const EstimatedDesign& x, double microseconds);
double residual(const WgmmaEstimates& model, double m, double n, double k, double batch, const EstimatedDesign& x,
                double microseconds);

// In the best of its orders by the formula, and with the residual. Where it is not below a time, whatever its order: no
// more than it takes.
Estimate best_estimate(const WgmmaEstimates& model, double m, double n, double k, double batch,
                       const EstimatedDesign& x, double below = std::numeric_limits<double>::infinity());

}  // namespace cutlass_py
