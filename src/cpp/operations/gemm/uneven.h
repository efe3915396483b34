// Lists whose matrices differ: each pair of them a product of its own, and all of them one, for kernels that take
// products of any sizes.
#pragma once

#include "operations/gemm/problem.h"

namespace cutlass_py::uneven {

size_t count_of(const Request& lists);

// One of the products: a request, and what it points to.
class Product {
 public:
  Product(const Request& lists, size_t i);
  Product(const Product&) = delete;

  Request request;

 private:
  Operand held_[kRoles];
};

// What is written overlaps nothing of other products. Each has been found sound alone.
void check_apart(const Request& lists, bool reads_c);

// All of them as one canonical problem, by one product that stands for them: as aligned as they are together, and as
// large as they are in the mean.
Call canonicalise(const Request& lists);

// Whether each has to be a problem of its own: its rows are to be what they are alone, or k in parts.
bool apart(const Request& lists);

}  // namespace cutlass_py::uneven
