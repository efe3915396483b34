// The part of XLA's FFI, a C ABI, that the handler (xla_handler.cpp) speaks: declared here, so that a build needs no
// jaxlib. Names and order of fields are XLA's (xla/ffi/api/c_api.h); tests/test_jax_ffi.py compares sizes and offsets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cutlass_py::xla {

// The oldest version that XLA still takes; it has all that is used here. XLA refuses handlers newer than itself.
constexpr int kApiMajor = 0, kApiMinor = 1;

struct Error;             // XLA's own; whoever receives one destroys it
struct ExecutionContext;  // XLA's own

enum class ExtensionType : int32_t { metadata = 1 };
enum class ErrorCode : int32_t { invalid_argument = 3, unimplemented = 12, internal = 13 };
enum class DataType : int32_t {
  s8 = 2,
  s32 = 4,
  s64 = 5,
  u8 = 6,
  f16 = 10,
  f32 = 11,
  f64 = 12,
  c64 = 15,
  bf16 = 16,
  c128 = 18,
  e5m2 = 19,
  e4m3 = 20,  // E4M3FN: finite, with NaN
};
enum class AttrType : int32_t { array = 1, dictionary = 2, scalar = 3, string = 4 };
enum class Stage : int32_t { instantiate = 0, prepare = 1, initialize = 2, execute = 3 };

constexpr uint32_t kCommandBufferCompatible = 1;  // a trait: calls may be recorded into a CUDA graph and replayed

struct Extension {
  size_t struct_size;
  ExtensionType type;
  Extension* next;
};

struct ApiVersion {
  size_t struct_size;
  Extension* extension_start;
  int major_version, minor_version;
};

struct Metadata {
  size_t struct_size;
  ApiVersion api_version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension extension_base;
  Metadata* metadata;
};

struct ErrorCreateArgs {
  size_t struct_size;
  Extension* extension_start;
  const char* message;
  ErrorCode errc;
};

struct StreamGetArgs {
  size_t struct_size;
  Extension* extension_start;
  ExecutionContext* ctx;
  void* stream;  // out
};

struct DeviceOrdinalGetArgs {
  size_t struct_size;
  Extension* extension_start;
  ExecutionContext* ctx;
  int32_t device_ordinal;  // out
};

struct Buffer {
  size_t struct_size;
  Extension* extension_start;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct ByteSpan {
  const char* ptr;
  size_t len;
};

struct Scalar {
  DataType dtype;
  void* value;
};

struct Array {
  DataType dtype;
  size_t size;
  void* data;
};

struct Args {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  int32_t* types;
  void** args;  // Buffer, the only type there is
};

struct Rets {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  int32_t* types;
  void** rets;
};

struct Attrs {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  AttrType* types;
  ByteSpan** names;  // sorted
  void** attrs;
};

struct Api {
  using Function = void (*)();

  size_t struct_size;
  Extension* extension_start;
  ApiVersion api_version;
  const void* internal_api;
  Error* (*error_create)(ErrorCreateArgs*);
  Function error_get_message, error_destroy, handler_register;
  Error* (*stream_get)(StreamGetArgs*);
  Function type_register, execution_context_get, state_set, state_get, device_memory_allocate, device_memory_free,
      thread_pool_schedule, thread_pool_num_threads, future_create, future_set_available, future_set_error, run_id_get;
  Error* (*device_ordinal_get)(DeviceOrdinalGetArgs*);
};

struct CallFrame {
  size_t struct_size;
  Extension* extension_start;
  const Api* api;
  ExecutionContext* ctx;
  Stage stage;
  Args args;
  Rets rets;
  Attrs attrs;
};

}  // namespace cutlass_py::xla
