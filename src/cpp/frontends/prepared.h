// A call that is canonicalised and planned once: each further one compares its operands with the first's, and runs.
#pragma once

#include "operations/gemm/call.h"
#include "operations/gemm/canonical.h"
#include "runtime/launch_cache.h"

namespace cutlass_py {

// A plan with another order of tiles; 0: as chosen. Refused where its kernel has none.
void set_order(Plan& plan, int raster, int swizzle);

std::string prepared_repr(const std::string& problem, const Plan& plan);

class Prepared {
 public:
  // Operands and keywords as GemmArguments holds them; `kernel` is among the keywords. Operands may be TensorSpecs.
  // `raster` and `swizzle` as in kernel.h; 0: as chosen.
  Prepared(nb::object a, nb::object b, const nb::dict& keywords, int raster, int swizzle);

  // Runs it. What is None is what it was prepared with; `given.out` absent on both sides is a new result. Of the
  // keywords only arrays and `epilogue` are looked at.
  nb::object operator()(nb::handle a, nb::handle b, const Keywords& given, nb::handle workspace);

  const Problem& problem() const { return prototype_.problem; }
  std::string repr() const;

  template <class Visit>
  void held(Visit visit) const {
    visit(a_), visit(b_), visit(kept_), visit(plan_.provided);
  }

 private:
  // One operand of the fast path.
  struct FastOperand {
    const Operand* expected;
    uintptr_t misaligned;  // bits that no address has
    Range bytes;           // from its first element on
  };

  // Calls with a, b and out alone, on their framework's current stream, without a step that could be spared.
  void prepare_fast_path();
  void* address_of(nb::handle array, const FastOperand& operand, const ArrayType*& type) const;
  bool run_fast(nb::handle a, nb::handle b, nb::handle out) const;

  bool has_array(int role) const { return expected_[role].dtype != Dtype::none; }
  void check_operands(Operands& operands, const Request& request) const;
  Call call_on(const Request& request) const;
  void take_user(const UserRequest& given, Call& call) const;

  nb::object a_, b_;
  nb::tuple kept_;  // owns what `keywords_` refers to
  Keywords keywords_;
  Operand expected_[kRoles];    // without a dtype where the call has no such operand
  uint8_t align_[kRoles] = {};  // log2 of the bytes that each one's address is a multiple of
  std::vector<Operand> user_;   // of a user's epilogue; without a dtype where a number was given
  Call prototype_;
  Plan plan_;
  CachedLaunch launch_;  // where one does it
  bool fast_ = false;    // a, b and out are all
  FastOperand fast_operands_[3] = {};
};

}  // namespace cutlass_py
