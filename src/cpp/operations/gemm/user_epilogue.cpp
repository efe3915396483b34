// The operands of a user's epilogue in canonical form: what each is to D.
#include "operations/gemm/user_epilogue.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "operations/gemm/canonical.h"

namespace cutlass_py {
namespace {

std::deque<UserProgram>& programs() {
  static auto* list = new std::deque<UserProgram>();  // addresses of names are handed out
  return *list;
}

std::deque<UserClass>& classes() {
  static auto* list = new std::deque<UserClass>();
  return *list;
}

void check_real(const Operand& x, Dtype accumulator) {
  const bool wider = x.dtype == Dtype::f64 && accumulator != Dtype::f64;
  if (is_complex(x.dtype)) refuse_type(found_dtype(x).expects("a real dtype"));
  if (wider) refuse_type(found_dtype(x).hints("the epilogue computes in f32, expected at most 32 bits"));
}

void check_scalar_dtype(const Operand& x, Dtype accumulator) {
  const Dtype expected = scalar_dtype(accumulator);
  if (x.dtype != expected) refuse_type(found_dtype(x).expects(dtype_name(expected)));
}

// Whether the dimensions of x in front of its last `core` are all of the batch; nothing broadcasts.
bool whole_batch(const Operand& x, int core, const Extents& e) {
  return x.rank - core == e.rank && std::equal(x.shape, x.shape + e.rank, e.batch);
}

std::string expected_text(const Extents& e) {
  int64_t shape[kMaxRank];
  const int rank = e.result(shape);
  const int64_t row[] = {1, e.n}, column[] = {e.m, 1};
  return "a number, one element, " + shape_text(&e.n, 1) + ", " + shape_text(row, 2) + ", " + shape_text(column, 2) +
         " or " + shape_text(shape, rank);
}

bool is_in_place(const Operand& x, const Operand* out) {
  return out && !x.metadata_only && x.rank == out->rank && same_elements(x, *out);
}

// What is D itself counts as a matrix even where it has one row: a kernel may read a vector again after it has written
// D.
void read(const Operand& x, bool in_place, const Extents& e, Dtype accumulator, UserOperand& user,
          BatchedOperands& parts) {
  const char axis = in_place ? 0 : axis_of(x, e);
  if (size_of(x) == 1 && !in_place) {
    check_scalar_dtype(x, accumulator);
    user.kind = 's', user.matrix = {x.data, x.dtype};
    return;
  }
  check_real(x, accumulator);
  if (axis && batch_fits(x, std::min(x.rank, 2), e)) {
    user.kind = axis, user.matrix = vector_of(x, axis);
    return parts.add_user(user.matrix, x, std::min(x.rank, 2), e);
  }
  if (!fits_result(x, e)) refuse(found(x).expects(expected_text(e)));
  user.kind = 't', user.matrix = matrix_of(x, e.no_rows, e.no_cols);
  parts.add_user(user.matrix, x, e.core(), e);
}

// The shapes that a reduction may be written to: with extents of 1 where it was reduced; without these, the batch alone
// for single values, and (rows,) or (columns,) where there is no batch.
struct ReducedShapes {
  const Extents& e;
  int64_t rows, cols;  // that are left
  bool single;

  ReducedShapes(const Extents& extents, char role)
      : e(extents), rows(role == 'm' ? e.m : 1), cols(role == 'n' ? e.n : 1), single(role == 's') {}

