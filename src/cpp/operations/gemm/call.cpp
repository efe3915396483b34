#include "operations/gemm/call.h"

#include <nanobind/stl/string.h>

#include <optional>

#include "arrays/dlpack_export.h"
#include "arrays/exact_overlap.h"
#include "arrays/metadata.h"
#include "operations/gemm/canonical.h"
#include "operations/gemm/python_kernel.h"
#include "operations/gemm/run.h"
#include "runtime/buffer.h"
#include "runtime/instrumentation.h"
#include "runtime/plan_table.h"
#include "runtime/streams.h"

namespace cutlass_py {
namespace {

using device::Stream;

Call canonical_call(const Request& request, const Keywords& keywords) {
  Call call = canonicalise(request);
  call.problem.kernel = kernel_number(keywords.kernel);
  call.problem.jit = jit_allowed;
  check_possible_overlaps(call.possible_overlaps);
  return call;
}

void check_devices(const Operands& operands) {
  const Operand& a = operands[Role::a]->operand;
  operands.each([&](const View& view) { check_same_device(a, view.operand); });
}

// A new array of the caller's kind for the result. That of lists is one array, handed out in slices.
class Result {
 public:
  // Makes it, and says where it lies.
  void* allocate(const Operands& operands, const Operand& made, Stream stream, bool stream_given) {
    const View& like = *operands[Role::a];
    lists_ = operands.has_lists();
    const bool may_exchange = like.type->exchange && !like.inner.is_valid() && !stream_given;
    if (!may_exchange || !make_by_exchange(*like.type, made)) make_by_row(like, made, stream);
    return data_;
  }

  bool is_on_own_stream() const { return on_own_stream_; }

  nb::object finish() {
    view_.release();
    nb::object finished = row_.is_valid() ? nb::object(row_.attr("finish")(array_)) : array_;
    return lists_ ? nb::module_::import_("cutlass_py.arrays.frameworks").attr("split")(finished) : finished;
  }

 private:
  // False where the framework makes no array like this one: its row in frameworks.py may, or says why not.
  bool make_by_exchange(const ArrayType& type, const Operand& x) {
    const DtypeRow& dtype = kDtypes[int(x.dtype)];
    DLTensor prototype{};
    prototype.device = {x.device.type == DeviceType::cuda ? kDLCUDA : kDLCPU, x.device.id};
    prototype.ndim = x.rank;
    prototype.dtype = {uint8_t(dtype.dlpack_code), uint8_t(dtype.bits), 1};
    prototype.shape = const_cast<int64_t*>(x.shape);
    DLManagedTensorVersioned* made = new_array(*type.exchange, prototype);
    if (!made) return false;
    data_ = static_cast<char*>(made->dl_tensor.data) + made->dl_tensor.byte_offset;
    void* object = nullptr;
    if (type.exchange->managed_tensor_to_py_object_no_sync(made, &object) != 0) {
      raise_for_exchange(type, "managed_tensor_to_py_object_no_sync");
    }
    array_ = nb::steal(static_cast<PyObject*>(object));
    return true;
  }

  void make_by_row(const View& like, const Operand& x, Stream stream) {
    const int ordinal = x.device.type == DeviceType::cuda ? x.device.id : -1;
    row_ = like.type->row;
    array_ = row_.attr("empty")(tuple_of(x.shape, x.rank), dtype_name(x.dtype), ordinal,
                                reinterpret_cast<uintptr_t>(stream), like.inner.is_valid());
    if (nb::isinstance<Buffer>(array_)) {
      on_own_stream_ = true;
      data_ = nb::cast<Buffer&>(array_).data();
      follow_own_stream(stream, x.device.id);
    } else {
      view_.open(array_, "out");
      view_.import(stream);
      data_ = view_.operand.data;
    }
  }

  static void follow_own_stream(Stream stream, int device_id) {
    const Stream own = device::own_stream(device_id);
    if (own == stream) return;
    if (device::capturing(stream)) {
      refuse(
          Refusal("during graph capture no result is made in memory of this package's own, which another stream "
                  "orders: pass out="));
    }
    follow(stream, own);
  }

