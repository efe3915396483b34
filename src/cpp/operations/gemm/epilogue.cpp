// The operands of the epilogue: their shapes and dtypes, and where each lies in the coordinates of D.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "operations/gemm/canonical.h"

namespace cutlass_py {

int64_t size_of(const Operand& x) {
  int64_t size = 1;
  for (int i = 0; i < x.rank; ++i) size *= x.shape[i];
  return size;
}

static bool ends_in(const Operand& x, int64_t rows, int64_t cols) {
  return x.rank >= 2 && x.shape[x.rank - 2] == rows && x.shape[x.rank - 1] == cols;
}

bool is_column(const Operand& x, const Extents& e) { return ends_in(x, e.m, 1); }
bool is_row(const Operand& x, const Extents& e) { return ends_in(x, 1, e.n); }

char axis_of(const Operand& x, const Extents& e) {
  if (x.rank == 1) return x.shape[0] == e.n ? 'n' : 0;
  return is_row(x, e) ? 'n' : is_column(x, e) ? 'm' : 0;
}

Matrix vector_of(const Operand& x, char axis) {
  const int64_t stride = x.rank == 1 || axis == 'n' ? x.strides[x.rank - 1] : x.strides[x.rank - 2];
  return {x.data, x.dtype, axis == 'm' ? stride : 0, axis == 'n' ? stride : 0, 0};
}

namespace {

using Dtypes = std::initializer_list<Dtype>;

[[noreturn]] void refuse_dtype_of(const Operand& x, const Dtype* first, const Dtype* last) {
  std::string names;
  for (const Dtype* dtype = first; dtype != last; ++dtype) {
    if (*dtype == Dtype::none || std::find(first, dtype, *dtype) != dtype) continue;  // said already
    names += (names.empty() ? "" : ", ") + std::string(dtype_name(*dtype));
  }
  refuse_type(found_dtype(x).expects((names.find(',') == std::string::npos ? "" : "one of ") + names));
}

template <class Accepted>
void check_dtype(const Operand& x, const Accepted& accepted) {
  if (std::find(std::begin(accepted), std::end(accepted), x.dtype) != std::end(accepted)) return;
  refuse_dtype_of(x, std::begin(accepted), std::end(accepted));
}

// Real beside real operands, complex beside complex ones.
void check_elements(const Operand& x, const Problem& p) {
  if (is_complex(x.dtype) == is_complex(p.accumulator)) return;
  std::vector<Dtype> accepted;
  for (int i = 0; i < kDtypeCount; ++i) {
    const bool held = int(kDtypes[i].storage) == i;
    if (held && is_complex(Dtype(i)) == is_complex(p.accumulator)) accepted.push_back(Dtype(i));
  }
  refuse_dtype_of(x, accepted.data(), accepted.data() + accepted.size());
}

std::string text_of(const Extents& e, bool along_m, bool along_n) {
  const int64_t row[] = {1, e.n}, column[] = {e.m, 1};
  if (along_n && along_m) {
    return shape_text(&e.n, 1) + ", " + shape_text(row, 2) + " or " + shape_text(column, 2);
  }
  return along_n ? shape_text(&e.n, 1) + " or " + shape_text(row, 2)
                 : shape_text(&e.m, 1) + " or " + shape_text(column, 2);
}

// ------------------------------------------------------------------------------------------------ factors

void check_one(const Operand& x, Dtype dtype, const char* otherwise) {
  if (size_of(x) != 1) refuse(found(x).expects(otherwise));
  check_dtype(x, Dtypes{dtype});
}

CutlassPyScalar factor(const Request& r, Role role, const CutlassPyScalar& number, Dtype accumulator) {
  if (const Operand* x = r.at(role)) {
    check_one(*x, scalar_dtype(accumulator), "a number or an array of one element");
    return {1, 0, x->data};
  }
  return number;
}

// ------------------------------------------------------------------------------------------------ scales in blocks

bool are_blocks_of_a(const Operand& x, const Extents& e) { return ends_in(x, e.m, blocks_of(e.k)); }

bool are_blocks_of_b(const Operand& x, const Extents& e) {
  return ends_in(x, blocks_of(e.k), blocks_of(e.n)) || ends_in(x, blocks_of(e.k), e.n);
}

// Whether scales can only be meant as blocks. With k up to 128 they are vectors too, which mean the same: then it is
// the other one that decides.
bool has_blocks(const Request& r, const Extents& e, const Problem& p) {
  if (!is_fp8(p.operand_a)) return false;
  const Operand *a = r.at(Role::scale_a), *b = r.at(Role::scale_b);
  const bool of_a = a && size_of(*a) != 1 && are_blocks_of_a(*a, e) && !is_column(*a, e);
  const bool of_b = b && size_of(*b) != 1 && are_blocks_of_b(*b, e) && !is_row(*b, e);
  return of_a || of_b;
}

// The shapes that blocks of this operand have.
std::string blocks_text(Role role, const Extents& e) {
  const int64_t a[] = {e.m, blocks_of(e.k)}, b[] = {blocks_of(e.k), blocks_of(e.n)}, columns[] = {blocks_of(e.k), e.n};
  if (role == Role::scale_a) return shape_text(a, 2);
  return shape_text(b, 2) + (b[1] == e.n ? "" : " or " + shape_text(columns, 2));
}

// Both scales are blocks, or neither is.
const Operand& blocks_at(const Request& r, Role role, const Extents& e) {
  const bool of_a = role == Role::scale_a;
  const Operand *x = r.at(role), *other = r.at(of_a ? Role::scale_b : Role::scale_a);
  if (x && (of_a ? are_blocks_of_a(*x, e) : are_blocks_of_b(*x, e)) && batch_fits(*x, 2, e)) return *x;
  const bool number = of_a ? r.has_scale_a : r.has_scale_b;
  Refusal refusal = x ? found(*x) : Refusal(name_of(role), number ? "is a number" : "is not given", "shape");
  if (other)
    refusal.adds(" beside blocks: " + std::string(other->name) + " is " + shape_text(other->shape, other->rank));
  refuse(refusal.expects(blocks_text(role, e)));
}

void read_blocks(const Request& r, const Extents& e, Call& call, BatchedOperands& parts) {
  const Operand &a = blocks_at(r, Role::scale_a, e), &b = blocks_at(r, Role::scale_b, e);
  if (r.lists) refuse(found(a).adds(", blocks, which lists of matrices do not take").hints("pass a batch instead"));
  for (const Operand* x : {&a, &b}) check_dtype(*x, Dtypes{Dtype::f32});
  call.epilogue.scale_a = matrix_of(a, false, false);
  call.epilogue.scale_b = matrix_of(b, false, false);
  parts.add(call.epilogue.scale_a, Role::scale_a, a, 2, e);
  parts.add(call.epilogue.scale_b, Role::scale_b, b, 2, e);
  call.problem.scale_a = 'r';
  call.problem.scale_b = ends_in(b, blocks_of(e.k), blocks_of(e.n)) ? 'b' : 'r';
}

// ------------------------------------------------------------------------------------------------ the product

// A scale of the rows of A ('m') or the columns of B ('n'): one factor, or one for each.
char read_scale(const Operand& x, char axis, const Extents& e, const Problem& p, CutlassPyArray& scale,
                BatchedOperands& parts, Role role) {
  check_dtype(x, Dtypes{scalar_dtype(p.accumulator)});
  if (size_of(x) == 1) {
    scale = Matrix(x.data, x.dtype);
    return 's';
  }
  const bool fits = x.rank == 1   ? x.shape[0] == (axis == 'm' ? e.m : e.n)
                    : axis == 'm' ? is_column(x, e)
                                  : is_row(x, e);
  if (!fits || !batch_fits(x, std::min(x.rank, 2), e)) {
    refuse(found(x).expects("one element, " + text_of(e, axis == 'm', axis == 'n') +
                            (is_fp8(p.operand_a) ? "; in blocks: " + blocks_text(role, e) : "")));
  }
  scale = vector_of(x, axis);
  parts.add(scale, role, x, std::min(x.rank, 2), e);
  return 'v';
}

void read_factors(const Request& r, Call& call) {
  Problem& p = call.problem;
  Epilogue& e = call.epilogue;
  const Factors numbers = numbers_of(r);
  e.alpha = factor(r, Role::alpha, numbers.alpha, p.accumulator);
  e.beta = r.at(Role::c) && r.has_beta ? factor(r, Role::beta, numbers.beta, p.accumulator) : numbers.beta;
  e.scale_out = factor(r, Role::scale_out, numbers.scale_out, p.accumulator);
  if (e.alpha.device && (r.scale_a != 1 || r.scale_b != 1)) {
    refuse(Refusal("alpha", "is an array")
               .but(Refusal(r.scale_a != 1 ? "scale_a" : "scale_b", "is a number"))
               .hints("pass both as arrays or both as numbers"));
  }
}

// Whether nothing of A and B remains, whatever the other factors are; one in device memory may be anything.
bool is_empty(const Request& r, const Extents& e) {
  const bool alpha = r.at(Role::alpha) || r.alpha.value != 0 || r.alpha.imaginary != 0;
  return e.k == 0 || !alpha || r.scale_a == 0 || r.scale_b == 0;
}

// After read_factors. What is not read is left out.
void read_product(const Request& r, const Extents& e, Call& call, BatchedOperands& parts) {
  Problem& p = call.problem;
  Epilogue& epilogue = call.epilogue;
  p.empty_product = is_empty(r, e);
  const Operand *a = r.at(Role::scale_a), *b = r.at(Role::scale_b);
  const Extents of_b = e.of_b();
  const bool in_blocks = has_blocks(r, of_b, p);
  if (in_blocks) read_blocks(r, of_b, call, parts);
  if (a && !in_blocks) p.scale_a = read_scale(*a, 'm', e, p, epilogue.scale_a, parts, Role::scale_a);
  if (b && !in_blocks) p.scale_b = read_scale(*b, 'n', of_b, p, epilogue.scale_b, parts, Role::scale_b);
  if (p.empty_product) {
    epilogue.alpha = kZero;
    epilogue.scale_a = epilogue.scale_b = Matrix();
    p.scale_a = p.scale_b = 0;
  }
}

// ------------------------------------------------------------------------------------------------ operands like D

void read_c(const Request& r, const Extents& e, Call& call, BatchedOperands& parts) {
  const Operand* c = r.at(Role::c);
  if (!c) {
    if (r.has_beta) refuse(Refusal("beta", "is given").but(Refusal("c", "is not")));
    return;
  }
  check_result_shape(*c, e, true);
  check_elements(*c, call.problem);
  const CutlassPyScalar& beta = call.epilogue.beta;
  if (!beta.device && beta.value == 0 && beta.imaginary == 0) return;
  call.problem.c = c->dtype;
  call.epilogue.c = matrix_of(*c, e.no_rows, e.no_cols);
  parts.add(call.epilogue.c, Role::c, *c, e.core(), e);
}

void read_bias(const Operand& x, const Request& r, const Extents& e, Call& call, BatchedOperands& parts) {
  Problem& p = call.problem;
  p.bias_axis = axis_of(x, e);
  const int core = std::min(x.rank, 2);
  if (!p.bias_axis || !batch_fits(x, core, e)) refuse(found(x).expects(text_of(e, true, true)));
  const Dtype wide = p.accumulator == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  if (is_complex(p.accumulator)) {
    check_dtype(x, Dtypes{p.d, p.accumulator});
  } else if (is_integer(p.d)) {
    check_dtype(x, Dtypes{Dtype::f32, Dtype::s32});
  } else if (x.dtype != r.bias_dtype) {
    check_dtype(x, Dtypes{p.d, Dtype::f32, wide});
  }
  p.bias = x.dtype;
  call.epilogue.bias = vector_of(x, p.bias_axis);
  parts.add(call.epilogue.bias, Role::bias, x, core, e);
}

void read_gate(const Operand& x, const Request& r, const Extents& e, Call& call, BatchedOperands& parts) {
  if (r.function().derivative) {
    refuse(Refusal("gate", std::string("is given with activation='") + r.function().name + "'")
               .hints("a derivative takes no gate"));
  }
  check_result_shape(x, e, true);
  check_elements(x, call.problem);
  call.problem.gate = x.dtype;
  call.epilogue.gate = matrix_of(x, e.no_rows, e.no_cols);
  parts.add(call.epilogue.gate, Role::gate, x, e.core(), e);
}

void read_aux(const Operand& x, const Request& r, const Extents& e, Call& call, BatchedOperands& parts) {
  const bool read = r.function().derivative;
  check_result_shape(x, e, read);
  check_elements(x, call.problem);
  if (!read && x.readonly) refuse(Refusal("aux", "is read-only"));
  call.problem.aux = x.dtype;
  call.epilogue.aux = matrix_of(x, e.no_rows, e.no_cols);
  parts.add(call.epilogue.aux, Role::aux, x, e.core(), e);
}

void read_bias_grad(const Operand& x, const Extents& e, Call& call) {
  Problem& p = call.problem;
  p.bias_grad_axis = x.rank <= 2 ? axis_of(x, e) : 0;
  if (!p.bias_grad_axis) refuse(found(x).expects(text_of(e, true, true)));
  check_dtype(x, Dtypes{is_integer(p.d) ? Dtype::none : p.d, Dtype::f32, Dtype::f64});
  if (x.readonly) refuse(Refusal("bias_grad", "is read-only"));
  p.bias_grad = x.dtype;
  call.epilogue.bias_grad = vector_of(x, p.bias_grad_axis);
}

// Complex operands have neither activations nor scales, nor anything else that is real.
void check_complex(const Request& r, const Problem& p) {
  const std::string but = std::string(dtype_name(p.a)) + "; complex operands take alpha, beta, c and bias";
  if (r.activation != Activation::identity) {
    refuse_type(Refusal("activation", std::string("='") + r.function().name + "' is given")
                    .but(Refusal("a", std::string("is ") + but)));
  }
  const char* number = r.has_scale_a ? "scale_a" : r.has_scale_b ? "scale_b" : r.has_scale_out ? "scale_out" : nullptr;
  if (number) refuse_type(Refusal(number, "is given").but(Refusal("a", std::string("is ") + but)));
  for (int i = 0; i < kRoles; ++i) {
    const Operand* x = r.operands[i];
    if (!x || kOperands[i].complex) continue;
    refuse_type(Refusal(x->name, "is given").but(Refusal("a", std::string("is ") + but)));
  }
}

// Lists of matrices share their vectors, and have no other operand of their own.
void check_lists(const Request& r) {
  for (int i = 0; i < kRoles; ++i) {
    if (r.operands[i] && kOperands[i].lists == BesideLists::never) refuse_beside_lists(kOperands[i].name);
  }
  for (Role role : {Role::bias, Role::scale_a, Role::scale_b}) {
    const Operand* x = r.at(role);
    if (x && x->rank > 2) refuse(found(*x).hints("lists of matrices share one vector, which has 1 or 2 dimensions"));
  }
}

// What gates and values do not go with: what would have to say which of the two it is about.
void check_gated(const Request& r) {
  if (r.lists) refuse_beside_lists("gated");
  for (Role role : {Role::c, Role::gate, Role::bias_grad}) {
    if (const Operand* x = r.at(role)) refuse(Refusal(x->name, "is given").but(Refusal("gated", "is, too")));
  }
}

}  // namespace

Factors numbers_of(const Request& r) {
  Factors x;
  if (!r.at(Role::alpha)) x.alpha = r.alpha;
  if (!r.at(Role::beta) && r.has_beta) x.beta = r.beta;
  if (!r.at(Role::scale_out)) x.scale_out = r.scale_out;
  if (!r.at(Role::c)) x.beta = kZero;
  x.alpha.value *= r.scale_a * r.scale_b;
  return x;
}

void read_epilogue(const Request& r, const Extents& e, Call& call, BatchedOperands& parts) {
  Problem& p = call.problem;
  Epilogue& epilogue = call.epilogue;
  if (is_complex(p.accumulator)) check_complex(r, p);
  if (r.lists) check_lists(r);
  if (r.gated) check_gated(r);
  if (r.function().derivative && !r.at(Role::aux)) {
    const char* name = r.function().name;
    refuse(Refusal("activation", std::string("='") + name + "' needs aux, where " + (name + 2) + " was evaluated"));
  }
  read_factors(r, call);
  read_product(r, e, call, parts);
  read_c(r, e, call, parts);
  if (const Operand* x = r.at(Role::bias)) read_bias(*x, r, e.of_b(), call, parts);
  if (const Operand* x = r.at(Role::gate)) read_gate(*x, r, e, call, parts);
  if (const Operand* x = r.at(Role::aux)) read_aux(*x, r, e.of_aux(), call, parts);
  if (const Operand* x = r.at(Role::bias_grad)) read_bias_grad(*x, e, call);
  p.activation = r.activation;
  epilogue.activation = int32_t(r.activation);
  epilogue.parameters[0] = r.parameters[0], epilogue.parameters[1] = r.parameters[1];
  p.device_alpha = epilogue.alpha.device;
  p.device_beta = epilogue.beta.device;
  p.scale_out = epilogue.scale_out.device ? 's' : epilogue.scale_out.value != 1 ? 'h' : 0;
  const bool one = !epilogue.alpha.device && epilogue.alpha.value == 1;
  const bool plain = one && !p.has_c() && !p.scale_a && !p.scale_b && !p.scale_out;
  p.plain_sum = plain || p.accumulator != Dtype::s32;
}

}  // namespace cutlass_py
