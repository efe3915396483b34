// The canonical problem: what was asked, reduced to the form that kernels and selection see. Pure C++, no Python, no
// CUDA.
//
// D is always row-major: a column-major D is computed as D^T = B^T A^T. Layouts are 't' (row-major), 'n' (column-major)
// or 'x' (no unit stride: must be packed). Leading dimensions that are never used (extent 1) are set to aligned values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "abi/activation.h"
#include "arrays/memory_overlap.h"
#include "operations/gemm/operand_table.h"

namespace cutlass_py {

// Scales in blocks: this many of k, and of columns, share a factor. The last block of an extent may be shorter.
constexpr int64_t kScaleBlock = 128;
constexpr int64_t blocks_of(int64_t extent, int64_t block = kScaleBlock) { return (extent + block - 1) / block; }

constexpr int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// An operand as (batch, row, col), strides in elements; absent where its dtype is none.
struct Matrix : CutlassPyArray {
  Matrix() : Matrix(nullptr, Dtype::none) {}
  Matrix(void* data, Dtype dtype, int64_t row = 0, int64_t col = 0, int64_t batch = 0)
      : CutlassPyArray{data, int32_t(dtype), row, col, batch} {}
};
inline constexpr CutlassPyScalar kZero{0, 0, nullptr}, kOne{1, 0, nullptr};
inline Dtype dtype_of(const CutlassPyArray& x) { return Dtype(x.dtype); }
inline int64_t element_size(const CutlassPyArray& x) { return dtype_size(dtype_of(x)); }

// Which bits are asked for again: those of the same call; or those of a row, whatever is beside it.
enum class Repeats : uint8_t { no, call, row };

// How the rows of groups lie: one group behind the other, as they do where groups divide columns or k too; as the first
// ones of a matrix for each; or anywhere in a, by their numbers.
enum class GroupRows : uint8_t { together, first, gathered };

// How many lines a group has, to an eighth of a power of two, so that few problems are told apart; 0 of none.
inline uint8_t code_of_lines(int64_t lines) {
  return lines ? uint8_t(1 + std::lround(8 * std::log2(double(lines)))) : 0;
}
inline int64_t lines_of_code(uint8_t code) { return code ? std::lround(std::exp2((code - 1) / 8.0)) : 0; }

// The class of a call: everything that the choice of a plan depends on. Compared and hashed as bytes. An absent operand
// has dtype none, layout 0 and alignment 0. Layouts of c, gate and aux are 't' (as D lies) or 'x'.
struct Problem {
  int32_t m = 0, n = 0, k = 0, batch = 1;
  Dtype a = Dtype::none, b = Dtype::none, c = Dtype::none, d = Dtype::none;
  Dtype operand_a = Dtype::none, operand_b = Dtype::none;  // what kernels multiply: tf32 for f32 with compute="tf32"
  Dtype accumulator = Dtype::none;
  char layout_a = 't', layout_b = 't', layout_c = 0, layout_d = 't';
  uint8_t align_a = 0, align_b = 0, align_c = 0, align_d = 0;  // log2 of bytes, 4 at most: base, rows, batch stride
  bool empty_product = false;                                  // k = 0, a factor of 0 or no D: A and B are not read
  bool transposed = false;                                     // A and B changed places because D is column-major
  // The epilogue (kernel.h), but for values that no choice depends on.
  Activation activation = Activation::identity;
  Dtype bias = Dtype::none;
  char bias_axis = 0;      // 'n': one value per column of D, 'm': one per row
  uint8_t align_bias = 0;  // 0 also where it has no unit stride
  Dtype gate = Dtype::none, aux = Dtype::none;
  char layout_gate = 0, layout_aux = 0;
  uint8_t align_gate = 0, align_aux = 0;
  Dtype bias_grad = Dtype::none;
  char bias_grad_axis = 0;  // 'n': one sum per column of D, 'm': one per row
  // 's': one factor in device memory, 'v': a vector, 'x': one without unit stride (host factors are part of alpha).
  // Blocks: 'r', one for each row of A or column of B and each 128 of k; 'p', such a scale_a whose rows TMA cannot
  // read: packed first; 'b', one for each 128 of k by 128 columns of B.
  char scale_a = 0, scale_b = 0;
  char scale_out = 0;  // 'h': a host factor, 's': one in device memory
  bool device_alpha = false, device_beta = false;
  bool plain_sum = true;  // of integers: nothing scales the product, and no c is added
  bool pointers = false;  // the operands are lists of matrices
  Repeats repeats = Repeats::no;
  bool jit = false;    // a declared kernel may be compiled for it
  int16_t splits = 0;  // parts of k asked for; 0: selection decides, -1: stream-K
  // A grouped product (operations/grouped_gemm): the axis that groups divide, whose extent is that of all together; of
  // whatever is batched each has a matrix. 'l': lists whose matrices differ (uneven.h), extents are the usual ones.
  char grouped = 0;
  GroupRows rows = GroupRows::together;
  bool told = false;     // where groups lie, the host knows
  uint8_t expected = 0;  // lines of a group (code_of_lines), where the caller says them
  // Columns that are gates and values: 'b', of B, which has twice as many as D; 'd', of D, which has twice as many as
  // B.
  char pairs = 0;
  bool interleaved = false;  // a value lies behind each gate; or all values behind all gates
  uint8_t usual = 0;         // of those that have any, where the host knows them: likewise
  uint8_t unused[1] = {};
  Device device;
  int32_t kernel = -1;  // the kernel asked for by name, as numbered by the caller
  int32_t user = -1;  // the epilogue that the user wrote and the kinds of its operands, as numbered in user_epilogue.h

