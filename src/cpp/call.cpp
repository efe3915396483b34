#include "call.h"

#include <nanobind/stl/string.h>

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "buffer.h"
#include "device.h"
#include "dlpack_view.h"
#include "metadata.h"
#include "registry.h"

namespace cutlass_py {
namespace {

using device::Stream;

// ---------------------------------------------------------------------------------------------- operands of a call

struct Operands {
  View a, b, c, out;
  View* given[4];
  int count = 0;

  void open(nb::handle a_, nb::handle b_, const Keywords& keywords) {
    add(a, a_, "a");
    add(b, b_, "b");
    if (!keywords.c.is_none()) add(c, keywords.c, "c");
    if (keywords.out.is_none()) return;
    add(out, keywords.out, "out");
    if (!out.type->mutable_) {
      throw nb::type_error("gemm: out is a JAX array, which is immutable; use the returned array instead");
    }
  }

 private:
  void add(View& view, nb::handle object, const char* name) {
    view.open(object, name);
    given[count++] = &view;
  }
};

// The stream of a framework on a device; only asked of frameworks that have one.
Stream current_stream(const ArrayType& type, int device_id) {
  if (type.exchange) {
    void* stream = nullptr;
    if (type.exchange->current_work_stream(kDLCUDA, device_id, &stream) != 0) nb::raise_python_error();
    return stream;
  }
  return reinterpret_cast<Stream>(nb::cast<uintptr_t>(type.row.attr("current_stream")(device_id)));
}

Stream stream_from(nb::handle value) {
  if (PyLong_Check(value.ptr())) return reinterpret_cast<Stream>(nb::cast<uintptr_t>(value));
  if (nb::hasattr(value, "__cuda_stream__")) {
    nb::tuple version_and_handle = nb::cast<nb::tuple>(value.attr("__cuda_stream__")());
    return reinterpret_cast<Stream>(nb::cast<uintptr_t>(version_and_handle[1]));
  }
  for (const char* attribute : {"cuda_stream", "ptr"}) {  // torch, CuPy
    if (nb::hasattr(value, attribute)) return reinterpret_cast<Stream>(nb::cast<uintptr_t>(value.attr(attribute)));
  }
  throw nb::type_error("gemm: stream must be an int, a torch or CuPy stream, or have __cuda_stream__");
}

// Which stream a call runs on, and which other streams it is ordered with.
struct Streams {
  Stream launch = nullptr;
  bool given = false;  // by stream=
  struct Other {
    const void* framework;
    Stream stream;
  } others[4];
  int other_count = 0;
  bool streamless = false;  // an operand's framework has no current stream (JAX)

  Streams(const Operands& operands, int device_id, nb::handle requested) {
    bool chosen = given = !requested.is_none();
    if (given) launch = stream_from(requested);
    const int first = operands.out ? operands.count - 1 : 0;  // the framework that receives the result leads
    for (int i = 0; i < operands.count; ++i) {
      const View& view = *operands.given[(first + i) % operands.count];
      if (!view.type->has_stream) {
        streamless = true;
        continue;
      }
      const void* framework =
          view.type->exchange ? static_cast<const void*>(view.type->exchange) : view.type->row.ptr();
      if (seen(framework)) continue;
      Stream stream = current_stream(*view.type, device_id);
      if (!chosen) launch = stream, chosen = true;
      others[other_count++] = {framework, stream};
    }
    if (!chosen) launch = device::own_stream(device_id);
  }

  // The launch follows what the operands' frameworks have queued. (__dlpack__ does this itself; the exchange API not.)
  void before() const {
    for (int i = 0; i < other_count; ++i) {
      if (others[i].stream != launch) device::wait(launch, others[i].stream);
    }
  }

  // What the frameworks queue next, reuse of the operands' memory included, follows the launch. With stream= that order
  // is the caller's, as with any explicit stream: joining them here would serialise side streams.
  void after() const {
    if (given) return;
    for (int i = 0; i < other_count; ++i) {
      if (others[i].stream != launch) device::wait(others[i].stream, launch);
    }
  }

