#include "operations/gemm/operands.h"

#include <array>

namespace cutlass_py {
namespace {

constexpr const char* kFactors = "f32, or the operands' dtype where that is f64, c64 or c128";

constexpr auto kTable = [] {
  std::array<OperandRow, kRoles> rows{};
  for (int i = 0; i < kRoles; ++i) {
    const OperandFacts& x = kOperands[i];
    rows[size_t(i)] = {x.name, x.lists == BesideLists::list, x.lists != BesideLists::never,
                       x.number ? kFactors : nullptr};
  }
  return rows;
}();

}  // namespace

Operands::Operands() : OperandViews(kTable.data()) { static_assert(kRoles <= kMost); }

// Lists go with lists of the same length, and with one matrix that all share.
void Operands::check_lists() const {
  const Role leads = list_length(int(Role::a)) >= 0 ? Role::a : Role::b;
  const char* leader = name_of(leads);
  const int expected = list_length(int(leads));
  for (int i = 0; i < kRoles; ++i) {
    const Role role = Role(i);
    const View* view = at(i);
    if (!view || kOperands[i].lists != BesideLists::list) continue;
    const std::string name = name_of(role);
    if (const int length = list_length(int(role)); length >= 0) {
      if (expected < 0) refuse(Refusal(name, "is a list but neither a nor b is one"));
      if (length == expected) continue;
      refuse(Refusal(name, "is a list of " + std::to_string(length) + " matrices")
                 .but(Refusal(leader, "is one of " + std::to_string(expected)))
                 .expects("equal lengths"));
    } else if (role == Role::out) {
      refuse(Refusal("out", "is an array")
                 .but(Refusal(leader, "is a list"))
                 .expects("a list of " + std::to_string(expected) + " matrices"));
    } else if (view->operand.rank != 2) {
      refuse(found(view->operand).expects("2 dimensions beside a list of matrices"));
    }
  }
}

void Operands::begin_user(int32_t program) {
  user_ = std::make_unique<UserRequest>();
  user_->program = program;
}

View& Operands::add_user(nb::handle object, const char* name) {
  View& view = add(object, name);
  user_->items.push_back({&view.operand, 0});
  return view;
}

void Operands::add_user(double number) { user_->items.push_back({nullptr, number}); }

void Operands::describe(Request& request) {
  request.user = user_.get();
  request.lists = has_lists();
  if (request.lists) check_lists();
  each_operand([&](int index, const Operand& operand) {
    request.operands[index] = &operand;
    request.uneven |= operand.uneven;
  });
}

}  // namespace cutlass_py
