#include "frontends/xla_handler.h"

#include <map>
#include <mutex>

#include "runtime/instrumentation.h"
#include "runtime/registry.h"

namespace cutlass_py {
namespace {

using xla::ErrorCode;

xla::Error* error(const xla::CallFrame& frame, ErrorCode code, const char* text) {
  xla::ErrorCreateArgs args{sizeof args, nullptr, text, code};
  return frame.api->error_create(&args);
}

void describe(xla::Metadata& metadata, uint32_t traits) {
  metadata.api_version = {sizeof(xla::ApiVersion), nullptr, xla::kApiMajor, xla::kApiMinor};
  metadata.traits = traits;
}

const KernelEntry& loaded(const std::string& kernel) {
  if (const KernelEntry* entry = find_kernel(kernel)) return *entry;
  throw std::runtime_error(in_operation("kernel " + kernel +
                                        ", which this computation was lowered with, is not loaded in this process; "
                                        "cutlass_py.get_kernels(compiled=False) has it, and its compile() loads it"));
}

// What the device adds to a plan: the kernel's address and the number of multiprocessors.
void complete(XlaCall& call, int ordinal) {
  LaunchPlan& plan = call.launch_plan();
  plan.sm_count = device::info(ordinal).sm_count;
  if (call.kernel.empty()) return;
  const KernelEntry& entry = loaded(call.kernel);
  plan.kernel = entry.kernel;
  plan.origin = entry.origin;
}

// Before a command buffer may be recorded, in which the device could not be asked what it is: a module that another
// process has lowered meets it here. The frame may have no buffers.
xla::Error* initialize(const xla::CallFrame& frame, int ordinal) {
  device::info(ordinal);
  if (const std::string kernel(Attributes(frame).text("kernel")); !kernel.empty()) loaded(kernel);
  return nullptr;
}

// Whether it was: the launch of a class that was seen before.
bool run_cached(const Key& key, const XlaCall& call, device::Stream stream) {
  CachedLaunch::Filled launch;
  const auto fill = [&](const CachedLaunch& known) { return known && call.fill(known, launch, stream); };
  if (!shared_launch_cache().find(key, fill)) return false;
  const device::Guard guard(launch.launch.device);
  launch.run();
  call.finish(stream);
  return true;
}

xla::Error* run(const xla::CallFrame& frame, XlaCall& call, int ordinal) {
  xla::StreamGetArgs stream{sizeof stream, nullptr, frame.ctx, nullptr};
  if (xla::Error* failed = frame.api->stream_get(&stream)) return failed;

  call.read(frame, {DeviceType::cuda, ordinal});
  const Key key = call.key();
  const bool told = instrumentation::asked_for(instrumentation::kRanges);  // of canonical calls
  if (key && !told && run_cached(key, call, stream.stream)) return nullptr;
  call.canonicalise();
  if (call.nothing_to_do()) return nullptr;
  complete(call, ordinal);
  const device::Guard guard(ordinal);
  const instrumentation::Range range([&] { return call.range_name(); });
  call.run(stream.stream);
  call.finish(stream.stream);
  if (key) shared_launch_cache().keep(key, call.cached_launch());
  return nullptr;
}

struct Learned {
  std::mutex mutex;  // XLA calls from any thread
  std::map<int, void*> streams;
};

Learned& learned() {
  static auto* all = new Learned();
  return *all;
}

xla::Error* learn(const xla::CallFrame& frame, int ordinal) {
  xla::StreamGetArgs stream{sizeof stream, nullptr, frame.ctx, nullptr};
  if (xla::Error* failed = frame.api->stream_get(&stream)) return failed;
  std::lock_guard lock(learned().mutex);
  learned().streams[ordinal] = stream.stream;
  return nullptr;
}

template <typename Run>
xla::Error* answer(const xla::CallFrame& frame, uint32_t traits, Run run) {
  xla::Extension* extension = frame.extension_start;
  if (extension && extension->type == xla::ExtensionType::metadata) {
    describe(*reinterpret_cast<xla::MetadataExtension*>(extension)->metadata, traits);
    return nullptr;
  }
  try {
    if (frame.api->struct_size < sizeof(xla::Api)) {
      return error(frame, ErrorCode::unimplemented,
                   in_operation("this XLA is too old to say which device a call runs on").c_str());
    }
    xla::DeviceOrdinalGetArgs device{sizeof device, nullptr, frame.ctx, 0};
    if (xla::Error* failed = frame.api->device_ordinal_get(&device)) return failed;
    return run(frame, device.device_ordinal);
  } catch (const std::invalid_argument& wrong) {
    return error(frame, ErrorCode::invalid_argument, wrong.what());
  } catch (const std::exception& failed) {
    return error(frame, ErrorCode::internal, failed.what());
  }
}

}  // namespace

xla::Error* handle(const xla::CallFrame& frame, XlaCall& call) {
  const OperationScope operation(call.operation());
  return answer(frame, xla::kCommandBufferCompatible, [&](const xla::CallFrame& frame, int ordinal) {
    return frame.stage == xla::Stage::initialize ? initialize(frame, ordinal) : run(frame, call, ordinal);
  });
}

xla::Error* xla_stream_handler(xla::CallFrame* frame) { return answer(*frame, 0, &learn); }

void* xla_stream(int ordinal) {
  std::lock_guard lock(learned().mutex);
  return learned().streams.at(ordinal);
}

}  // namespace cutlass_py
