// Tests of run.cpp on kernels that only take notes: what a plan launches, and the scratch that it asks for.
#include "operations/gemm/run.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "check.h"
#include "no_device.h"
#include "runtime/registry.h"

using namespace cutlass_py;

namespace {

struct Noted {
  CutlassPyGemm g;
  CutlassPyLaunch launch;
  size_t needed;  // bytes of workspace
};
std::vector<Noted> launches;

// Large for batches of short sums: a launch for all of k would need less than one for its parts.
const CutlassPyGemm& gemm(const void* arguments) { return *static_cast<const CutlassPyGemm*>(arguments); }
size_t bytes_per_problem(const void* x, const CutlassPyLaunch*) { return size_t(gemm(x).batch) * 1024; }
size_t bytes_per_depth(const void* x, const CutlassPyLaunch*) { return size_t(gemm(x).k) * 1024; }
size_t bytes_per_line(const void* x, const CutlassPyLaunch*) {
  return size_t(gemm(x).lda + gemm(x).ldb + gemm(x).ldd) * 1024;
}

template <decltype(CutlassPyKernel::workspace_size) bytes>
int note(const void* arguments, const CutlassPyLaunch* launch) {
  launches.push_back({gemm(arguments), *launch, bytes(arguments, launch)});
  return 0;
}

template <decltype(CutlassPyKernel::workspace_size) bytes>
DevicePlan plan_with(int splits) {
  static const CutlassPyKernel kernel = {"noted", {}, bytes, &note<bytes>, nullptr, CUTLASS_PY_GEMM, nullptr};
  DevicePlan plan;
  plan.kernel = &kernel;
  plan.scratch = Dtype::f32;
  plan.splits = splits;
  return plan;
}

int copy(const CutlassPyArray*, const CutlassPyArray*, int32_t, int64_t, int64_t, int64_t, void*) { return 0; }
int compose(const CutlassPyArray*, int32_t, int64_t, const CutlassPyEpilogue*, const CutlassPyArray*, int64_t, int64_t,
            int64_t, void*, void*) {
  return 0;
}
size_t compose_workspace(const CutlassPyEpilogue*, int64_t, int64_t, int64_t) { return 0; }
const CutlassPyElementwise elementwise = [] {
  CutlassPyElementwise all{};
  all.copy = &copy, all.compose = &compose, all.compose_workspace = &compose_workspace;
  return all;
}();
const CutlassPyLibrary library = {CUTLASS_PY_ABI, 0, nullptr, &elementwise, nullptr, nullptr, nullptr};

// Row-major f32 operands, whose memory nothing here reads.
Call call_of(int32_t m, int32_t n, int32_t k, int32_t batch) {
  static float a, b, d;
  Call call;
  Problem& p = call.problem;
  p.m = m, p.n = n, p.k = k, p.batch = batch;
  p.a = p.b = p.operand_a = p.operand_b = p.d = p.accumulator = Dtype::f32;
  p.device = {DeviceType::cuda, 0};
  call.a = {&a, Dtype::f32, k, 1, int64_t(m) * k};
  call.b = {&b, Dtype::f32, n, 1, int64_t(k) * n};
  call.d = {&d, Dtype::f32, n, 1, int64_t(m) * n};
  call.lda = k, call.ldb = n, call.ldd = n;
  call.epilogue.alpha.value = 1;
  return call;
}

void run(const Call& call, const DevicePlan& plan) {
  launches.clear();
  run_on_device(call, plan, nullptr);
}

// Whether every launch found the workspace that it needs, in the memory that was allocated for the call.
bool all_had_room() {
  for (const Noted& launch : launches) {
    const char* from = static_cast<char*>(launch.launch.workspace);
    if (from < memory.data() || from + launch.needed > memory.data() + memory.size()) return false;
  }
  return !launches.empty();
}

TEST(parts_of_k) {
  run(call_of(8, 16, 1000, 1), plan_with<bytes_per_problem>(4));  // 3 parts of 256, then 232
  CHECK(launches.size() == 2);
  CHECK(launches[0].g.batch == 3 && launches[0].g.k == 256 && launches[1].g.batch == 1 && launches[1].g.k == 232);
  const auto moved = [](const void* x, const void* by) {
    return static_cast<const char*>(by) - static_cast<const char*>(x);
  };
  CHECK(moved(launches[0].g.a, launches[1].g.a) == 768 * 4 && moved(launches[0].g.b, launches[1].g.b) == 768 * 16 * 4);
  CHECK(moved(launches[0].g.d, launches[1].g.d) == 3 * launches[0].g.batch_d * 4 && launches[0].g.batch_d == 8 * 16);
  run(call_of(8, 16, 1000, 5), plan_with<bytes_per_problem>(4));  // a batch already: one launch each
  CHECK(launches.size() == 4 && launches[0].g.batch == 5 && launches[3].g.k == 232);
  run(call_of(8, 16, 1000, 5), plan_with<bytes_per_problem>(1));
  CHECK(launches.size() == 1 && launches[0].g.batch == 5 && launches[0].g.k == 1000);
}

// The workspace is that of the launches, not of one for all of k.
TEST(every_launch_has_its_workspace) {
  for (int32_t batch : {1, 5}) {
    for (int splits : {1, 2, 4, 7}) {
      const Call call = call_of(8, 16, 1000, batch);
      run(call, plan_with<bytes_per_problem>(splits));
      CHECK(all_had_room());
      run(call, plan_with<bytes_per_depth>(splits));
      CHECK(all_had_room());
    }
  }
}

TEST(the_workspace_is_that_of_operands_as_they_are_launched) {
  Call call = call_of(8, 15, 999, 1);
  DevicePlan plan = plan_with<bytes_per_line>(2);
  plan.pack_a = plan.pack_b = 't';  // rows are padded to 16 bytes, as those of scratch are
  run(call, plan);
  CHECK(all_had_room());
  CHECK(launches[0].g.lda == 1000 && launches[0].g.ldb == 16 && launches[0].g.ldd == 16);
}

TEST(scratch_bytes_are_those_of_a_run) {
  const Call call = call_of(8, 16, 1000, 1);
  const DevicePlan plan = plan_with<bytes_per_problem>(4);
  run(call, plan);
  CHECK(scratch_bytes(call, plan) == memory.size());
}

// In a stream; in a graph behind one of ours alone, which are marked for that.
TEST(which_launches_overlap) {
  const Call call = call_of(8, 16, 1000, 1);
  DevicePlan plan = plan_with<bytes_per_problem>(1);
  for (bool planned : {false, true}) {
    for (bool captured : {false, true}) {
      for (bool behind : {false, true}) {
        plan.overlap = planned, captures = captured, behind_a_marked_one = behind, marks = 0;
        run(call, plan);
        CHECK(bool(launches.back().launch.overlap) == (planned && (!captured || behind)));
        CHECK(marks == (planned && captured));
      }
    }
  }
  captures = behind_a_marked_one = false;
}

}  // namespace

namespace cutlass_py {

const CutlassPyLibrary* builtin_library() { return &library; }

}  // namespace cutlass_py
