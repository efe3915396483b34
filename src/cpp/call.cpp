#include "call.h"

#include <nanobind/stl/string.h>

#include "buffer.h"
#include "metadata.h"
#include "plan.h"
#include "run.h"
#include "streams.h"

namespace cutlass_py {
namespace {

using device::Stream;

double scalar_from(nb::handle value, const char* name) {
  if (nb::hasattr(value, "__dlpack__")) {  // reading it would make the host wait for the device
    throw nb::type_error(("gemm: " + std::string(name) + " is an array; expected a number").c_str());
  }
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred()) {
    const bool overflow = PyErr_ExceptionMatches(PyExc_OverflowError);
    PyErr_Clear();
    if (overflow) throw std::invalid_argument("gemm: " + std::string(name) + " is too large for a float");
    nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
    throw nb::type_error(
        ("gemm: " + std::string(name) + " is a " + nb::cast<std::string>(type.attr("__name__")) + "; expected a number")
            .c_str());
  }
  return number;
}

Options options_from(const Keywords& keywords) {
  Options options;
  if (PyFloat_CheckExact(keywords.alpha.ptr())) {
    options.alpha = PyFloat_AsDouble(keywords.alpha.ptr());
  } else {
    options.alpha = scalar_from(keywords.alpha, "alpha");
  }
  if (!keywords.beta.is_none()) {
    options.beta = scalar_from(keywords.beta, "beta");
    options.has_beta = true;
  }
  if (!keywords.compute.is_none()) {
    if (!nb::isinstance<nb::str>(keywords.compute))
      throw nb::type_error("gemm: compute must be a string such as 'tf32'");
    options.compute = PyUnicode_AsUTF8AndSize(keywords.compute.ptr(), nullptr);
    if (!options.compute) {  // lone surrogates
      PyErr_Clear();
      throw std::invalid_argument("gemm: compute is no valid text; expected a name such as 'tf32'");
    }
  }
  if (!keywords.out_dtype.is_none()) options.out_dtype = dtype_from(keywords.out_dtype, "out_dtype");
  return options;
}

int32_t kernel_number(nb::handle kernel) {
  if (kernel.is_none()) return -1;
  return nb::cast<int32_t>(nb::module_::import_("cutlass_py.kernels").attr("number_of")(kernel));
}

Call canonical_call(const Operands& operands, const Keywords& keywords) {
  Call call = canonicalise(operands.a.operand, operands.b.operand, operands.c ? &operands.c.operand : nullptr,
                           operands.out ? &operands.out.operand : nullptr, options_from(keywords));
  call.problem.kernel = kernel_number(keywords.kernel);
  call.problem.jit = jit_allowed;
  if (call.suspect_count) {  // rare: bytes interleave; numpy's exact solver decides
    nb::object shares = nb::module_::import_("cutlass_py.host").attr("shares_memory");
    nb::object out = host_operand(call.suspected_out, call.out_rows, call.out_cols, call.out_batch);
    for (int i = 0; i < call.suspect_count; ++i) {
      const Call::Suspect& suspect = call.suspects[i];
      if (!nb::cast<bool>(shares(host_operand(suspect.matrix, suspect.rows, suspect.cols, call.out_batch), out)))
        continue;
      throw std::invalid_argument(std::string("gemm: out shares elements with ") + suspect.name +
                                  "; it may only be c itself, element for element");
    }
  }
  return call;
}

void check_devices(const Operands& operands) {
  for (int i = 1; i < operands.count; ++i) check_same_device(operands.a.operand, operands.given[i]->operand);
}

// A new array of the caller's kind for the result.
struct Result {
  nb::object array;
  View view;
  nb::object row;              // finishes the array, where the framework's row made it
  bool on_own_stream = false;  // a Buffer: ordered by this package's stream

  void allocate(const Operands& operands, Call& call, Stream stream, bool stream_given) {
    const View& like = operands.a;
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
        call.d.data = nb::cast<Buffer&>(array).data();
        const Stream own = device::own_stream(device.id);
        if (own != stream) device::wait(stream, own);
        return;
      }
      view.open(array, "out");
      view.import(stream);
    }
    call.d.data = view.operand.data;
  }

  nb::object finish() {
    view.release();
    return row.is_valid() ? nb::object(row.attr("finish")(array)) : array;
  }

 private:
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

bool empty(const Problem& p) { return p.m == 0 || p.n == 0 || p.batch == 0; }

nb::object gemm_on_host(Operands& operands, const Keywords& keywords) {
  if (!keywords.stream.is_none()) stream_from(keywords.stream);  // without effect here, but no nonsense either
  for (int i = 0; i < operands.count; ++i) operands.given[i]->import(nullptr);
  Call call = canonical_call(operands, keywords);
  Result result;
  if (!operands.out) result.allocate(operands, call, nullptr, false);
  if (!empty(call.problem)) run_on_host(call, plan_for(call.problem));
  return operands.out ? nb::borrow(keywords.out) : result.finish();
}

nb::object gemm_on_device(Operands& operands, const Keywords& keywords) {
  const int device_id = operands.a.operand.device.id;
  device::Guard guard(device_id);
  const Streams streams(operands, device_id, keywords.stream);
  if (streams.several() && streams.capturing()) {
    throw std::invalid_argument(
        "gemm: during graph capture all operands must belong to one framework and its current stream must be the one "
        "that captures: an event of another stream would end the capture");
  }
  for (int i = 0; i < operands.count; ++i) operands.given[i]->import(streams.launch);
  Call call = canonical_call(operands, keywords);
  Result result;
  if (empty(call.problem)) {
    if (!operands.out) result.allocate(operands, call, streams.launch, streams.given);
  } else {
    const Plan plan = plan_for(call.problem);  // before anything is allocated: it may refuse
    if (!operands.out) result.allocate(operands, call, streams.launch, streams.given);
    streams.before();
    run_on_device(call, plan, streams.launch);
    streams.after();
    if (result.on_own_stream || streams.streamless) {  // what this package owes to others is ordered by its own stream
      if (streams.launch != device::own_stream(device_id)) {
        device::wait(device::own_stream(device_id), streams.launch);
      }
    }
  }
  nb::object returned = operands.out ? nb::borrow(keywords.out) : result.finish();
  if (streams.streamless) release_when_done(operands, device::own_stream(device_id));
  return returned;
}

}  // namespace

nb::object gemm(nb::handle a, nb::handle b, const Keywords& keywords) {
  Operands operands;
  operands.open(a, b, keywords.c, keywords.out);
  for (int i = 0; i < operands.count; ++i) {
    if (!operands.given[i]->operand.metadata_only) continue;
    throw nb::type_error(("gemm: " + std::string(operands.given[i]->operand.name) +
                          " is a TensorSpec, which has no memory; use explain or get_kernels")
                             .c_str());
  }
  check_devices(operands);
  const bool on_host = operands.a.operand.device.type == DeviceType::cpu;
  return on_host ? gemm_on_host(operands, keywords) : gemm_on_device(operands, keywords);
}

Problem problem_of(nb::handle a, nb::handle b, const Keywords& keywords) {
  Operands operands;
  operands.open(a, b, keywords.c, keywords.out);
  check_devices(operands);
  for (int i = 0; i < operands.count; ++i) {
    View& view = *operands.given[i];
    if (view.complete) continue;
    const bool cuda = view.operand.device.type == DeviceType::cuda;
    view.import(cuda ? device::own_stream(view.operand.device.id) : nullptr);
  }
  return canonical_call(operands, keywords).problem;
}

}  // namespace cutlass_py
