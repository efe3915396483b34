// Executes a canonical call by its plan on a device.
#pragma once

#include <optional>
#include <string>

#include "operations/gemm/problem.h"
#include "runtime/launch.h"

namespace cutlass_py {

// How a problem is computed on a device. Plain data, so that it can be read on a thread without the GIL. Without a
// kernel there is no product (Problem).
struct DevicePlan : LaunchPlan {
  char pack_a = 0, pack_b = 0;  // layout to pack the operand into first, 0 to read it as it lies
  bool pack_scales = false;     // of the rows of A, in blocks: TMA cannot read them as they lie
  Dtype scratch = Dtype::none;  // dtype of a row-major product that the composed epilogue then finishes
  bool sums = false;            // for bias_grad: D is summed behind the kernel, as it was stored
  int splits = 1;               // parts of k whose sums the elementwise kernel joins
};

// Where each piece of scratch begins; so does memory of a caller that has its own.
constexpr size_t kScratchAlignment = 256;
constexpr size_t scratch_aligned(size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}
struct GivenScratch {
  char* data = nullptr;
  size_t bytes = 0;
};

// The package's own library's; throws where there is none.
const CutlassPyElementwise& elementwise();

// Packs what must be packed, launches the kernel, composes the epilogue or sums D: all on `stream`, nothing waits.
// Scratch comes from the stream-ordered pool unless it is given, which lists of matrices do not take.
void run_on_device(const Call& call, const DevicePlan& plan, device::Stream stream,
                   const GivenScratch* given = nullptr);

// What run_on_device hands to the kernel for the call, where that is all it does: one launch, and no scratch. Asks the
// kernel, so the device has to be there.
std::optional<CutlassPyGemm> single_launch(const Call& call, const DevicePlan& plan);

// Bytes of scratch that run_on_device takes for the call, which is no list. Nothing is launched, no address followed.
size_t scratch_bytes(const Call& call, const DevicePlan& plan);

// What a kernel of this operation says of itself.
inline const CutlassPyGemmFacts& facts_of(const CutlassPyKernel& kernel) {
  return *static_cast<const CutlassPyGemmFacts*>(kernel.facts);
}

// Nothing to compute. Sums over no rows are zeros, which have to be written.
inline bool nothing_to_do(const Problem& p) {
  return (p.m == 0 || p.n == 0 || p.batch == 0) && p.bias_grad == Dtype::none;
}

// What computes a call, as ranges of a profile name it: the kernel, or none and the epilogue alone, and the extents.
std::string kernel_of(const DevicePlan& plan);
std::string range_name(const Problem& problem, std::string kernel);

// Moves the matrices of a call to another run of its loop, or back (`sign` is -1).
inline void move(Call& call, const Shift& shift, int64_t sign) {
  each_array(call, [&](Role role, CutlassPyArray& x) {
    if (x.data) x.data = static_cast<char*>(x.data) + sign * shift[role];
  });
}

// Every run of a call: one, but for batches that no single stride describes. After an exception the call is lost.
template <class Run>
void run_all(Call& call, Run run) {
  if (call.loop.empty()) return run();
  for (const Shift& shift : call.loop) {
    move(call, shift, 1);
    run();
    move(call, shift, -1);
  }
}

}  // namespace cutlass_py
