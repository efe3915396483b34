#include "arrays/refusal.h"

#include <utility>

namespace cutlass_py {
namespace {

thread_local const char* operation = "gemm";

// What begins with no letter stands at the name itself: "a.__dlpack__() returned", "activation='x'".
std::string clause(const std::string& operand, const std::string& found) {
  const bool apart = !operand.empty() && !found.empty() && found[0] >= 'a' && found[0] <= 'z';
  return operand + (apart ? " " : "") + found;
}

}  // namespace

Refusal::Refusal(std::string operand, std::string found, const char* about)
    : operand(std::move(operand)), found(std::move(found)), about(about) {}

Refusal::Refusal(std::string found) : found(std::move(found)) {}

Refusal& Refusal::adds(const std::string& text) {
  found += text;
  return *this;
}

Refusal& Refusal::but(const Refusal& second) {
  other = second.operand, other_found = second.found;
  return *this;
}

Refusal& Refusal::beside(std::string second) {
  other = std::move(second);
  return *this;
}

Refusal& Refusal::expects(std::string text) {
  expected = std::move(text);
  return *this;
}

Refusal& Refusal::hints(std::string text) {
  hint = std::move(text);
  return *this;
}

std::string text_of(const Refusal& x, const std::string& operation) {
  std::string text = operation + ": " + clause(x.operand, x.found);
  if (!x.other.empty()) text += (x.other_found.empty() ? " " : " but ") + clause(x.other, x.other_found);
  if (!x.expected.empty()) text += "; expected " + x.expected;
  if (!x.hint.empty()) text += "; " + x.hint;
  return text;
}

const char* current_operation() { return operation; }

std::string in_operation(const std::string& text) { return std::string(operation) + ": " + text; }

OperationScope::OperationScope(const char* name) : before_(operation) { operation = name; }
OperationScope::~OperationScope() { operation = before_; }

ArgumentError::ArgumentError(Refusal refused)
    : std::invalid_argument(text_of(refused, current_operation())),
      refusal(std::move(refused)),
      operation(current_operation()) {}

void refuse(const Refusal& refusal) { throw ArgumentError(refusal); }
void refuse_type(const Refusal& refusal) { throw ArgumentTypeError(refusal); }

}  // namespace cutlass_py
