#include "frontends/xla_call.h"

#include <algorithm>
#include <cstring>

namespace cutlass_py {

// ------------------------------------------------------------------------------------------------ attributes

namespace {

constexpr const char* kWriter = "what cutlass_py.jax writes";

std::string_view view(const xla::ByteSpan& text) { return {text.ptr, text.len}; }

[[noreturn]] void wrong(const char* name) {
  refuse(Refusal(std::string("attribute ") + name + " of the call is missing, or of another type").expects(kWriter));
}

}  // namespace

Attributes::Attributes(const xla::CallFrame& frame) : attrs_(frame.attrs) {
  if (const int64_t format = integer("format"); format != kXlaFormat) {
    refuse(Refusal("the call was lowered in format " + std::to_string(format))
               .hints("this version of cutlass_py reads " + std::to_string(kXlaFormat)));
  }
}

std::string_view Attributes::text(const char* name) const {
  return view(*static_cast<const xla::ByteSpan*>(find(name, xla::AttrType::string)));
}
int64_t Attributes::integer(const char* name) const { return *scalar<int64_t>(name, xla::DataType::s64); }
double Attributes::number(const char* name) const { return *scalar<double>(name, xla::DataType::f64); }

const double* Attributes::pair(const char* name) const {
  const auto* array = static_cast<const xla::Array*>(find(name, xla::AttrType::array));
  if (array->dtype != xla::DataType::f64 || array->size != 2) wrong(name);
  return static_cast<const double*>(array->data);
}

const void* Attributes::find(const char* name, xla::AttrType type) const {
  const auto is_before = [](const xla::ByteSpan* x, std::string_view name) { return view(*x) < name; };
  xla::ByteSpan** const end = attrs_.names + attrs_.size;
  xla::ByteSpan** const found = std::lower_bound(attrs_.names, end, std::string_view(name), is_before);
  const auto index = found - attrs_.names;
  if (found == end || view(**found) != name || attrs_.types[index] != type) wrong(name);
  return attrs_.attrs[index];
}

template <class T>
const T* Attributes::scalar(const char* name, xla::DataType dtype) const {
  const auto* value = static_cast<const xla::Scalar*>(find(name, xla::AttrType::scalar));
  if (value->dtype != dtype) wrong(name);
  return static_cast<const T*>(value->value);
}

// ------------------------------------------------------------------------------------------------ buffers

namespace {

Dtype dtype_of(const char* name, xla::DataType dtype) {
  switch (dtype) {
    case xla::DataType::f16: return Dtype::f16;
    case xla::DataType::bf16: return Dtype::bf16;
    case xla::DataType::f32: return Dtype::f32;
    case xla::DataType::f64: return Dtype::f64;
    case xla::DataType::e4m3: return Dtype::e4m3;
    case xla::DataType::e5m2: return Dtype::e5m2;
    case xla::DataType::s8: return Dtype::s8;
    case xla::DataType::u8: return Dtype::u8;
    case xla::DataType::s32: return Dtype::s32;
    case xla::DataType::c64: return Dtype::c64;
    case xla::DataType::c128: return Dtype::c128;
    default:
      refuse_type(
          Refusal(name, "has XLA's dtype " + std::to_string(int(dtype)) + ", which " + current_operation() + " lacks"));
  }
}

// Row-major, as XLA was told to lay it out.
Operand operand_of(const xla::Buffer& buffer, const char* name, Device device) {
  Operand x;
  x.name = name;
  x.dtype = dtype_of(name, buffer.dtype);
  x.data = buffer.data;
  x.device = device;
  if (buffer.rank > kMaxRank) {
    refuse(Refusal(name, "has " + std::to_string(buffer.rank) + " dimensions")
               .expects("at most " + std::to_string(kMaxRank)));
  }
  x.set_row_major(buffer.dims, int(buffer.rank));
  // What the plan was made for. XLA's own allocations have more; a slice passed without a copy may have less.
  if (reinterpret_cast<uintptr_t>(x.data) % 16) {
    refuse(Refusal(name, "is not aligned to 16 bytes, as XLA's buffers are"));
  }
  return x;
}

// The next of several names with a blank between.
std::string_view next(std::string_view& names) {
  const size_t end = std::min(names.find(' '), names.size());
  const std::string_view name = names.substr(0, end);
  names.remove_prefix(std::min(end + 1, names.size()));
  return name;
}

void place(const OperandsByRole& into, std::string_view name, const xla::Buffer& buffer, Device device) {
  const char* const* const end = into.names + into.count;
  const auto role = std::find(into.names, end, name) - into.names;
  if (role == into.count) refuse(Refusal("the call has an operand '" + std::string(name) + "'").expects(kWriter));
  if (into.given[role]) refuse(Refusal("the call has " + std::string(name) + " twice"));
  into.operands[role] = operand_of(buffer, into.names[role], device);
  into.given[role] = &into.operands[role];
}

}  // namespace

const xla::Buffer* read_operands(const xla::CallFrame& frame, const Attributes& attributes, Device device,
                                 const OperandsByRole& into) {
  std::string_view names = attributes.text("operands");
  for (int64_t i = 0; i < frame.args.size; ++i) {
    place(into, next(names), *static_cast<const xla::Buffer*>(frame.args.args[i]), device);
  }
  names = attributes.text("results");
  const xla::Buffer* scratch = nullptr;
  for (int64_t i = 0; i < frame.rets.size; ++i) {
    const auto* buffer = static_cast<const xla::Buffer*>(frame.rets.rets[i]);
    const std::string_view name = next(names);
    if (name == "scratch") {
      scratch = buffer;
    } else {
      place(into, name, *buffer, device);
    }
  }
  return scratch;
}

// ------------------------------------------------------------------------------------------------ launches

void XlaCall::read_launch(const Attributes& attributes, LaunchPlan& plan) {
  kernel = attributes.text("kernel");
  plan.raster = int(attributes.integer("raster"));
  plan.swizzle = int(attributes.integer("swizzle"));
  plan.overlap = attributes.integer("overlap") != 0;
}

void XlaCall::put_launch(Key& key, const LaunchPlan& plan) const {
  const size_t words = 2 + (kernel.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  if (!key.has_room(int(words))) key.clear();
  if (!key) return;
  key.put(uint64_t(uint32_t(plan.raster)) | uint64_t(uint32_t(plan.swizzle)) << 32);
  key.put(kernel.size() << 1 | uint64_t(plan.overlap));
  for (size_t i = 0; i < kernel.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, kernel.data() + i, std::min(sizeof word, kernel.size() - i));
    key.put(word);
  }
}

}  // namespace cutlass_py
