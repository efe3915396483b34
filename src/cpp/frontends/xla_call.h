// A custom call of XLA's, whatever it computes: what its frame says, and what the handler (xla_handler.h) asks of the
// operation. Neither Python nor CUDA.
//
// cutlass_py/jax/custom_call.py writes what is read here; both sides change together, with kXlaFormat.
#pragma once

#include <string>
#include <string_view>

#include "arrays/operand.h"
#include "frontends/xla_ffi.h"
#include "runtime/launch_cache.h"

namespace cutlass_py {

// The meaning of the attributes. An exported module keeps the one that it was lowered with.
constexpr int64_t kXlaFormat = 3;

// The attributes of a frame. Throws std::invalid_argument where they are none of ours.
class Attributes {
 public:
  explicit Attributes(const xla::CallFrame& frame);

  std::string_view text(const char* name) const;
  int64_t integer(const char* name) const;
  double number(const char* name) const;
  const double* pair(const char* name) const;  // of a factor, its parts; of an activation, its parameters

 private:
  const void* find(const char* name, xla::AttrType type) const;
  template <class T>
  const T* scalar(const char* name, xla::DataType dtype) const;

  const xla::Attrs& attrs_;
};

// The operands of a call by role: their names, the operands themselves, and what refers to those that are there.
struct OperandsByRole {
  const char* const* names;
  int count;
  Operand* operands;
  const Operand** given;
};

// Reads a frame's arrays, row-major, as its attributes name them. Returns the buffer that is scratch; null without one.
const xla::Buffer* read_operands(const xla::CallFrame& frame, const Attributes& attributes, Device device,
                                 const OperandsByRole& into);

// One call of an operation.
class XlaCall {
 public:
  virtual ~XlaCall() = default;
  virtual const char* operation() const = 0;

  // What was asked for and the plan, of which the device adds kernel, library and multiprocessors. Throws
  // std::invalid_argument where the frame is none of ours.
  virtual void read(const xla::CallFrame& frame, Device device) = 0;
  // What its launch is found by; empty for none.
  virtual Key key() const = 0;
  // Fills that launch with the call; false where what is written may share elements with something else.
  virtual bool fill(const CachedLaunch& known, CachedLaunch::Filled& launch, device::Stream stream) const = 0;

  // The canonical call; throws what is refused.
  virtual void canonicalise() = 0;
  virtual bool nothing_to_do() const = 0;
  virtual LaunchPlan& launch_plan() = 0;
  virtual std::string range_name() const = 0;
  virtual void run(device::Stream stream) = 0;
  virtual CachedLaunch cached_launch() const = 0;
  virtual void finish(device::Stream) const {}  // behind either: what no launch of its kernel does

  std::string kernel;  // by name; empty for none

 protected:
  // The part of a plan that all operations have; `kernel` too.
  void read_launch(const Attributes& attributes, LaunchPlan& plan);
  // Adds that to a key, which is empty then where there is no room.
  void put_launch(Key& key, const LaunchPlan& plan) const;
};

}  // namespace cutlass_py
