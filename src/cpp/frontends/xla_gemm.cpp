#include "frontends/xla_gemm.h"

#include <algorithm>
#include <string_view>

namespace cutlass_py {
namespace {

// ------------------------------------------------------------------------------------------------ attributes

class Attributes {
 public:
  explicit Attributes(const xla::Attrs& attrs) : attrs_(attrs) {}

  std::string_view text(const char* name) const {
    return view(*static_cast<const xla::ByteSpan*>(find(name, xla::AttrType::string)));
  }
  int64_t integer(const char* name) const { return *scalar<int64_t>(name, xla::DataType::s64); }
  double number(const char* name) const { return *scalar<double>(name, xla::DataType::f64); }

  // Two numbers: of a factor, its parts; of an activation, its parameters.
  const double* pair(const char* name) const {
    const auto* array = static_cast<const xla::Array*>(find(name, xla::AttrType::array));
    if (array->dtype != xla::DataType::f64 || array->size != 2) wrong(name);
    return static_cast<const double*>(array->data);
  }

 private:
  static std::string_view view(const xla::ByteSpan& text) { return {text.ptr, text.len}; }

  [[noreturn]] static void wrong(const char* name) {
    refuse(Refusal(std::string("attribute ") + name + " of the call is missing, or of another type")
               .expects("what cutlass_py.jax writes"));
  }

  const void* find(const char* name, xla::AttrType type) const {
    const auto is_before = [](const xla::ByteSpan* x, std::string_view name) { return view(*x) < name; };
    xla::ByteSpan** const end = attrs_.names + attrs_.size;
    xla::ByteSpan** const found = std::lower_bound(attrs_.names, end, std::string_view(name), is_before);
    const auto index = found - attrs_.names;
    if (found == end || view(**found) != name || attrs_.types[index] != type) wrong(name);
    return attrs_.attrs[index];
  }

  template <class T>
  const T* scalar(const char* name, xla::DataType dtype) const {
    const auto* value = static_cast<const xla::Scalar*>(find(name, xla::AttrType::scalar));
    if (value->dtype != dtype) wrong(name);
    return static_cast<const T*>(value->value);
  }

  const xla::Attrs& attrs_;
};

Attributes attributes_of(const xla::CallFrame& frame) {
  const Attributes attributes(frame.attrs);
  if (const int64_t format = attributes.integer("format"); format != kXlaFormat) {
    refuse(Refusal("the call was lowered in format " + std::to_string(format))
               .hints("this version of cutlass_py reads " + std::to_string(kXlaFormat)));
  }
  return attributes;
}

// ------------------------------------------------------------------------------------------------ buffers

Role role_of(std::string_view name) {
  for (int i = 0; i < kRoles; ++i) {
    if (name == kOperands[i].name) return Role(i);
  }
  refuse(Refusal("the call has an operand '" + std::string(name) + "'").expects("what cutlass_py.jax writes"));
}

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
    default: refuse_type(Refusal(name, "has XLA's dtype " + std::to_string(int(dtype)) + ", which gemm lacks"));
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
    refuse(Refusal(name, "is not aligned to 16 bytes, as the kernel was chosen for"));
  }
  return x;
}

// A matrix that lies transposed, as the kernels see it.
void transpose(Operand& x) {
  if (x.rank < 2) refuse(found(x).expects("a matrix where the layout says n"));
  std::swap(x.shape[x.rank - 2], x.shape[x.rank - 1]);
  std::swap(x.strides[x.rank - 2], x.strides[x.rank - 1]);
}

// The next of several names with a blank between.
std::string_view next(std::string_view& names) {
  const size_t end = std::min(names.find(' '), names.size());
  const std::string_view name = names.substr(0, end);
  names.remove_prefix(std::min(end + 1, names.size()));
  return name;
}

void place(XlaCall& x, Request& r, std::string_view name, const xla::Buffer& buffer, Device device) {
  const Role role = role_of(name);
  if (r.at(role)) refuse(Refusal("the call has " + std::string(name) + " twice"));
  x.operands[int(role)] = operand_of(buffer, name_of(role), device);
  r.operands[int(role)] = &x.operands[int(role)];
}

GivenScratch scratch_of(const xla::Buffer& buffer) {
  if (buffer.dtype != xla::DataType::u8 || buffer.rank != 1) refuse(Refusal("scratch", "is no vector of bytes"));
  const uintptr_t address = reinterpret_cast<uintptr_t>(buffer.data), aligned = scratch_aligned(address);
  const size_t bytes = size_t(buffer.dims[0]), lost = size_t(aligned - address);
  return {reinterpret_cast<char*>(aligned), bytes > lost ? bytes - lost : 0};
}

