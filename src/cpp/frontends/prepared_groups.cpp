#include "frontends/prepared_groups.h"

namespace cutlass_py {
namespace {

grouping::Asked asked_from(const nb::dict& groups) {
  const auto value = [&](const char* name) -> nb::handle {
    return groups.contains(name) ? nb::handle(PyDict_GetItemString(groups.ptr(), name)) : nb::handle(Py_None);
  };
  return {value("offsets"), value("sizes"), value("gather"), value("expected")};
}

}  // namespace

PreparedGroups::PreparedGroups(nb::object a, nb::object b, nb::dict groups, const nb::dict& keywords, int raster,
                               int swizzle)
    : a_(std::move(a)),
      b_(std::move(b)),
      groups_(std::move(groups)),
      kept_(keywords.values()),
      keywords_(keywords_from(keywords)),
      problem_(grouping::problem_of(a_, b_, asked_from(groups_), keywords_)) {
  plan_ = plan_for(problem_);
  if (plan_.divided) refuse(no_single_plan(problem_));
  set_order(plan_, raster, swizzle);
}

nb::object PreparedGroups::operator()(nb::handle a, nb::handle b, const grouping::Asked& asked, const Keywords& given,
                                      nb::handle workspace) const {
  const OperationScope operation("grouped_gemm");
  const auto otherwise = [](nb::handle x, nb::handle kept) { return x.is_none() ? kept : x; };
  Keywords keywords = keywords_;
  for (const ArrayKeyword& each : kArrayKeywords) {
    if (!(given.*each.value).is_none()) keywords.*each.value = given.*each.value;
  }
  keywords.stream = given.stream;
  grouping::Asked of_all = asked_from(groups_);
  of_all.offsets = otherwise(asked.offsets, of_all.offsets), of_all.sizes = otherwise(asked.sizes, of_all.sizes);
  of_all.gather = otherwise(asked.gather, of_all.gather);
  const grouping::Settled settled{problem_, plan_, workspace};
  return grouping::grouped_gemm(otherwise(a, a_), otherwise(b, b_), of_all, keywords, &settled);
}

}  // namespace cutlass_py