  bool has_c() const { return c != Dtype::none; }
  int64_t columns_of_b() const { return pairs == 'b' ? 2 * int64_t(n) : n; }
  bool stacked() const { return rows == GroupRows::first; }
  // Columns of B that share a factor where scales are blocks, else 0.
  int block() const { return scale_b == 'b' ? int(kScaleBlock) : scale_b == 'r' ? 1 : 0; }
  bool operator==(const Problem& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(sizeof(Problem) == 80 && alignof(Problem) == 4, "Problem is compared as bytes: no padding");

// The same for problems that differ in extents alone, and in how A, B and D are aligned by these.
inline Problem without_extents(Problem p) {
  p.m = p.n = p.k = p.batch = 0;
  p.align_a = p.align_b = p.align_d = 0;
  return p;
}

// What a class says of one operand of a canonical call.
struct OperandClass {
  Dtype dtype = Dtype::none;  // none: absent
  char layout = 0;            // as in Problem; of vectors their axis, of scales and factors their kind
  uint8_t align = 0;          // log2 of the bytes that kernels may rely on
};
inline OperandClass class_of(const Problem& p, Role role) {
  const Dtype scalar = scalar_dtype(p.accumulator);
  const auto factor = [&](char kind) { return OperandClass{kind == 's' ? scalar : Dtype::none, 's', 0}; };
  const auto scale = [&](char kind, uint8_t align) { return OperandClass{kind ? scalar : Dtype::none, kind, align}; };
  switch (role) {
    case Role::a: return {p.a, p.layout_a, p.align_a};
    case Role::b: return {p.b, p.layout_b, p.align_b};
    case Role::c: return {p.c, p.layout_c, p.align_c};
    case Role::bias: return {p.bias, p.bias_axis, p.align_bias};
    case Role::gate: return {p.gate, p.layout_gate, p.align_gate};
    case Role::aux: return {p.aux, p.layout_aux, p.align_aux};
    case Role::scale_a: return scale(p.scale_a, p.block() && p.scale_a == 'r' ? 4 : 0);  // TMA reads these
    case Role::scale_b: return scale(p.scale_b, 0);
    case Role::alpha: return factor(p.device_alpha ? 's' : 0);
    case Role::beta: return factor(p.device_beta ? 's' : 0);
    case Role::scale_out: return factor(p.scale_out);
    case Role::bias_grad: return {p.bias_grad, p.bias_grad_axis, 0};
    case Role::out: return {p.d, p.layout_d, p.align_d};
  }
  return {};
}

// Its rows and columns in memory or as it repeats, in the coordinates of the product.
struct Rectangle {
  int64_t rows, cols;
};
inline Rectangle rectangle_of(const Problem& p, Role role) {
  switch (facts_of(role).shape) {
    case Shape::left: return {p.m, p.k};
    case Shape::right: return {p.k, p.columns_of_b()};
    case Shape::rows: return {p.m, p.block() ? blocks_of(p.k) : p.n};
    case Shape::columns: {
      const int64_t columns = p.columns_of_b();
      return {p.block() ? blocks_of(p.k) : p.m, p.block() ? blocks_of(columns, p.block()) : columns};
    }
    case Shape::vector: return {p.m, p.columns_of_b()};
    case Shape::factor: return {1, 1};
    case Shape::sum: return {p.bias_grad_axis == 'm' ? p.m : 1, p.bias_grad_axis == 'n' ? p.n : 1};
    default: return {p.m, (p.pairs && role == Role::aux) || (p.pairs == 'd' && role == Role::out) ? 2 * p.n : p.n};
  }
}

// k cut into parts of one length, the last one perhaps shorter; so there may be fewer than were asked for. Each starts
// at a multiple of 256 bytes, where slices of our own kernels do (kernels/sm90/launch.h), and of 64 elements.
struct Splits {
  int64_t k, length, count, batch;
  Splits(const Problem& p, int64_t splits)
      : k(p.k),
        length(splits > 1 ? round_up((k + splits - 1) / splits, std::max<int64_t>(64, 256 / dtype_size(p.a))) : k),
        count(length > 0 ? (k + length - 1) / length : 1),
        batch(p.batch) {}

  int64_t length_of(int64_t part) const { return part + 1 < count ? length : k - part * length; }

  // Calls launch(first part, number of parts) for each launch: those of equal length are one, as a batch, where there
  // is no other batch.
  template <class Launch>
  void each(Launch launch) const {
    const int64_t whole = length > 0 ? k / length : 0, equal = batch == 1 && whole > 1 ? whole : 0;
    if (equal) launch(int64_t(0), equal);
    for (int64_t part = equal; part < count; ++part) launch(part, int64_t(1));
  }
};

// Before anything is launched. Vectors have a stride of 0 along the axis that repeats them. Scales in blocks are
// matrices of their own: (m, blocks of k), (blocks of k, columns or blocks of them). `user` is a launch's to set.
using Epilogue = CutlassPyEpilogue;

// What was given for a parameter or an output of a user's epilogue: a number, or an array in the coordinates of D.
struct UserOperand {
  // 'h' a number, 's' one element (written: one for each matrix), 'm' or 'n' a vector along that axis of D, 't' a
  // matrix
  char kind = 'h';
  bool written = false;
  int8_t reduction = -1;  // that is written: as numbered in kernel.h
  int8_t first = -1;      // the operand that is the first to reduce the same value
  double value = 0;
  Matrix matrix;
};

// How far each operand of one run of a call lies from that of the first, in bytes; by its role in the call.
struct Shift {
  int64_t bytes[kRoles] = {};
  int64_t& operator[](Role role) { return bytes[int(role)]; }
  int64_t operator[](Role role) const { return bytes[int(role)]; }
};

// One canonical call: the problem and what differs between calls of the same class.
struct Call {
  // Without operands, factors of 1, beta 0.
  Call() {
    each_array(*this, [](Role, CutlassPyArray& x) { x = Matrix(); });
    epilogue.alpha = epilogue.scale_out = kOne;
  }

  Problem problem;
  Matrix a, b, d;
  int64_t lda = 0, ldb = 0, ldd = 0;  // of a and b as they lie, where their layout is not 'x'
  Epilogue epilogue{};
  std::vector<UserOperand> user;  // in place of that epilogue, where the user wrote one
  // Lists of matrices: the addresses of each one's elements; the matrices above describe the first.
  std::vector<void*> pointers_a, pointers_b, pointers_c, pointers_d;
  // And where those differ, the extents of each product; and new results, that far from the first one's address.
  std::vector<CutlassPyExtents> extents;
  std::vector<Operand> made;
  // Of a grouped product: where its groups lie; and, where the host knows, the end of each, which `groups` then is to
  // get the address of.
  CutlassPyGroups groups{};
  std::vector<int64_t> group_ends;
  CutlassPyPairs pairs{};
  // Batches that no single stride describes: everything runs once for each of these. Empty for one run.
  std::vector<Shift> loop;
  int out_rank = 2;  // shape of the result as the caller sees it
  int64_t out_shape[kMaxRank];
  std::vector<PossibleOverlap> possible_overlaps;
};

// A user's epilogue as it was asked for: the program's number (user_epilogue.h), and an array or a number for each of
// its parameters and outputs.
struct UserRequest {
  struct Item {
    const Operand* array = nullptr;
    double value = 0;
  };
  int32_t program = 0;
  std::vector<Item> items;
};

// A call as it was asked for: operands by role, null where absent, and the rest of its keywords.
struct Request {
  const Operand* operands[kRoles] = {};
  CutlassPyScalar alpha = kOne, beta = kOne,
                  scale_out = kOne;  // where they are numbers; complex for complex operands alone
  double scale_a = 1, scale_b = 1;   // likewise
  bool has_beta = false, has_scale_a = false, has_scale_b = false, has_scale_out = false;
  const char* compute = nullptr;  // null: the default of the inputs' dtype
  Dtype out_dtype = Dtype::none;
  Dtype bias_dtype = Dtype::none;  // that a bias may have as well: D is wider here than the caller's (gated.cpp)
  Activation activation = Activation::identity;
  double parameters[2] = {};
  int16_t splits = 0;  // as in Problem
  Repeats repeats = Repeats::no;
  const UserRequest* user = nullptr;
  bool gated = false;  // columns of b are gates and values; or, where the activation is a derivative, those of out
  bool interleaved = false;  // and lie as Problem says
  bool lists = false;        // a, b, c and out may be lists; the first extent of those that are is their length
  bool uneven = false;       // the matrices of one are not alike
  bool grouped = false;      // of a batch each product has a size of its own: it is no taller one

  const Operand* at(Role role) const { return operands[int(role)]; }
  const ActivationRow& function() const { return kActivations[int(activation)]; }
  // Whether the call writes it.
  bool writes(Role role) const {
    const Written written = facts_of(role).written;
    return written == Written::always || (written == Written::unless_derivative && !function().derivative);
  }
};

// The factors that are numbers, alpha with the scales of A and B in it, beta 0 without c; 1 in place of one in device
// memory.
struct Factors {
  CutlassPyScalar alpha = kOne, beta = kOne, scale_out = kOne;
};
Factors numbers_of(const Request& request);

// Everything else that can be said without touching memory: ranks, shapes, dtypes, strides, overlap. Without `out`, D
// is taken as a new row-major array and call.d.data stays null until place_result. `given`: the operands as they lie,
// where the request has something else in their place.
Call canonicalise(const Request& request, const Request& given);
inline Call canonicalise(const Request& request) { return canonicalise(request, request); }

// How far values lie behind their gates, in elements, as the matrices of a call lie.
CutlassPyPairs pairs_of(const Call& call);

// Gives a call the memory of its new result.
void place_result(Call& call, void* data);
Operand new_result(const Call& call);  // that array, without memory

// Whether whatever the request writes provably shares no element with all else, or `out` is what it may be, element for
// element. Lists and a user's epilogue are not looked at.
bool provably_apart(const Request& request);

}  // namespace cutlass_py
