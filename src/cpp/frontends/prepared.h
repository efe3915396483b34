// A call that is canonicalised and planned once: each further one compares its operands with the first's, and runs.
#pragma once

#include "operations/gemm/call.h"
#include "operations/gemm/canonical.h"

namespace cutlass_py {

class Prepared final : public Source {
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
  // One operand of a straight launch.
  struct Straight {
    const Operand* expected;
    uintptr_t misaligned;  // bits that no address has
    Range bytes;           // from its first element on
  };

  // Calls with a, b and out alone, on their framework's current stream, without a step that could be spared.
  void prepare_straight();
  void* address_of(nb::handle array, const Straight& operand, const ArrayType*& type) const;
  bool launch_straight(nb::handle a, nb::handle b, nb::handle out) const;

  Call call(Operands& operands) override;
  Plan plan(const Problem&) override { return plan_; }
  void take_user(const UserRequest& given, Call& call) const;

  nb::object a_, b_;
  nb::tuple kept_;  // owns what `keywords_` refers to
  Keywords keywords_;
  Operand expected_[kRoles];    // without a name where the call has no such operand
  uint8_t align_[kRoles] = {};  // log2 of the bytes that each one's address is a multiple of
  std::vector<Operand> user_;   // of a user's epilogue; without a name where a number was given
  bool writes_aux_ = false;
  Call prototype_;
  Plan plan_;
  std::optional<CutlassPyGemm> single_;  // where a, b and out are all, and one launch does it
  Straight straight_[3] = {};
};

}  // namespace cutlass_py