 private:
  bool seen(const void* framework) const {
    for (int i = 0; i < other_count; ++i) {
      if (others[i].framework == framework) return true;
    }
    return false;
  }
};

// ---------------------------------------------------------------------------------------------- deferred release

// Managed tensors of frameworks without a current stream: memory that they may reuse as soon as the deleter runs. Their
// release waits for the device: a host function moves them to a list, the interpreter empties it when it next can.
using Batch = std::vector<View::Managed>;

struct Finished {
  std::mutex mutex;
  std::vector<Batch*> batches;
};

Finished& finished() {
  static auto* list = new Finished();
  return *list;
}

int release_finished(void*) {
  std::vector<Batch*> batches;
  {
    std::lock_guard lock(finished().mutex);
    batches.swap(finished().batches);
  }
  for (Batch* batch : batches) {
    for (View::Managed& managed : *batch) managed.deleter(managed.tensor);
    delete batch;
  }
  return 0;
}

void on_device_done(void* argument) {
  {
    std::lock_guard lock(finished().mutex);
    finished().batches.push_back(static_cast<Batch*>(argument));
  }
  // A full queue is no loss: the next call of this kind empties the list as well.
  if (Py_IsInitialized()) Py_AddPendingCall(&release_finished, nullptr);
}

void defer_release(Operands& operands, const Streams& streams) {
  if (!streams.streamless) return;
  release_finished(nullptr);
  auto batch = std::make_unique<Batch>();
  for (int i = 0; i < operands.count; ++i) {
    View& view = *operands.given[i];
    if (view.type->has_stream) continue;
    if (View::Managed managed = view.take_managed(); managed.deleter) batch->push_back(managed);
  }
  if (!batch->empty()) device::when_done(streams.launch, &on_device_done, batch.release());
}

// ---------------------------------------------------------------------------------------------- plans

std::unordered_map<Problem, Plan, ProblemHash>& plans() {
  static auto* table = new std::unordered_map<Problem, Plan, ProblemHash>();
  return *table;
}

// A program with ever new shapes must not grow without bound.
constexpr size_t kMostPlans = 1 << 16;

Plan make_plan(const Problem& problem) {
  nb::object chosen = nb::module_::import_("cutlass_py.select").attr("plan")(nb::cast(problem));
  Plan plan;
  nb::object kernel = chosen.attr("kernel");
  if (!kernel.is_none()) {
    const KernelEntry* entry = find_kernel(nb::cast<std::string>(kernel));
    if (!entry) throw std::runtime_error("gemm: kernel " + nb::cast<std::string>(kernel) + " is not loaded");
    plan.kernel = entry->kernel;
    plan.library = entry->library;
  }
  auto layout = [&](const char* name) {
    nb::object value = chosen.attr(name);
    return value.is_none() ? char(0) : nb::cast<std::string>(value)[0];
  };
  plan.pack_a = layout("pack_a");
  plan.pack_b = layout("pack_b");
  if (nb::object scratch = chosen.attr("scratch"); !scratch.is_none()) plan.scratch = dtype_from(scratch, "scratch");
  plan.raster = nb::cast<int>(chosen.attr("raster"));
  plan.swizzle = nb::cast<int>(chosen.attr("swizzle"));
  plan.overlap = nb::cast<bool>(chosen.attr("overlap"));
  plan.host = chosen.attr("host");
  if (problem.device.type == DeviceType::cuda) plan.sm_count = device::info(problem.device.id).sm_count;
  return plan;
}

// By value: another thread may clear the table whenever Python code runs.
Plan plan_for(const Problem& problem) {
  auto& table = plans();
  if (auto found = table.find(problem); found != table.end()) return found->second;
  Plan plan = make_plan(problem);
  if (table.size() >= kMostPlans) table.clear();
  return table[problem] = plan;
}

// ---------------------------------------------------------------------------------------------- running on a device

class Scratch {
 public:
  Scratch(int device_id, Stream stream) : device_id_(device_id), stream_(stream) {}
  ~Scratch() { device::release(memory_, stream_); }
  Scratch(const Scratch&) = delete;

  size_t reserve(size_t bytes) {  // returns the offset
    const size_t offset = size_;
    size_ += (bytes + 255) / 256 * 256;
    return offset;
  }
  void allocate() {
    if (size_) memory_ = static_cast<char*>(device::allocate(size_, device_id_, stream_));
  }
  void* at(size_t offset) const { return memory_ + offset; }

 private:
  int device_id_;
  Stream stream_;
  size_t size_ = 0;
  char* memory_ = nullptr;
};

void check(int status, const Plan& plan, const char* what) {
  if (status == 0) return;
  throw CudaError("gemm: " + std::string(what) + " failed: " + plan.library->error_string(status) + " (kernel " +
                  (plan.kernel ? plan.kernel->name : "none") + ")");
}

CutlassPyArray array_of(const Matrix& matrix) {
  return {matrix.data, int32_t(matrix.dtype), matrix.row, matrix.col, matrix.batch};
}

// A packed copy: rows padded to 16 bytes and one extra line, so that TMA takes it.
struct Packing {
  Matrix packed;
  int64_t ld = 0;
  size_t offset = 0, bytes = 0;

