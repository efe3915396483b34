// Epilogues that users write: traced functions by number, and the kinds of operands that each was called with.
//
// Both tables live as long as the process and are touched with the GIL held: only gemm itself takes `epilogue`.
#pragma once

#include "operations/gemm/problem.h"

namespace cutlass_py {

// One traced function, as epilogues/tracing.py sees it.
struct UserProgram {
  std::string name;
  std::vector<std::string> names;  // of parameters behind the sum, then of outputs beside D
  // Of each: 'r' read, 'w' a written matrix; a reduction that is written along that axis of D, 'm' or 'n', or for each
  // matrix, 's'.
  std::string roles;
  std::vector<int> reductions;  // of each: as numbered in kernel.h, -1 for none
  std::vector<int> firsts;      // of each: the first that reduces the same value, itself where there is none
};

int32_t add_program(UserProgram program);
bool is_program(int32_t number);
const UserProgram& program_of(int32_t number);

// What a kernel is compiled for: the program and its operands without their values.
struct UserClass {
  struct Item {
    char kind;  // of UserOperand
    Dtype dtype;
    uint8_t align;  // log2 of bytes, 4 at most
    bool regular;   // a matrix that lies as D does, a vector of unit stride
  };
  int32_t program;
  std::vector<Item> items;
};

int32_t user_class_id(const UserClass& user);  // as Problem::user holds it
const UserClass& user_class(int32_t number);

}  // namespace cutlass_py
