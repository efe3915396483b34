// Whether operands share elements. Pure C++; what it leaves open NumPy answers (exact_overlap.h).
#pragma once

#include "arrays/operand.h"

namespace cutlass_py {

struct Range {
  uintptr_t first, last;  // bytes, last exclusive; empty where both are equal
};

// The bytes of an operand, or of one matrix of a list.
Range range_of(const Operand& x);
inline bool intersect(const Range& x, const Range& y) { return x.first < y.last && y.first < x.last; }

// The same elements in the same order, missing dimensions in front aside.
bool same_elements(const Operand& x, const Operand& y);

// True when two operands surely share no element: disjoint byte ranges, or column slices of one buffer.
bool provably_disjoint(const Operand& x, const Operand& y);

// Two elements of a destination at one place; of a list also two of its matrices that share elements, or are too many
// to be told apart.
bool overlaps_itself(const Operand& x);
bool list_overlaps_itself(const Operand& x);

// Whether two operands, one of them a list, share elements; `in_place`: matrices of one index may be the same.
bool lists_intersect(const Operand& written, const Operand& other, bool in_place);

// Two operands whose bytes interleave in a way that is not decided here, and the refusal if they share an element.
struct PossibleOverlap {
  const Operand *written, *other;
  Refusal refusal;
};

}  // namespace cutlass_py
