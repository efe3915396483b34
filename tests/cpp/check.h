// What the C++ tests share.
#pragma once

#include <cstdio>

inline int failures = 0;

#define CHECK(...)                                                          \
  do {                                                                      \
    if (!(__VA_ARGS__)) {                                                   \
      ++failures;                                                           \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
    }                                                                       \
  } while (0)