  // Dimensions of x behind the batch, or -1 where x has none of the shapes.
  int core_of(const Operand& x) const {
    const bool kept = whole_batch(x, 2, e) && x.shape[x.rank - 2] == rows && x.shape[x.rank - 1] == cols;
    if (kept) return 2;
    if (single && whole_batch(x, 0, e)) return 0;
    return e.rank == 0 && x.rank == 1 && x.shape[0] == rows * cols ? 1 : -1;
  }
  std::string text() const {
    int64_t shape[kMaxRank];
    std::copy(e.batch, e.batch + e.rank, shape);
    shape[e.rank] = rows, shape[e.rank + 1] = cols;
    const int64_t length = rows * cols;
    std::string text = single ? shape_text(shape, e.rank) : "";
    if (e.rank == 0) text += (single ? ", " : "") + shape_text(&length, 1);
    return text + (text.empty() ? "" : " or ") + shape_text(shape, e.rank + 2);
  }
};

void write(const Operand& x, char role, const Extents& e, Dtype accumulator, UserOperand& user,
           BatchedOperands& parts) {
  if (x.readonly) refuse(Refusal(x.name, "is read-only"));
  user.written = true;
  if (role == 'w') {
    check_result_shape(x, e, false);
    check_real(x, accumulator);
    if (is_integer(x.dtype)) refuse_type(found_dtype(x).expects("floats"));
    user.kind = 't', user.matrix = matrix_of(x, e.no_rows, e.no_cols);
    return parts.add_user(user.matrix, x, e.core(), e);
  }
  check_scalar_dtype(x, accumulator);
  const ReducedShapes shapes(e, role);
  const int core = shapes.core_of(x);
  if (core < 0) refuse(found(x).expects(shapes.text()));
  const int64_t over = role == 'n' ? e.m : role == 'm' ? e.n : int64_t(e.m) * e.n;
  const int64_t left = role == 'n' ? e.n : role == 'm' ? e.m : 1;
  if (over == 0 && left > 0) refuse(Refusal(x.name, "reduces over no elements"));
  user.kind = role;
  user.matrix = role == 's' ? Matrix(x.data, x.dtype) : vector_of(x, role);
  parts.add_user(user.matrix, x, core, e);
}

bool has_unit_stride(const UserOperand& x, const Problem& p) {
  if (x.kind == 'n') return p.n <= 1 || x.matrix.col == 1;
  return x.kind != 'm' || p.m <= 1 || x.matrix.row == 1;
}

}  // namespace

int32_t add_program(UserProgram program) {
  programs().push_back(std::move(program));
  return int32_t(programs().size() - 1);
}

bool is_program(int32_t number) { return number >= 0 && size_t(number) < programs().size(); }

const UserProgram& program_of(int32_t number) { return programs()[size_t(number)]; }

int32_t user_class_id(const UserClass& user) {
  static auto* numbers = new std::unordered_map<std::string, int32_t>();
  std::string key(reinterpret_cast<const char*>(&user.program), sizeof user.program);
  for (const UserClass::Item& x : user.items) key += {x.kind, char(x.dtype), char(x.align), char(x.regular)};
  const auto [found, fresh] = numbers->emplace(std::move(key), int32_t(classes().size()));
  if (fresh) classes().push_back(user);
  return found->second;
}

const UserClass& user_class(int32_t number) { return classes()[size_t(number)]; }

void read_user(const Request& r, const Extents& e, Call& call, BatchedOperands& parts) {
  const UserRequest& given = *r.user;
  const UserProgram& program = program_of(given.program);
  const Dtype accumulator = call.problem.accumulator;
  if (is_complex(accumulator)) {
    refuse_type(Refusal("epilogue", "is given")
                    .but(Refusal("a", std::string("is ") + dtype_name(call.problem.a)))
                    .expects("a real dtype"));
  }
  if (call.problem.d == Dtype::s32) {
    refuse_type(Refusal("epilogue", "is given but the result is s32")
                    .hints("it computes in floats: give out_dtype, such as 'f32'"));
  }
  if (e.k == 0 && r.at(Role::a)->device.type == DeviceType::cuda) {
    refuse(Refusal("epilogue", "is given and k is 0").hints("on a GPU it takes a product of at least one term"));
  }
  if (r.lists) refuse_beside_lists("epilogue");
  const Operand* out = r.at(Role::out);
  call.user.resize(given.items.size());  // parts keep addresses
  for (size_t i = 0; i < given.items.size(); ++i) {
    const UserRequest::Item& item = given.items[i];
    const char role = program.roles[i];
    if (!item.array) {
      call.user[i].value = item.value;
    } else if (role == 'r') {
      read(*item.array, is_in_place(*item.array, out), e, accumulator, call.user[i], parts);
    } else {
      write(*item.array, role, e, accumulator, call.user[i], parts);
      call.user[i].reduction = int8_t(program.reductions[i]), call.user[i].first = int8_t(program.firsts[i]);
    }
  }
}

void settle_user(const Request& r, Call& call) {
  UserClass user{r.user->program, {}};
  for (UserOperand& x : call.user) {
    bool regular = has_unit_stride(x, call.problem);
    uint8_t align = 0;
    if (x.kind == 't') {
      char layout = 0;
      settle(x.matrix, layout, align, call, Role::out);
      regular = layout == 't';
    } else if (x.kind == 'm' || x.kind == 'n') {
      align = alignment_of(x.matrix, 0, call, Role::out);
    }
    user.items.push_back({x.kind, dtype_of(x.matrix), align, regular});
  }
  call.problem.user = user_class_id(user);
}

}  // namespace cutlass_py
