#include "xla_handler.h"

#include "registry.h"
#include "trace.h"
#include "xla_call.h"

namespace cutlass_py {
namespace {

using xla::ErrorCode;

xla::Error* error(const xla::CallFrame& frame, ErrorCode code, const char* text) {
  xla::ErrorCreateArgs args{sizeof args, nullptr, text, code};
  return frame.api->error_create(&args);
}

void describe(xla::Metadata& metadata) {
  metadata.api_version = {sizeof(xla::ApiVersion), nullptr, xla::kApiMajor, xla::kApiMinor};
  metadata.traits = xla::kCommandBufferCompatible;
}

// What the device adds to a plan: the kernel's address and the number of multiprocessors.
void complete(XlaCall& x) {
  x.plan.sm_count = device::info(x.call.problem.device.id).sm_count;
  if (x.kernel.empty()) return;
  const KernelEntry* entry = find_kernel(x.kernel);
  if (!entry) {
    throw std::runtime_error("gemm: kernel " + x.kernel +
                             ", which this computation was lowered with, is not loaded in this process; "
                             "cutlass_py.get_kernels(compiled=False) has it, and its compile() loads it");
  }
  x.plan.kernel = entry->kernel;
  x.plan.library = entry->library;
}

xla::Error* execute(const xla::CallFrame& frame) {
  if (frame.api->struct_size < sizeof(xla::Api)) {
    return error(frame, ErrorCode::unimplemented, "gemm: this XLA is too old to say which device a call runs on");
  }
  xla::DeviceOrdinalGetArgs device{sizeof device, nullptr, frame.ctx, 0};
  if (xla::Error* failed = frame.api->device_ordinal_get(&device)) return failed;
  xla::StreamGetArgs stream{sizeof stream, nullptr, frame.ctx, nullptr};
  if (xla::Error* failed = frame.api->stream_get(&stream)) return failed;

  XlaCall x;
  read(frame, {DeviceType::cuda, device.device_ordinal}, x);
  if (nothing_to_do(x.call.problem)) return nullptr;
  complete(x);
  device::Guard guard(device.device_ordinal);
  const trace::Range range(x.call.problem, x.plan);
  run_all(x.call, [&] { run_on_device(x.call, x.plan, stream.stream, &x.scratch); });
  return nullptr;
}

}  // namespace

xla::Error* xla_handler(xla::CallFrame* frame) {
  xla::Extension* extension = frame->extension_start;
  if (extension && extension->type == xla::ExtensionType::metadata) {
    describe(*reinterpret_cast<xla::MetadataExtension*>(extension)->metadata);
    return nullptr;
  }
  try {
    return execute(*frame);
  } catch (const std::invalid_argument& wrong) {
    return error(*frame, ErrorCode::invalid_argument, wrong.what());
  } catch (const std::exception& failed) {
    return error(*frame, ErrorCode::internal, failed.what());
  }
}

}  // namespace cutlass_py