  nb::object array_;
  void* data_ = nullptr;
  nb::object row_;              // finishes the array, where the framework's row made it
  View view_;                   // of that array
  bool on_own_stream_ = false;  // a Buffer: ordered by this package's stream
  bool lists_ = false;
};

nb::object execute_on_host(Operands& operands, Source& source, nb::handle out, nb::handle stream,
                           Workspace& workspace) {
  if (!stream.is_none()) stream_from(stream);  // without effect here, but no nonsense either
  operands.each([](View& view) { view.import(nullptr); });
  Call call = source.call(operands);
  workspace.on(nullptr, operands, 0);
  Result result;
  if (!operands[Role::out]) place_result(call, result.allocate(operands, new_result(call), nullptr, false));
  if (!nothing_to_do(call.problem)) {
    const Plan plan = source.plan(call.problem);
    trace::watched(operands, call, plan, nullptr, [&] { run_all(call, [&] { run_provided(call, plan, nullptr); }); });
  }
  return operands[Role::out] ? nb::borrow(out) : result.finish();
}

// For its length no class of calls is measured.
class NoTuning {
 public:
  NoTuning() : before_(tuning_allowed) { tuning_allowed = false; }
  ~NoTuning() { tuning_allowed = before_; }
  NoTuning(const NoTuning&) = delete;

 private:
  const bool before_;
};

// Queues a call and orders with it what comes next, even where it failed: what was queued before that runs.
template <class Queue, class Order>
void queue_in_order(Queue queue, Order order) {
  try {
    queue();
  } catch (...) {
    try {
      order();
    } catch (const CudaError&) {  // the first error says more
    }
    throw;
  }
  order();
}

nb::object execute_on_device(Operands& operands, Source& source, nb::handle out, nb::handle stream,
                             Workspace& workspace) {
  const int device_id = operands[Role::a]->operand.device.id;
  device::Guard guard(device_id);
  const Streams streams(operands, operands[Role::out], device_id, stream);
  if (streams.several() && streams.capturing()) {
    refuse(
        Refusal("during graph capture all operands must belong to one framework and its current stream must be the one "
                "that captures: an event of another stream would end the capture"));
  }
  operands.each([&](View& view) { view.import(streams.launch); });
  Result result;
  const auto in_order = [&](auto queue) {
    streams.before();
    queue_in_order(queue, [&] {
      streams.after();
      if (!result.is_on_own_stream() && !streams.streamless) return;
      // Arrays without a stream, and results of ours, are ordered by our own stream.
      const Stream own = device::own_stream(device_id);
      if (streams.launch != own) follow(own, streams.launch);
      if (streams.streamless) release_when_done(operands, streams.launch);
    });
  };
  const bool makes_result = !operands[Role::out];
  const auto allocate = [&](const Operand& made) {
    return result.allocate(operands, made, streams.launch, streams.given);
  };
  if (const Ready* ready = workspace || trace::asked_for(trace::kAnything) ? nullptr : source.ready(operands)) {
    void* const made = makes_result ? allocate(ready->result()) : nullptr;
    in_order([&] { source.run_ready(streams.launch, made); });
    return makes_result ? result.finish() : nb::borrow(out);
  }
  Call call = source.call(operands);
  if (nothing_to_do(call.problem)) {
    if (makes_result) allocate(new_result(call));
  } else {
    std::optional<NoTuning> untouched;
    if (tuning_allowed && streams.capturing()) untouched.emplace();  // waiting would end the capture
    const Plan plan = source.plan(call.problem);
    const GivenScratch* scratch =
        workspace ? workspace.on(streams.launch, operands, scratch_bytes(call, plan)) : nullptr;
    if (makes_result) place_result(call, allocate(new_result(call)));
    const auto run = [&] { run_all(call, [&] { run_on_device(call, plan, streams.launch, scratch); }); };
    in_order([&] { trace::watched(operands, call, plan, streams.launch, run); });
    source.keep(call);
  }
  return makes_result ? result.finish() : nb::borrow(out);
}

}  // namespace

nb::object gemm(nb::handle a, nb::handle b, const Keywords& keywords) {
  Operands operands;
  open_operands(operands, a, b, keywords);
  operands.check_memory("use explain or get_kernels");
  return gemm(operands, keywords);
}

namespace {

class Fresh final : public Source {
 public:
  explicit Fresh(const Keywords& keywords) : keywords_(keywords) {}
  Call call(Operands& operands) override { return canonical_call(request(operands), keywords_); }
  Plan plan(const Problem& problem) override { return plan_for(problem); }

  const Ready* ready(Operands& operands) override {
    if (!keywords_.kernel.is_none()) return nullptr;  // its number is asked of Python
    asked_.emplace(request(operands), jit_allowed);
    if (*asked_) ready_ = find_ready(*asked_);
    if (!ready_ || !*ready_ || !provably_apart(*request_)) return nullptr;
    // To allocate a result may run any Python, other calls of gemm too.
    if (!operands[Role::out]) ready_ = &copy_.emplace(*ready_);
    return ready_;
  }
  void run_ready(Stream stream, void* result) override {
    CutlassPyGemm g = ready_->launch_of(*request_, stream, result);
    const DevicePlan plan = ready_->plan();
    nb::gil_scoped_release may_wait;  // the table may be cleared meanwhile
    launch(plan, g);
  }
  void keep(const Call& call) override {
    if (!asked_ || !*asked_ || ready_) return;
    if (const Plan* plan = known_plan(call.problem)) keep_ready(*asked_, Ready(call, *plan));
  }

