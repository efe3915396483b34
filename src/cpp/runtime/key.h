// What a class of calls is found by: an operation, and plain bytes that only it can read. Pure C++.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <utility>

#include "abi/kernel.h"

namespace cutlass_py {

// Hash of a key that warm calls look up. A sum of products: no multiplication waits for the one before.
inline size_t hash_of(const uint64_t* words, int count) {
  uint64_t hash = 0, factor = 0x9e3779b97f4a7c15;
  for (int i = 0; i < count; ++i, factor += 0x3c6ef372fe94f82a) {  // factors stay odd
    const uint64_t product = (words[i] ^ words[i] >> 32) * factor;
    hash += product ^ product >> 29;
  }
  return size_t(hash ^ hash >> 32);
}

// Words in a row. Empty where there are none to find it by: they did not fit, or the operation wants none.
class Key {
 public:
  static constexpr int kMost = 64;

  explicit Key(CutlassPyOperation operation) { put(uint64_t(operation)); }
  // The bytes of a plain struct without padding.
  template <class Plain>
  Key(CutlassPyOperation operation, const Plain& bytes) : Key(operation) {
    static_assert(sizeof(Plain) % 4 == 0 && sizeof(Plain) < (kMost - 1) * sizeof *words_);
    words_[(sizeof(Plain) + 7) / 8] = 0;
    std::memcpy(words_ + 1, &bytes, sizeof bytes);
    count_ += (sizeof(Plain) + 7) / 8;
  }

  // What does not fit makes it empty, for good.
  void put(uint64_t word) {
    if (count_ == kMost) lost_ = true;
    if (lost_) return clear();
    words_[count_++] = word;
  }
  void clear() { count_ = 0, lost_ = true; }

  explicit operator bool() const { return count_; }
  const uint64_t* words() const { return words_; }
  int count() const { return count_; }
  size_t hash() const { return hash_of(words_, count_); }
  bool operator==(const Key& other) const {
    return count_ == other.count_ && std::equal(words_, words_ + count_, other.words_);
  }

 private:
  int count_ = 0;
  bool lost_ = false;
  uint64_t words_[kMost];  // not initialised: a call with three operands has about 20
};

// Values by their keys, of which it keeps no more than they are long.
template <class Value>
class KeyTable {
 public:
  const Value* find(const Key& key) const {
    const auto [first, last] = entries_.equal_range(key.hash());
    for (auto entry = first; entry != last; ++entry) {
      const Entry& x = entry->second;
      if (x.count == key.count() && std::equal(key.words(), key.words() + x.count, x.words.get())) return &x.value;
    }
    return nullptr;
  }
  const Value& keep(const Key& key, Value value) {
    auto words = std::make_unique<uint64_t[]>(size_t(key.count()));
    std::copy(key.words(), key.words() + key.count(), words.get());
    return entries_.emplace(key.hash(), Entry{std::move(words), key.count(), std::move(value)})->second.value;
  }
  void clear() { entries_.clear(); }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::unique_ptr<uint64_t[]> words;
    int count;
    Value value;
  };
  struct Same {
    size_t operator()(size_t hash) const { return hash; }
  };
  std::unordered_multimap<size_t, Entry, Same> entries_;
};

}  // namespace cutlass_py