  Packing(const Matrix& from, char layout, int64_t rows, int64_t cols, int64_t batch, Scratch& scratch) {
    const int64_t size = dtype_size(from.dtype), unit = 16 / size;
    const int64_t lines = layout == 't' ? rows : cols, line = layout == 't' ? cols : rows;
    ld = (line + unit - 1) / unit * unit;
    const int64_t batches = from.batch ? batch : 1;
    packed = {nullptr, from.dtype, layout == 't' ? ld : 1, layout == 't' ? 1 : ld, from.batch ? lines * ld : 0};
    bytes = size_t(batches * lines * ld * size);
    offset = scratch.reserve(bytes);
  }

  void run(const Plan& plan, const Matrix& from, int64_t rows, int64_t cols, int64_t batch, const Scratch& scratch,
           Stream stream) {
    packed.data = scratch.at(offset);
    const CutlassPyArray source = array_of(from), destination = array_of(packed);
    check(plan.library->elementwise->copy(&source, &destination, dtype_size(from.dtype), from.batch ? batch : 1, rows,
                                          cols, stream),
          plan, "packing an operand");
  }
};

void run_on_device(const Call& call, const Plan& plan, Stream stream) {
  const Problem& p = call.problem;
  Scratch scratch(p.device.id, stream);
  const bool composed = plan.scratch != Dtype::none || !plan.kernel;

  CutlassPyGemm g{};
  g.m = p.m, g.n = p.n, g.k = p.k, g.batch = p.batch;
  g.alpha = composed ? 1 : call.alpha;
  g.beta = composed ? 0 : call.beta;
  g.device = p.device.id;
  g.sm_count = plan.sm_count;
  g.raster = plan.raster;
  g.swizzle = plan.swizzle;
  g.overlap = plan.overlap && !device::capturing(stream);
  g.stream = stream;
  g.a = call.a.data, g.lda = call.lda, g.batch_a = call.a.batch;
  g.b = call.b.data, g.ldb = call.ldb, g.batch_b = call.b.batch;
  g.d = call.d.data, g.ldd = call.ldd, g.batch_d = call.d.batch;
  if (!composed) g.c = call.c.data, g.ldc = call.ldc, g.batch_c = call.c.batch;

  std::optional<Packing> pack_a, pack_b;
  if (plan.pack_a) pack_a.emplace(call.a, plan.pack_a, p.m, p.k, p.batch, scratch);
  if (plan.pack_b) pack_b.emplace(call.b, plan.pack_b, p.k, p.n, p.batch, scratch);
  Matrix product{nullptr, plan.scratch, 0, 1, 0};
  size_t product_offset = 0;
  if (plan.kernel && composed) {
    const int64_t unit = 16 / dtype_size(plan.scratch);
    product.row = (int64_t(p.n) + unit - 1) / unit * unit;
    product.batch = product.row * p.m;
    product_offset = scratch.reserve(size_t(product.batch * p.batch * dtype_size(plan.scratch)));
  }
  const size_t workspace = plan.kernel ? plan.kernel->workspace_size(&g) : 0;
  const size_t workspace_offset = scratch.reserve(workspace);
  scratch.allocate();

  if (pack_a) {
    pack_a->run(plan, call.a, p.m, p.k, p.batch, scratch, stream);
    g.a = pack_a->packed.data, g.lda = pack_a->ld, g.batch_a = pack_a->packed.batch;
  }
  if (pack_b) {
    pack_b->run(plan, call.b, p.k, p.n, p.batch, scratch, stream);
    g.b = pack_b->packed.data, g.ldb = pack_b->ld, g.batch_b = pack_b->packed.batch;
  }
  if (plan.kernel) {
    if (composed) {
      product.data = scratch.at(product_offset);
      g.d = product.data, g.ldd = product.row, g.batch_d = product.batch;
    }
    if (workspace) g.workspace = scratch.at(workspace_offset);
    check(plan.kernel->run(&g), plan, "the launch");
  }
  if (composed) {
    const CutlassPyLibrary* library = plan.library ? plan.library : builtin_library();
    const CutlassPyArray acc = array_of(product), c = array_of(call.c), d = array_of(call.d);
    int status = library->elementwise->compose(plan.kernel ? &acc : nullptr, call.c.data ? &c : nullptr, &d, call.alpha,
                                               call.beta, p.batch, p.m, p.n, stream);
    if (status) throw CudaError("gemm: the composed epilogue failed: " + std::string(library->error_string(status)));
  }
}

// ---------------------------------------------------------------------------------------------- running on the host

nb::object host_operand(const Matrix& x, int64_t rows, int64_t cols, int64_t batch) {
  if (!x.data && x.dtype == Dtype::none) return nb::none();
  const int64_t size = dtype_size(x.dtype);
  return nb::make_tuple(reinterpret_cast<uintptr_t>(x.data), dtype_name(x.dtype), nb::make_tuple(batch, rows, cols),
                        nb::make_tuple(x.batch * size, x.row * size, x.col * size));
}

void run_on_host(const Call& call, const Plan& plan) {
  const Problem& p = call.problem;
  plan.host(host_operand(call.a, p.m, p.k, p.batch), host_operand(call.b, p.k, p.n, p.batch),
            host_operand(call.c, p.m, p.n, p.batch), host_operand(call.d, p.m, p.n, p.batch), call.alpha, call.beta,
            dtype_name(p.compute));
}

// ---------------------------------------------------------------------------------------------- options

double scalar_from(nb::handle value, const char* name) {
  if (nb::hasattr(value, "__dlpack__")) {  // reading it would make the host wait for the device
    throw nb::type_error(("gemm: " + std::string(name) + " is an array; expected a number").c_str());
  }
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
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
    if (!nb::isinstance<nb::str>(keywords.compute)) throw nb::type_error("gemm: compute must be a string such as 'tf32'");
    options.compute = nb::cast<const char*>(keywords.compute);
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
  if (call.suspect_count) {  // rare: bytes interleave; numpy's exact solver decides
    nb::object shares = nb::module_::import_("cutlass_py.frameworks").attr("shares_memory");
    nb::object out = host_operand(call.suspected_out, call.out_rows, call.out_cols, call.out_batch);
    for (int i = 0; i < call.suspect_count; ++i) {
      const Call::Suspect& suspect = call.suspects[i];
      if (!nb::cast<bool>(shares(host_operand(suspect.matrix, suspect.rows, suspect.cols, call.out_batch), out))) continue;
      throw std::invalid_argument(std::string("gemm: out shares elements with ") + suspect.name +
                                  "; it may only be c itself, element for element");
    }
  }
  return call;
}

void check_devices(const Operands& operands) {
  const Operand& a = operands.a.operand;
  for (int i = 1; i < operands.count; ++i) {
    const Operand& x = operands.given[i]->operand;
    if (x.device == a.device) continue;
    throw std::invalid_argument("gemm: a is on " + to_string(a.device) + " but " + x.name + " is on " +
                                to_string(x.device));
  }
}

// ---------------------------------------------------------------------------------------------- results

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
      on_own_stream = nb::isinstance<Buffer>(array);
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
  if (streams.streamless && device::capturing(streams.launch)) {
    throw std::invalid_argument("gemm: arrays of a framework without streams (JAX) cannot take part in graph capture");
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
    if (result.on_own_stream && streams.launch != device::own_stream(device_id)) {
      device::wait(device::own_stream(device_id), streams.launch);
    }
    defer_release(operands, streams);
  }
  return operands.out ? nb::borrow(keywords.out) : result.finish();
}

}  // namespace

nb::object gemm(nb::handle a, nb::handle b, const Keywords& keywords) {
  Operands operands;
  operands.open(a, b, keywords);
  for (int i = 0; i < operands.count; ++i) {
    if (!operands.given[i]->operand.metadata_only) continue;
    throw nb::type_error(("gemm: " + std::string(operands.given[i]->operand.name) +
                          " is a TensorSpec, which has no memory; use explain or get_kernels").c_str());
  }
  check_devices(operands);
  const bool on_host = operands.a.operand.device.type == DeviceType::cpu;
  return on_host ? gemm_on_host(operands, keywords) : gemm_on_device(operands, keywords);
}

Problem problem_of(nb::handle a, nb::handle b, const Keywords& keywords) {
  Operands operands;
  operands.open(a, b, keywords);
  check_devices(operands);
  for (int i = 0; i < operands.count; ++i) {
    View& view = *operands.given[i];
    if (view.complete) continue;
    const bool cuda = view.operand.device.type == DeviceType::cuda;
    view.import(cuda ? device::own_stream(view.operand.device.id) : nullptr);
  }
  return canonical_call(operands, keywords).problem;
}

void clear_plans() { plans().clear(); }

}  // namespace cutlass_py
