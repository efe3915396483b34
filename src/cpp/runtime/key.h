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

// Words in a row. Empty where there is nothing to find it by: the operation wants it so, or has more of them.
class Key {
 public:
  static constexpr int kMost = 64;

  Key() = default;  // empty
  explicit Key(CutlassPyOperation operation) { put(uint64_t(operation)); }
  // The bytes of a plain struct without padding.
  template <class Plain>
  Key(CutlassPyOperation operation, const Plain& bytes) : Key(operation) {
    constexpr int count = (sizeof(Plain) + 7) / 8;
    static_assert(sizeof(Plain) % 4 == 0 && count < kMost);
    words_[count] = 0;
    std::memcpy(words_ + 1, &bytes, sizeof bytes);
    count_ += count;
  }

  bool has_room(int words) const { return count_ + words <= kMost; }
  void put(uint64_t word) { words_[count_++] = word; }  // where there is room
  void clear() { count_ = 0; }

  explicit operator bool() const { return count_; }
  const uint64_t* words() const { return words_; }
  int count() const { return count_; }
  size_t hash() const { return hash_of(words_, count_); }
  bool operator==(const Key& other) const {
    return count_ == other.count_ && std::equal(words_, words_ + count_, other.words_);
  }

 private:
  int count_ = 0;
  uint64_t words_[kMost];  // not initialised: a call with three operands has about 20
};

// Values by their keys, of which it keeps no more than they are long.
template <class Value>
class KeyTable {
 public:
  const Value* find(const Key& key) const {
    const auto found = entries_.find({key.words(), key.count()});
    return found == entries_.end() ? nullptr : &found->second.value;
  }
  // In place of none: the first of a key stays.
  const Value& keep(const Key& key, Value value) {
    auto words = std::make_unique<uint64_t[]>(size_t(key.count()));
    std::copy(key.words(), key.words() + key.count(), words.get());
    const Words view{words.get(), key.count()};
    return entries_.emplace(view, Entry{std::move(words), std::move(value)}).first->second.value;
  }
  void clear() { entries_.clear(); }
  size_t size() const { return entries_.size(); }

 private:
  struct Words {
    const uint64_t* words;
    int count;
    bool operator==(const Words& other) const {
      return count == other.count && std::equal(words, words + count, other.words);
    }
  };
  struct Hash {
    size_t operator()(const Words& x) const { return hash_of(x.words, x.count); }
  };
  struct Entry {
    std::unique_ptr<uint64_t[]> words;
    Value value;
  };
  std::unordered_map<Words, Entry, Hash> entries_;
};

}  // namespace cutlass_py