 private:
  const Request& request(Operands& operands) {
    if (!request_) request_ = request_from(operands, keywords_);
    return *request_;
  }

  const Keywords& keywords_;
  std::optional<Request> request_;
  std::optional<Asked> asked_;
  const Ready* ready_ = nullptr;
  std::optional<Ready> copy_;
};

}  // namespace

nb::object gemm(Operands& operands, const Keywords& keywords) {
  Fresh source(keywords);
  return execute(operands, source, keywords.out, keywords.stream, nb::handle(Py_None));
}

nb::object execute(Operands& operands, Source& source, nb::handle out, nb::handle stream, nb::handle given) {
  check_devices(operands);
  const Operand& a = operands[Role::a]->operand;
  Workspace workspace;
  workspace.open(given, a);
  const bool on_host = a.device.type == DeviceType::cpu;
  nb::object d = (on_host ? execute_on_host : execute_on_device)(operands, source, out, stream, workspace);
  operands.tell_written();
  return d;
}

void Workspace::open(nb::handle array, const Operand& a) {
  if (array.is_none()) return;
  view_.open(array, "workspace");
  if (view_.operand.metadata_only || !view_.type->mutable_) {
    refuse_type(Refusal("workspace", "is " + described_type(array)).expects("an array that can be written"));
  }
  check_same_device(a, view_.operand);
}

const GivenScratch* Workspace::on(Stream stream, const Operands& operands, size_t needed) {
  if (!view_) return nullptr;
  view_.import(stream);
  const Operand& x = view_.operand;
  if (dtype_size(x.dtype) != 1) refuse_type(found_dtype(x).expects("bytes (u8)"));
  if (x.rank != 1 || (x.shape[0] > 1 && x.strides[0] != 1))
    refuse(found(x).adds(" with strides " + shape_text(x.strides, x.rank)).expects("one dimension without gaps"));
  if (x.readonly) refuse(Refusal("workspace", "is read-only"));
  if (size_t(x.shape[0]) < needed) {
    refuse(Refusal("workspace", "has " + std::to_string(x.shape[0]) + " bytes")
               .expects("at least " + std::to_string(needed)));
  }
  if (needed && reinterpret_cast<uintptr_t>(x.data) % kScratchAlignment) {
    refuse(Refusal("workspace",
                   "starts at an address that is no multiple of " + std::to_string(kScratchAlignment) + " bytes"));
  }
  operands.each([&](const View& view) {
    if (!provably_disjoint(x, view.operand))
      refuse(Refusal("workspace", "shares memory with", "overlap").beside(view.operand.name));
  });
  given_ = {static_cast<char*>(x.data), size_t(x.shape[0])};
  return &given_;
}

Call call_of(Operands& operands, nb::handle a, nb::handle b, const Keywords& keywords) {
  open_operands(operands, a, b, keywords);
  check_devices(operands);
  operands.each([](View& view) {
    if (view.complete) return;
    const bool cuda = view.operand.device.type == DeviceType::cuda;
    view.import(cuda ? device::own_stream(view.operand.device.id) : nullptr);
  });
  return canonical_call(request_from(operands, keywords), keywords);
}

Problem problem_of(nb::handle a, nb::handle b, const Keywords& keywords) {
  Operands operands;
  return call_of(operands, a, b, keywords).problem;
}

size_t scratch_bytes_of(nb::handle a, nb::handle b, const Keywords& keywords, nb::handle chosen, int sm_count) {
  Operands operands;
  const Call call = call_of(operands, a, b, keywords);
  if (call.problem.pointers) refuse(Refusal("lists of matrices have no scratch of their caller's"));
  DevicePlan plan = device_plan(chosen);
  plan.sm_count = sm_count;
  // Kernels are asked on the device that they will run on; where there is none, the call is for another machine.
  const Device device = call.problem.device;
  std::optional<device::Guard> guard;
  if (device.type == DeviceType::cuda && device.id < device::count()) guard.emplace(device.id);
  return nothing_to_do(call.problem) ? 0 : scratch_bytes(call, plan);
}

}  // namespace cutlass_py
