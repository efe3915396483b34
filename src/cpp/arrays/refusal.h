// How a call is refused: what is wrong with an argument, as values. Pure C++, no Python, no CUDA.
#pragma once

#include <stdexcept>
#include <string>

namespace cutlass_py {

// One sentence: "gemm: a is (3, 4) but b is (5, 6); inner extents must agree".
struct Refusal {
  std::string operand;             // the argument that is wrong; empty where the call as a whole is
  std::string found;               // what it is: "is (3, 4)"
  const char* about = "";          // "shape", "dtype", "device" or "overlap"
  std::string other, other_found;  // a second operand, and what it is; nothing where `found` says how both are related
  std::string expected, hint;      // what the first has to be, and what to do

  Refusal(std::string operand, std::string found, const char* about = "");
  explicit Refusal(std::string found);  // of the call as a whole

  Refusal& adds(const std::string& text);  // to what was found
  Refusal& but(const Refusal& second);
  Refusal& beside(std::string second);
  Refusal& expects(std::string text);
  Refusal& hints(std::string text);
};

// The sentence: errors.py makes the same of the same values.
std::string text_of(const Refusal& refusal, const std::string& operation);

// The operation that this thread is in, by whose name errors begin: "gemm" outside of any other.
const char* current_operation();
std::string in_operation(const std::string& text);  // a text that begins so
class OperationScope {
 public:
  explicit OperationScope(const char* name);
  ~OperationScope();
  OperationScope(const OperationScope&) = delete;

 private:
  const char* before_;
};

// Becomes Python's ArgumentValueError (errors.py).
struct ArgumentError : std::invalid_argument {
  explicit ArgumentError(Refusal refused);

  Refusal refusal;
  const char* operation;
};

// Becomes Python's ArgumentTypeError.
struct ArgumentTypeError : ArgumentError {
  using ArgumentError::ArgumentError;
};

[[noreturn]] void refuse(const Refusal& refusal);
[[noreturn]] void refuse_type(const Refusal& refusal);

}  // namespace cutlass_py
