// The plan table: how each class of calls is computed. Filled by cutlass_py.dispatch.planning, once per class.
#pragma once

#include <utility>

#include <nanobind/nanobind.h>

#include "runtime/key.h"

namespace cutlass_py {

namespace nb = nanobind;

// Whether this thread is inside of `with cutlass_py.jit()`; how many choices of a new class are measured, which
// `with cutlass_py.autotuning()` tells: 0 outside of it; and whether it is inside of `with
// cutlass_py.batch_invariant()`.
extern thread_local bool jit_allowed;
extern thread_local int tuning_allowed;
extern thread_local bool batch_invariance_asked;

// For its length no class of calls is measured on this thread.
class NoTuning {
 public:
  NoTuning() : before_(std::exchange(tuning_allowed, 0)) {}
  ~NoTuning() { tuning_allowed = before_; }
  NoTuning(const NoTuning&) = delete;

 private:
  const int before_;
};

// The kernel asked for, as registry.py numbers it; -1 for None.
int32_t kernel_id(nb::handle kernel);

// Forgets every plan, and every launch that was made by one: the next call of each class asks again.
void clear_plans();

// What planning.py answers for a problem.
nb::object selected(nb::handle problem);

namespace plan_table {
uint64_t times_cleared();
void on_clear(void (*clear)());
}  // namespace plan_table

// The plans of one operation.
template <class Plan>
class PlanTable {
 public:
  static PlanTable& of_operation() {
    static auto* made = [] {
      plan_table::on_clear([] { of_operation().table_.clear(); });
      return new PlanTable();
    }();
    return *made;
  }

  // The plan that the table has, valid until Python code runs; null where it has none, or has forgotten it.
  const Plan* known(const Key& key) const { return table_.find(key); }

  // That, or what `choose` returns. By value: another thread may clear the table whenever Python code runs.
  template <class Choose>
  Plan find(const Key& key, Choose choose) {
    if (const Plan* plan = known(key)) return *plan;
    const uint64_t before = plan_table::times_cleared();
    Plan plan = choose();
    if (plan_table::times_cleared() != before) return plan;  // of what was there, and may be gone
    if (table_.size() >= kMost) clear_plans();
    return table_.keep(key, std::move(plan));
  }

 private:
  static constexpr size_t kMost = 1 << 16;  // a program with ever new shapes must not grow without bound
  KeyTable<Plan> table_;
};

}  // namespace cutlass_py
