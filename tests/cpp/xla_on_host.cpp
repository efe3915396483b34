// XLA's own header beside ours: the layout of every struct compared as this compiles, and the handler as XLA's CPU
// would call it if the CPU had streams. test_jax_ffi.py compiles it with the header of the installed jaxlib.
#include <type_traits>

#include "frontends/xla_ffi.h"
#include "xla/ffi/api/c_api.h"

namespace ours = cutlass_py::xla;

#define SIZE(OURS, THEIRS) static_assert(sizeof(ours::OURS) == sizeof(THEIRS), #THEIRS)
#define FIELD(OURS, THEIRS, NAME) FIELDS(OURS, NAME, THEIRS, NAME)
#define FIELDS(OURS, NAME, THEIRS, THEIR_NAME)                                \
  static_assert(offsetof(ours::OURS, NAME) == offsetof(THEIRS, THEIR_NAME) && \
                    sizeof(ours::OURS::NAME) == sizeof(THEIRS::THEIR_NAME),   \
                #THEIRS "." #THEIR_NAME)

using Extension = std::remove_pointer_t<decltype(XLA_FFI_CallFrame::extension_start)>;  // its name has changed

SIZE(Extension, Extension);
FIELD(Extension, Extension, struct_size);
FIELD(Extension, Extension, type);
FIELD(Extension, Extension, next);

SIZE(ApiVersion, XLA_FFI_Api_Version);
FIELD(ApiVersion, XLA_FFI_Api_Version, extension_start);
FIELD(ApiVersion, XLA_FFI_Api_Version, major_version);
FIELD(ApiVersion, XLA_FFI_Api_Version, minor_version);

FIELD(Metadata, XLA_FFI_Metadata, struct_size);
FIELD(Metadata, XLA_FFI_Metadata, api_version);
FIELD(Metadata, XLA_FFI_Metadata, traits);

SIZE(MetadataExtension, XLA_FFI_Metadata_Extension);
FIELD(MetadataExtension, XLA_FFI_Metadata_Extension, extension_base);
FIELD(MetadataExtension, XLA_FFI_Metadata_Extension, metadata);

SIZE(ErrorCreateArgs, XLA_FFI_Error_Create_Args);
FIELD(ErrorCreateArgs, XLA_FFI_Error_Create_Args, extension_start);
FIELD(ErrorCreateArgs, XLA_FFI_Error_Create_Args, message);
FIELD(ErrorCreateArgs, XLA_FFI_Error_Create_Args, errc);

SIZE(StreamGetArgs, XLA_FFI_Stream_Get_Args);
FIELD(StreamGetArgs, XLA_FFI_Stream_Get_Args, ctx);
FIELD(StreamGetArgs, XLA_FFI_Stream_Get_Args, stream);

SIZE(DeviceOrdinalGetArgs, XLA_FFI_DeviceOrdinal_Get_Args);
FIELD(DeviceOrdinalGetArgs, XLA_FFI_DeviceOrdinal_Get_Args, ctx);
FIELD(DeviceOrdinalGetArgs, XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);

SIZE(Buffer, XLA_FFI_Buffer);
FIELD(Buffer, XLA_FFI_Buffer, extension_start);
FIELD(Buffer, XLA_FFI_Buffer, dtype);
FIELD(Buffer, XLA_FFI_Buffer, data);
FIELD(Buffer, XLA_FFI_Buffer, rank);
FIELD(Buffer, XLA_FFI_Buffer, dims);

SIZE(ByteSpan, XLA_FFI_ByteSpan);
FIELD(ByteSpan, XLA_FFI_ByteSpan, ptr);
FIELD(ByteSpan, XLA_FFI_ByteSpan, len);

SIZE(Scalar, XLA_FFI_Scalar);
FIELD(Scalar, XLA_FFI_Scalar, dtype);
FIELD(Scalar, XLA_FFI_Scalar, value);

SIZE(Array, XLA_FFI_Array);
FIELD(Array, XLA_FFI_Array, dtype);
FIELD(Array, XLA_FFI_Array, size);
FIELD(Array, XLA_FFI_Array, data);

SIZE(Args, XLA_FFI_Args);
FIELD(Args, XLA_FFI_Args, size);
FIELD(Args, XLA_FFI_Args, types);
FIELD(Args, XLA_FFI_Args, args);

SIZE(Rets, XLA_FFI_Rets);
FIELD(Rets, XLA_FFI_Rets, size);
FIELD(Rets, XLA_FFI_Rets, types);
FIELD(Rets, XLA_FFI_Rets, rets);

SIZE(Attrs, XLA_FFI_Attrs);
FIELD(Attrs, XLA_FFI_Attrs, size);
FIELD(Attrs, XLA_FFI_Attrs, types);
FIELD(Attrs, XLA_FFI_Attrs, names);
FIELD(Attrs, XLA_FFI_Attrs, attrs);

FIELD(CallFrame, XLA_FFI_CallFrame, extension_start);
FIELD(CallFrame, XLA_FFI_CallFrame, api);
FIELD(CallFrame, XLA_FFI_CallFrame, ctx);
FIELD(CallFrame, XLA_FFI_CallFrame, stage);
FIELD(CallFrame, XLA_FFI_CallFrame, args);
FIELD(CallFrame, XLA_FFI_CallFrame, rets);
FIELD(CallFrame, XLA_FFI_CallFrame, attrs);

FIELD(Api, XLA_FFI_Api, struct_size);
FIELD(Api, XLA_FFI_Api, api_version);
FIELDS(Api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
FIELDS(Api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
FIELDS(Api, device_ordinal_get, XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);
static_assert(sizeof(ours::Api) <= sizeof(XLA_FFI_Api) && ours::kApiMajor == XLA_FFI_API_MAJOR);
static_assert(ours::kApiMinor <= XLA_FFI_API_MINOR);

#define SAME(ENUM, OURS, THEIRS) static_assert(int(ours::ENUM::OURS) == int(THEIRS), #THEIRS)

SAME(ExtensionType, metadata, XLA_FFI_Extension_Metadata);
SAME(ErrorCode, invalid_argument, XLA_FFI_Error_Code_INVALID_ARGUMENT);
SAME(ErrorCode, unimplemented, XLA_FFI_Error_Code_UNIMPLEMENTED);
SAME(ErrorCode, internal, XLA_FFI_Error_Code_INTERNAL);
SAME(DataType, s8, XLA_FFI_DataType_S8);
SAME(DataType, s32, XLA_FFI_DataType_S32);
SAME(DataType, s64, XLA_FFI_DataType_S64);
SAME(DataType, u8, XLA_FFI_DataType_U8);
SAME(DataType, f16, XLA_FFI_DataType_F16);
SAME(DataType, f32, XLA_FFI_DataType_F32);
SAME(DataType, f64, XLA_FFI_DataType_F64);
SAME(DataType, c64, XLA_FFI_DataType_C64);
SAME(DataType, bf16, XLA_FFI_DataType_BF16);
SAME(DataType, c128, XLA_FFI_DataType_C128);
SAME(DataType, e5m2, XLA_FFI_DataType_F8E5M2);
SAME(DataType, e4m3, XLA_FFI_DataType_F8E4M3FN);
SAME(AttrType, array, XLA_FFI_AttrType_ARRAY);
SAME(AttrType, scalar, XLA_FFI_AttrType_SCALAR);
SAME(AttrType, string, XLA_FFI_AttrType_STRING);
SAME(Stage, initialize, XLA_FFI_ExecutionStage_INITIALIZE);
SAME(Stage, execute, XLA_FFI_ExecutionStage_EXECUTE);
static_assert(ours::kCommandBufferCompatible == XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);

namespace {

XLA_FFI_Handler* handler = nullptr;
void* stream = nullptr;
void (*after)() = nullptr;

XLA_FFI_Error* get_stream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = stream;
  return nullptr;
}

}  // namespace

extern "C" void set_handler(void* function, void* its_stream, void (*called_after)()) {
  handler = reinterpret_cast<XLA_FFI_Handler*>(function);
  stream = its_stream;
  after = called_after;
}

// The handler with a stream, which XLA's CPU has not to give.
extern "C" XLA_FFI_Error* on_host(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start) return handler(frame);  // asked for its metadata: it may be given no API then
  XLA_FFI_Api api = *frame->api;
  api.XLA_FFI_Stream_Get = get_stream;
  XLA_FFI_CallFrame changed = *frame;
  changed.api = &api;
  XLA_FFI_Error* error = handler(&changed);
  if (after) after();
  return error;
}

// The stage before execution, which XLA's CPU leaves out.
extern "C" XLA_FFI_Error* initialize_on_host(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start) return handler(frame);
  XLA_FFI_CallFrame changed = *frame;
  changed.stage = XLA_FFI_ExecutionStage_INITIALIZE;
  changed.args.size = changed.rets.size = 0;
  return handler(&changed);
}

// Version and traits that the handler tells XLA: major, minor, traits.
extern "C" void metadata(int32_t* found) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  found[3] = handler(&frame) ? 1 : 0;
  found[0] = metadata.api_version.major_version;
  found[1] = metadata.api_version.minor_version;
  found[2] = int32_t(metadata.traits);
}