void read_buffers(const xla::CallFrame& frame, const Attributes& attributes, Device device, XlaCall& x, Request& r) {
  std::string_view names = attributes.text("operands");
  for (int64_t i = 0; i < frame.args.size; ++i) {
    place(x, r, next(names), *static_cast<const xla::Buffer*>(frame.args.args[i]), device);
  }
  names = attributes.text("results");
  for (int64_t i = 0; i < frame.rets.size; ++i) {
    const auto& buffer = *static_cast<const xla::Buffer*>(frame.rets.rets[i]);
    const std::string_view name = next(names);
    if (name == "scratch") {
      x.scratch = scratch_of(buffer);
    } else {
      place(x, r, name, buffer, device);
    }
  }
  if (!r.at(Role::a) || !r.at(Role::b) || !r.at(Role::out)) refuse(Refusal("the call lacks a, b or out"));
  const std::string_view layout = attributes.text("layout");
  if (layout.size() != 2) refuse(Refusal("the call has layout '" + std::string(layout) + "'").expects("two letters"));
  if (layout[0] == 'n') transpose(x.operands[int(Role::a)]);
  if (layout[1] == 'n') transpose(x.operands[int(Role::b)]);
}

// ------------------------------------------------------------------------------------------------ the rest

CutlassPyScalar factor(const Attributes& attributes, const char* name) {
  const double* parts = attributes.pair(name);
  return {parts[0], parts[1], nullptr};
}

Activation activation_of(std::string_view name) {
  if (const int found = activation_named(name); found >= 0) return Activation(found);
  refuse(Refusal("activation", "='" + std::string(name) + "' is not known"));
}

void read_keywords(const Attributes& attributes, Request& r) {
  r.alpha = factor(attributes, "alpha");
  r.beta = factor(attributes, "beta");
  r.has_beta = r.at(Role::c);
  r.scale_a = attributes.number("scale_a");
  r.scale_b = attributes.number("scale_b");
  r.scale_out.value = attributes.number("scale_out");
  r.activation = activation_of(attributes.text("activation"));
  const double* parameters = attributes.pair("activation_parameters");
  r.parameters[0] = parameters[0], r.parameters[1] = parameters[1];
}

Dtype dtype_named(std::string_view name) {
  for (int i = 0; i < kDtypeCount; ++i) {
    if (name == kDtypes[i].name) return Dtype(i);
  }
  if (!name.empty()) refuse_type(Refusal("dtype '" + std::string(name) + "' is not known"));
  return Dtype::none;
}

void read_plan(const Attributes& attributes, XlaCall& x) {
  auto letter = [&](const char* name) {
    const std::string_view text = attributes.text(name);
    return text.empty() ? char(0) : text[0];
  };
  x.kernel = attributes.text("kernel");
  x.plan.pack_a = letter("pack_a"), x.plan.pack_b = letter("pack_b");
  x.plan.scratch = dtype_named(attributes.text("scratch"));
  x.plan.pack_scales = attributes.integer("pack_scales") != 0, x.plan.sums = attributes.integer("sums") != 0;
  x.plan.splits = int(attributes.integer("splits"));
  x.plan.raster = int(attributes.integer("raster"));
  x.plan.swizzle = int(attributes.integer("swizzle"));
  x.plan.overlap = attributes.integer("overlap") != 0;
}

}  // namespace

void read(const xla::CallFrame& frame, Device device, XlaCall& x) {
  read_request(frame, device, x);
  make_call(x);
}

void read_request(const xla::CallFrame& frame, Device device, XlaCall& x) {
  const Attributes attributes = attributes_of(frame);
  read_buffers(frame, attributes, device, x, x.request);
  read_keywords(attributes, x.request);
  x.compute = attributes.text("compute");
  if (!x.compute.empty()) x.request.compute = x.compute.c_str();
  read_plan(attributes, x);
}

void make_call(XlaCall& x) {
  x.call = canonicalise(x.request);
  // XLA's buffers are apart, or the same.
  if (!x.call.possible_overlaps.empty()) refuse(x.call.possible_overlaps.front().refusal);
}

Key launch_key(const XlaCall& x) {
  Key key = launch_key(x.request, false);
  const size_t words = 3 + (x.kernel.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  if (!key.has_room(int(words))) key.clear();
  if (!key) return key;
  const DevicePlan& p = x.plan;
  key.put(uint64_t(uint8_t(p.pack_a)) | uint64_t(uint8_t(p.pack_b)) << 8 | uint64_t(p.pack_scales) << 16 |
          uint64_t(p.sums) << 17 | uint64_t(p.overlap) << 18 | uint64_t(p.scratch) << 24 |
          uint64_t(uint32_t(p.splits)) << 32);
  key.put(uint64_t(uint32_t(p.raster)) | uint64_t(uint32_t(p.swizzle)) << 32);
  key.put(x.kernel.size());
  for (size_t i = 0; i < x.kernel.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, x.kernel.data() + i, std::min(sizeof word, x.kernel.size() - i));
    key.put(word);
  }
  return key;
}

std::string kernel_of(const xla::CallFrame& frame) { return std::string(attributes_of(frame).text("kernel")); }

}  // namespace cutlass_py
