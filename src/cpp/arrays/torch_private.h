// The private names of torch that the extension uses: counterpart of arrays/torch_private.py, which has all others.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

namespace cutlass_py {

namespace nb = nanobind;

// How torch dispatches in a thread, in c10's two words: every mode, transform, trace and autocast has a bit there.
// Zeros are what a thread begins with.
struct Dispatch {
  std::uint64_t included = 0, excluded = 0;
  bool operator==(const Dispatch& other) const { return included == other.included && excluded == other.excluded; }
};

// That of this thread; null where this torch does not export it.
const Dispatch* dispatch_now();

// The answer to a question about that, not asked again while torch dispatches as it did when it was no.
template <class Question>
bool unless_as(Dispatch& answered_no, Question question) {
  const Dispatch* now = dispatch_now();
  if (now && *now == answered_no) return false;
  const bool answer = question();
  if (now && !answer) answered_no = *now;
  return answer;
}

// Where objects of an array's type hold torch's tensor, in bytes from their beginning; 0 where that cannot be said, or
// this torch does not export what is asked of it.
std::ptrdiff_t tensor_offset(nb::handle array);

// Whether the values of the tensor there are not what its memory holds: it is negated or conjugated lazily.
bool is_lazy_tensor(nb::handle array, std::ptrdiff_t offset);

}  // namespace cutlass_py
