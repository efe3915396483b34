#include "call.h"

#include <nanobind/stl/string.h>

#include <optional>

#include "buffer.h"
#include "host.h"
#include "metadata.h"
#include "plan.h"
#include "provided.h"
#include "run.h"
#include "streams.h"

namespace cutlass_py {
namespace {

using device::Stream;

Call canonical_call(Operands& operands, const Keywords& keywords) {
  Call call = canonicalise(request_from(operands, keywords));
  call.problem.kernel = kernel_number(keywords.kernel);
  call.problem.jit = jit_allowed;
  for (const Suspect& suspect : call.suspects) {  // rare: bytes interleave
    if (shares_memory(*suspect.other, *suspect.written)) throw std::invalid_argument(suspect.message);
  }
  return call;
}

void check_devices(const Operands& operands) {
  const Operand& a = operands[Role::a]->operand;
  operands.each([&](const View& view) { check_same_device(a, view.operand); });
}

// A new array of the caller's kind for the result. That of lists is one array, handed out in slices.
struct Result {
  nb::object array;
  View view;
  nb::object row;              // finishes the array, where the framework's row made it
  bool on_own_stream = false;  // a Buffer: ordered by this package's stream

  void allocate(const Operands& operands, Call& call, Stream stream, bool stream_given) {
    const View& like = *operands[Role::a];
    lists = operands.has_lists();
    const Device device = call.problem.device;
    if (like.type->exchange && !like.inner.is_valid() && !stream_given) {
      allocate_by_exchange(*like.type->exchange, call);
    } else {
      nb::list shape;
      for (int i = 0; i < call.out_rank; ++i) shape.append(call.out_shape[i]);
      row = like.type->row;
      const int ordinal = device.type == DeviceType::cuda ? device.id : -1;
      array = row.attr("empty")(nb::tuple(shape), dtype_name(call.problem.d), ordinal,
                                reinterpret_cast<uintptr_t>(stream), like.inner.is_valid());
      if (nb::isinstance<Buffer>(array)) {
        on_own_stream = true;
        place_result(call, nb::cast<Buffer&>(array).data());
        const Stream own = device::own_stream(device.id);
        if (own != stream) device::wait(stream, own);
        return;
      }
      view.open(array, "out");
      view.import(stream);
    }
    place_result(call, view.operand.data);
  }

  nb::object finish() {
    view.release();
    nb::object finished = row.is_valid() ? nb::object(row.attr("finish")(array)) : array;
    return lists ? nb::module_::import_("cutlass_py.frameworks").attr("split")(finished) : finished;
  }

 private:
  bool lists = false;

  void allocate_by_exchange(const DLPackExchangeAPI& api, const Call& call) {
    const Device device = call.problem.device;
    const DtypeRow& dtype = kDtypes[int(call.problem.d)];
    DLTensor prototype{};
    prototype.device = {device.type == DeviceType::cuda ? kDLCUDA : kDLCPU, device.id};
    prototype.ndim = call.out_rank;
    prototype.dtype = {uint8_t(dtype.dlpack_code), uint8_t(dtype.bits), 1};
    prototype.shape = const_cast<int64_t*>(call.out_shape);
    DLManagedTensorVersioned* managed = nullptr;
    std::string problem;
    auto set_error = [](void* context, const char* kind, const char* message) {
      *static_cast<std::string*>(context) = std::string(kind) + ": " + message;
    };
    if (api.managed_tensor_allocator(&prototype, &managed, &problem, set_error) != 0) {
      throw std::runtime_error("gemm: the framework could not allocate the result: " + problem);
    }
    view.operand.data = static_cast<char*>(managed->dl_tensor.data) + managed->dl_tensor.byte_offset;
    void* object = nullptr;
    if (api.managed_tensor_to_py_object_no_sync(managed, &object) != 0) nb::raise_python_error();
    array = nb::steal(static_cast<PyObject*>(object));
  }
};

nb::object gemm_on_host(Operands& operands, const Keywords& keywords) {
  if (!keywords.stream.is_none()) stream_from(keywords.stream);  // without effect here, but no nonsense either
  operands.each([](View& view) { view.import(nullptr); });
  Call call = canonical_call(operands, keywords);
  Result result;
  if (!operands[Role::out]) result.allocate(operands, call, nullptr, false);
  if (!nothing_to_do(call.problem)) {
    const Plan plan = plan_for(call.problem);
    run_all(call, [&] { run_provided(call, plan, nullptr); });
  }
  return operands[Role::out] ? nb::borrow(keywords.out) : result.finish();
}

// For its length, and where it is wanted, no class of calls is measured: waiting would end a capture.
class NoTuning {
 public:
  explicit NoTuning(bool unwanted) : before_(tuning_allowed) { tuning_allowed = before_ && !unwanted; }
  ~NoTuning() { tuning_allowed = before_; }
  NoTuning(const NoTuning&) = delete;

