// Call frames as XLA builds them, for tests of what reads them.
#pragma once

#include <list>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "frontends/xla_call.h"

namespace cutlass_py {

using Value = std::variant<int64_t, double, std::string, std::vector<double>>;

using Values = std::map<std::string, Value>;

// The attributes that an operation's tests begin with.
template <class Call>
Values written();

// A frame and everything that it points to.
template <class Call>
class FrameOf {
 public:
  Values attributes = written<Call>();

  FrameOf& argument(std::vector<int64_t> dims, xla::DataType dtype = xla::DataType::f32, uintptr_t address = 0) {
    add(args_, std::move(dims), dtype, address);
    return *this;
  }
  FrameOf& result(std::vector<int64_t> dims, xla::DataType dtype = xla::DataType::f32, uintptr_t address = 0) {
    add(rets_, std::move(dims), dtype, address);
    return *this;
  }
  FrameOf& with(const std::string& name, Value value) {
    attributes[name] = std::move(value);
    return *this;
  }

  void read(XlaCall& x) {
    for (auto& [name, value] : attributes) append(name, value);
    xla::CallFrame frame{};
    frame.struct_size = sizeof frame;
    frame.stage = xla::Stage::execute;
    frame.args = {sizeof frame.args, nullptr, int64_t(args_.size()), nullptr, args_.data()};
    frame.rets = {sizeof frame.rets, nullptr, int64_t(rets_.size()), nullptr, rets_.data()};
    frame.attrs = {sizeof frame.attrs, nullptr, int64_t(names_.size()), types_.data(), names_.data(), values_.data()};
    kernel_before = Attributes(frame).text("kernel");
    x.read(frame, {DeviceType::cuda, 1});
    x.canonicalise();
  }

  std::string kernel_before;  // what the frame gives away ahead of its buffers

  std::string error() {
    try {
      Call x;
      read(x);
    } catch (const std::invalid_argument& wrong) {
      return wrong.what();
    }
    return "nothing";
  }

 private:
  void add(std::vector<void*>& list, std::vector<int64_t> dims, xla::DataType dtype, uintptr_t address) {
    shapes_.push_back(std::move(dims));
    next_ += uintptr_t(1) << 32;
    void* data = reinterpret_cast<void*>(address ? address : next_);
    buffers_.push_back(
        {sizeof(xla::Buffer), nullptr, dtype, data, int64_t(shapes_.back().size()), shapes_.back().data()});
    list.push_back(&buffers_.back());
  }

  void append(const std::string& name, Value& value) {
    spans_.push_back({name.data(), name.size()});
    names_.push_back(&spans_.back());
    if (auto* text = std::get_if<std::string>(&value)) {
      spans_.push_back({text->data(), text->size()});
      types_.push_back(xla::AttrType::string), values_.push_back(&spans_.back());
    } else if (auto* numbers = std::get_if<std::vector<double>>(&value)) {
      arrays_.push_back({xla::DataType::f64, numbers->size(), numbers->data()});
      types_.push_back(xla::AttrType::array), values_.push_back(&arrays_.back());
    } else {
      const bool whole = std::holds_alternative<int64_t>(value);
      void* at = whole ? static_cast<void*>(&std::get<int64_t>(value)) : &std::get<double>(value);
      scalars_.push_back({whole ? xla::DataType::s64 : xla::DataType::f64, at});
      types_.push_back(xla::AttrType::scalar), values_.push_back(&scalars_.back());
    }
  }

  uintptr_t next_ = 0;
  std::list<std::vector<int64_t>> shapes_;
  std::list<xla::Buffer> buffers_;
  std::list<xla::ByteSpan> spans_;
  std::list<xla::Scalar> scalars_;
  std::list<xla::Array> arrays_;
  std::vector<void*> args_, rets_, values_;
  std::vector<xla::ByteSpan*> names_;
  std::vector<xla::AttrType> types_;
};

}  // namespace cutlass_py
