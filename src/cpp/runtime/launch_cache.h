// Calls of a class that was seen before, where one launch is all: what is asked leads to the launch itself, in front of
// an operation's canonical form. Pure C++; it knows operands by their index and arguments as bytes.
//
// The rule: a launch is found by everything that the operation reads of a request, addresses by their alignment alone.
// Whoever clears the plan table clears these launches.
#pragma once

#include <cstring>
#include <mutex>
#include <optional>

#include "arrays/operand.h"
#include "runtime/key.h"
#include "runtime/launch.h"

namespace cutlass_py {

// All that an operation may read of an operand. False where there is no room for it, and for what lies nowhere.
inline bool put_operand(Key& key, int index, const Operand& x) {
  if (x.metadata_only || !key.has_room(1 + 2 * x.rank)) return false;
  const uint64_t alignment = reinterpret_cast<uintptr_t>(x.data) & 15;  // none beyond 16 bytes counts
  key.put(uint64_t(index) | uint64_t(x.dtype) << 8 | uint64_t(x.rank) << 16 | uint64_t(x.readonly) << 24 |
          alignment << 32);
  for (int i = 0; i < x.rank; ++i) key.put(uint64_t(x.shape[i])), key.put(uint64_t(x.strides[i]));
  return true;
}

class CachedLaunch {
 public:
  static constexpr size_t kMostBytes = 576;
  static constexpr int kMostOperands = 16, kMostNumbers = 4, kMostResults = 2;

  // A copy with the addresses and numbers of one call, which lives without the cache.
  struct Filled {
    LaunchPlan plan;
    CutlassPyLaunch launch;
    alignas(8) unsigned char arguments[kMostBytes];
    uint16_t results[kMostResults];

    void set_result(void* memory, int index = 0) { std::memcpy(arguments + results[index], &memory, sizeof memory); }
    void run() { cutlass_py::launch(plan, arguments, launch); }
  };

  CachedLaunch() = default;  // of a class that takes more than one launch
  template <class Arguments>
  CachedLaunch(const LaunchPlan& plan, int device, const Arguments& arguments) : plan_(plan), launch_(plan.on(device)) {
    static_assert(sizeof(Arguments) <= kMostBytes);
    size_ = sizeof arguments;
    std::memcpy(arguments_, &arguments, sizeof arguments);
  }
  // Offsets of what differs between calls: an operand's address, a number, the address of the result.
  void add_address(int operand, size_t offset) { addresses_[count_++] = {uint8_t(operand), uint16_t(offset)}; }
  void add_number(size_t offset) { numbers_[number_count_++] = uint16_t(offset); }
  void set_result(size_t offset, const Operand& made, int index = 0) {
    result_offsets_[index] = uint16_t(offset), results_[index] = made;
  }

  explicit operator bool() const { return size_; }
  const Operand& result(int index = 0) const { return results_[index]; }  // the new one of a call that is given none

  // address_of(operand) is where its address is found, null where it is absent. Numbers in the order in which they were
  // added; null leaves them as they are.
  template <class AddressOf>
  void fill(Filled& filled, AddressOf address_of, const CutlassPyScalar* numbers, device::Stream stream) const {
    filled.plan = plan_, filled.launch = launch_, filled.launch.stream = stream;
    std::memcpy(filled.results, result_offsets_, sizeof result_offsets_);
    std::memcpy(filled.arguments, arguments_, size_);
    for (int i = 0; numbers && i < number_count_; ++i) {  // the address in front of it stays
      std::memcpy(filled.arguments + numbers_[i], &numbers[i], offsetof(CutlassPyScalar, device));
    }
    for (int i = 0; i < count_; ++i) {
      void* const* address = address_of(addresses_[i].operand);
      if (address) std::memcpy(filled.arguments + addresses_[i].offset, address, sizeof *address);
    }
  }
  void fill(Filled& filled, const Operand* const* operands, const CutlassPyScalar* numbers,
            device::Stream stream) const {
    fill(filled, [&](int i) { return operands[i] ? &operands[i]->data : nullptr; }, numbers, stream);
  }

 private:
  struct Address {
    uint8_t operand;
    uint16_t offset;
  };
  LaunchPlan plan_;
  CutlassPyLaunch launch_{};
  Operand results_[kMostResults];
  size_t size_ = 0;
  uint16_t result_offsets_[kMostResults] = {}, numbers_[kMostNumbers];
  int count_ = 0, number_count_ = 0;
  Address addresses_[kMostOperands];
  alignas(8) unsigned char arguments_[kMostBytes];
};

// A table of them. What is found stays until the next of the other two.
class LaunchCache {
 public:
  const CachedLaunch* find(const Key& key) const { return table_.find(key); }  // null where the class was not seen
  void keep(const Key& key, const CachedLaunch& launch) {
    if (table_.size() >= kMost) table_.clear();
    table_.keep(key, launch);
  }
  void clear() { table_.clear(); }

 private:
  static constexpr size_t kMost = 1 << 12;
  KeyTable<CachedLaunch> table_;
};

// Of calls from Python, guarded by the GIL.
LaunchCache& launch_cache();

// Of calls from threads that do not have it.
class SharedLaunchCache {
 public:
  // What `use` returns of the launch that is found, false without one. It must not run Python.
  template <class Use>
  bool find(const Key& key, Use use) {
    std::lock_guard lock(mutex_);
    const CachedLaunch* known = cache_.find(key);
    return known && use(*known);
  }
  void keep(const Key& key, const CachedLaunch& launch) {
    std::lock_guard lock(mutex_);
    cache_.keep(key, launch);
  }
  void clear() {
    std::lock_guard lock(mutex_);
    cache_.clear();
  }

 private:
  std::mutex mutex_;
  LaunchCache cache_;
};
SharedLaunchCache& shared_launch_cache();

}  // namespace cutlass_py
