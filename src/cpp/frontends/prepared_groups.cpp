#include "frontends/prepared_groups.h"

namespace cutlass_py {
namespace {

grouping::Asked asked_from(const nb::dict& groups) {
  const auto value = [&](const char* name) -> nb::handle {
    return groups.contains(name) ? nb::handle(PyDict_GetItemString(groups.ptr(), name)) : nb::handle(Py_None);
  };
  return {value("offsets"), value("sizes"), value("gather"), value("expected")};
}

[[noreturn]] void refuse_array(const char* name) {
  refuse(Refusal(name, "is given").hints("the plan was made without such an array"));
}

}  // namespace

PreparedGroups::PreparedGroups(nb::object a, nb::object b, const nb::dict& groups, const nb::dict& keywords, int raster,
                               int swizzle)
    : a_(std::move(a)),
      b_(std::move(b)),
      groups_(groups.values()),
      kept_(keywords.values()),
      asked_(asked_from(groups)),
      keywords_(keywords_from(keywords)),
      planned_(grouping::planned_of(a_, b_, asked_, keywords_)) {
  const OperationScope operation("grouped_gemm");
  plan_ = plan_for(problem());
  if (plan_.divided) refuse(no_single_plan(problem()));
  set_order(plan_, raster, swizzle);
}

nb::object PreparedGroups::operator()(nb::handle a, nb::handle b, const grouping::Asked& asked, const Keywords& given,
                                      nb::handle workspace) const {
  const OperationScope operation("grouped_gemm");
  const auto otherwise = [](nb::handle x, nb::handle kept) { return x.is_none() ? kept : x; };
  Keywords keywords = keywords_;
  for (const ArrayKeyword& each : kArrayKeywords) {
    const nb::handle value = given.*each.value;
    if (value.is_none()) continue;
    if (each.role != Role::out && !planned_.arrays[size_t(each.role)]) refuse_array(name_of(each.role));
    keywords.*each.value = value;
  }
  if (!asked.gather.is_none() && asked_.gather.is_none()) refuse_array("gather");
  keywords.stream = given.stream;
  const grouping::Asked of_all{otherwise(asked.offsets, asked_.offsets), otherwise(asked.sizes, asked_.sizes),
                               otherwise(asked.gather, asked_.gather), asked_.expected};
  const grouping::Settled settled{problem(), plan_, workspace};
  return grouping::grouped_gemm(otherwise(a, a_), otherwise(b, b_), of_all, keywords, &settled);
}

}  // namespace cutlass_py
