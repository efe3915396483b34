#include "runtime/streams.h"

#include <nanobind/stl/string.h>

#include <iterator>
#include <memory>
#include <mutex>
#include <vector>

namespace cutlass_py {
namespace {

using device::Stream;

// The stream of a framework on a device; only asked of frameworks that have one.
Stream current_stream(const ArrayType& type, int device_id) {
  if (type.exchange) {
    void* stream = nullptr;
    if (type.exchange->current_work_stream(kDLCUDA, device_id, &stream) != 0) {
      raise_for_exchange(type, "current_work_stream");
    }
    return stream;
  }
  return reinterpret_cast<Stream>(nb::cast<uintptr_t>(type.current_stream(device_id)));
}

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

[[noreturn]] void refuse_stream(const std::string& found) {
  refuse_type(Refusal("stream", std::string("is ") + found)
                  .expects("the handle of a CUDA stream, a torch or CuPy stream, or what has __cuda_stream__"));
}

Stream stream_handle(nb::handle number) {
  const unsigned long long handle =
      PyLong_Check(number.ptr()) && !PyBool_Check(number.ptr()) ? PyLong_AsUnsignedLongLong(number.ptr()) : ~0ull;
  PyErr_Clear();  // negative, or more than 64 bits
  if (handle == ~0ull) refuse_stream(shown(number));
  return reinterpret_cast<Stream>(uintptr_t(handle));
}

}  // namespace

void follow(Stream waiter, Stream signaler) {
  nb::gil_scoped_release may_wait;
  device::wait(waiter, signaler);
}

device::Stream stream_from(nb::handle value) {
  if (PyLong_Check(value.ptr())) return stream_handle(value);
  if (nb::hasattr(value, "__cuda_stream__")) {
    nb::object pair = value.attr("__cuda_stream__")();
    if (!PyTuple_Check(pair.ptr()) || PyTuple_Size(pair.ptr()) != 2) {
      refuse_type(Refusal("stream", ".__cuda_stream__() returned " + described_type(pair))
                      .expects("a tuple of a version and a handle"));
    }
    return stream_handle(PyTuple_GetItem(pair.ptr(), 1));
  }
  for (const char* attribute : {"cuda_stream", "ptr"}) {  // torch, CuPy
    if (nb::hasattr(value, attribute)) return stream_handle(value.attr(attribute));
  }
  refuse_stream(described_type(value));
}

Streams::Streams(const OperandViews& operands, const View* leads, int device_id, nb::handle requested) {
  bool chosen = given = !requested.is_none();
  if (given) launch = stream_from(requested);
  if (leads) visit(*leads, device_id, chosen);
  operands.each([&](const View& view) { visit(view, device_id, chosen); });
  if (!chosen) launch = device::own_stream(device_id);
}

void Streams::visit(const View& view, int device_id, bool& chosen) {
  if (!view.type->has_stream()) {
    streamless = true;
    return;
  }
  const void* framework = view.type->exchange ? static_cast<const void*>(view.type->exchange) : view.type->row.ptr();
  if (seen(framework)) return;
  if (size_t(other_count) == std::size(others)) {
    refuse(Refusal("operands of more than " + std::to_string(std::size(others)) + " frameworks"));
  }
  Stream stream = current_stream(*view.type, device_id);
  if (!chosen) launch = stream, chosen = true;
  others[other_count++] = {framework, stream};
}

bool Streams::several() const {
  bool several = streamless;
  for (int i = 0; i < other_count; ++i) several |= others[i].stream != launch;
  return several;
}

bool Streams::capturing() const {
  bool capturing = device::capturing(launch);
  for (int i = 0; i < other_count; ++i) capturing |= device::capturing(others[i].stream);
  return capturing;
}

void Streams::before() const {
  for (int i = 0; i < other_count; ++i) {
    if (others[i].stream != launch) follow(launch, others[i].stream);
  }
}

void Streams::after() const {
  if (given) return;
  for (int i = 0; i < other_count; ++i) {
    if (others[i].stream != launch) follow(others[i].stream, launch);
  }
}

bool Streams::seen(const void* framework) const {
  for (int i = 0; i < other_count; ++i) {
    if (others[i].framework == framework) return true;
  }
  return false;
}

void release_when_done(OperandViews& operands, Stream stream) {
  release_finished(nullptr);
  auto batch = std::make_unique<Batch>();
  operands.each([&](View& view) {
    if (view.type->has_stream()) return;
    if (View::Managed managed = view.take_managed(); managed.deleter) batch->push_back(managed);
  });
  if (batch->empty()) return;
  {
    nb::gil_scoped_release may_wait;
    device::when_done(stream, &on_device_done, batch.get());  // where that fails, nobody knows who reads them still
  }
  batch.release();
}

}  // namespace cutlass_py