 private:
  const bool before_;
};

nb::object gemm_on_device(Operands& operands, const Keywords& keywords) {
  const int device_id = operands[Role::a]->operand.device.id;
  device::Guard guard(device_id);
  const Streams streams(operands, device_id, keywords.stream);
  if (streams.several() && streams.capturing()) {
    throw std::invalid_argument(
        "gemm: during graph capture all operands must belong to one framework and its current stream must be the one "
        "that captures: an event of another stream would end the capture");
  }
  operands.each([&](View& view) { view.import(streams.launch); });
  Call call = canonical_call(operands, keywords);
  Result result;
  const bool new_result = !operands[Role::out];
  if (nothing_to_do(call.problem)) {
    if (new_result) result.allocate(operands, call, streams.launch, streams.given);
  } else {
    const NoTuning untouched(tuning_allowed && streams.capturing());
    const Plan plan = plan_for(call.problem);  // before anything is allocated: it may refuse
    if (new_result) result.allocate(operands, call, streams.launch, streams.given);
    streams.before();
    run_all(call, [&] { run_on_device(call, plan, streams.launch); });
    streams.after();
    if (result.on_own_stream || streams.streamless) {  // what this package owes to others is ordered by its own stream
      if (streams.launch != device::own_stream(device_id)) {
        device::wait(device::own_stream(device_id), streams.launch);
      }
    }
  }
  nb::object returned = new_result ? result.finish() : nb::borrow(keywords.out);
  if (streams.streamless) release_when_done(operands, device::own_stream(device_id));
  return returned;
}

}  // namespace

nb::object gemm(nb::handle a, nb::handle b, const Keywords& keywords) {
  Operands operands;
  open_operands(operands, a, b, keywords);
  operands.each([](const View& view) {
    if (!view.operand.metadata_only) return;
    throw nb::type_error(("gemm: " + std::string(view.operand.name) +
                          " is a TensorSpec, which has no memory; use explain or get_kernels")
                             .c_str());
  });
  return gemm(operands, keywords);
}

nb::object gemm(Operands& operands, const Keywords& keywords) {
  check_devices(operands);
  const bool on_host = operands[Role::a]->operand.device.type == DeviceType::cpu;
  return on_host ? gemm_on_host(operands, keywords) : gemm_on_device(operands, keywords);
}

namespace {

// The canonical call of operands that may be metadata, and whose memory is not looked at.
Call call_of(Operands& operands, nb::handle a, nb::handle b, const Keywords& keywords) {
  open_operands(operands, a, b, keywords);
  check_devices(operands);
  operands.each([](View& view) {
    if (view.complete) return;
    const bool cuda = view.operand.device.type == DeviceType::cuda;
    view.import(cuda ? device::own_stream(view.operand.device.id) : nullptr);
  });
  return canonical_call(operands, keywords);
}

}  // namespace

Problem problem_of(nb::handle a, nb::handle b, const Keywords& keywords) {
  Operands operands;
  return call_of(operands, a, b, keywords).problem;
}

size_t scratch_bytes_of(nb::handle a, nb::handle b, const Keywords& keywords, nb::handle chosen, int sm_count) {
  Operands operands;
  const Call call = call_of(operands, a, b, keywords);
  if (call.problem.pointers) throw std::invalid_argument("gemm: lists of matrices have no scratch of their caller's");
  DevicePlan plan = device_plan(chosen);
  plan.sm_count = sm_count;
  // Kernels are asked on the device that they will run on; where there is none, the call is for another machine.
  const Device device = call.problem.device;
  std::optional<device::Guard> guard;
  if (device.type == DeviceType::cuda && device.id < device::count()) guard.emplace(device.id);
  return nothing_to_do(call.problem) ? 0 : scratch_bytes(call, plan);
}

}  // namespace cutlass_py
