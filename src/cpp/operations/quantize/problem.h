// The canonical problem of quantize: what was asked, reduced to what kernels and selection see. Pure C++, no Python, no
// CUDA.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "abi/kernel.h"
#include "arrays/memory_overlap.h"
#include "operations/quantize/operand_table.h"

namespace cutlass_py::quantization {

// The class of a call: everything that the choice of a plan depends on. Compared and hashed as bytes. Layouts are 't'
// (columns side by side), 'n' (rows side by side) or 'x' (neither).
struct Problem {
  int64_t rows = 1, cols = 0, batch = 1;  // of each matrix, and how many there are
  Dtype x = Dtype::none, q = Dtype::none;
  uint8_t scaling = 0;  // index into kScalings
  char layout_x = 't', layout_q = 't';
  uint8_t align_x = 0, align_q = 0;  // log2 of bytes, 4 at most: of everything that a row may begin at
  bool jit = false;                  // a declared kernel may be compiled for it
  Device device;
  int32_t kernel = -1;  // the kernel asked for by name, as numbered by the caller
  int32_t user = -1;    // none has an epilogue that the user wrote

  bool operator==(const Problem& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(sizeof(Problem) == 48 && alignof(Problem) == 8, "Problem is compared as bytes: no padding");

// A call as it was asked for.
struct Request {
  const Operand* operands[kRoles] = {};  // by role, null where absent
  Dtype q = Dtype::none;
  // New scales of 1 x 128 run along the rows, as gemm's kernels read them: made, and handed out, transposed.
  bool transposes = false;
  int scaling = 0;  // index into kScalings

  const Operand* at(Role role) const { return operands[int(role)]; }
};

// One canonical call.
struct Call {
  Problem problem;
  CutlassPyQuantize arguments{};  // without dimensions that can be one
  Operand x, q, scales;           // as the caller sees them; new ones lie nowhere yet
  Operand made;                   // what new scales are a part of
  std::vector<PossibleOverlap> possible_overlaps;
};

// Everything that can be said without touching memory: rank, shapes, dtypes, overlap.
Call canonicalise(const Request& request);

// Gives a call the memory of its new results.
void place(Call& call, Role role, void* data);

// Nothing to compute: not even a group without elements.
bool nothing_to_do(const Call& call);

// Whether what is written provably shares no element with anything else.
bool provably_apart(const Request& request);

}  // namespace cutlass_py::quantization
