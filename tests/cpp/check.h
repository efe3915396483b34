// What the C++ tests share: TEST defines one, CHECK goes on where it fails, main runs all of a file.
#pragma once

#include <cstdio>
#include <vector>

inline int failures = 0;

#define CHECK(...)                                                          \
  do {                                                                      \
    if (!(__VA_ARGS__)) {                                                   \
      ++failures;                                                           \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
    }                                                                       \
  } while (0)

inline std::vector<void (*)()>& tests() {
  static std::vector<void (*)()> all;
  return all;
}

#define TEST(NAME)                                                                    \
  void test_##NAME();                                                                 \
  [[maybe_unused]] const bool added_##NAME = (tests().push_back(&test_##NAME), true); \
  void test_##NAME()

int main() {
  for (auto* test : tests()) test();
  if (failures) std::printf("%d checks failed\n", failures);
  return failures || tests().empty();
}
