// The threads of a block, one after the other: each runs until it waits for the others.
#pragma once

#include <functional>

namespace simulated {

struct Extents {
  unsigned x, y, z;
  Extents(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

constexpr int kMostThreads = 1024;

struct Thread {
  Extents index{0, 0, 0}, block{0, 0, 0}, grid;
  int number = 0;  // of the block's
};

extern Thread running;
void synchronize();       // the test fails where not every thread of the block does
void synchronize_grid();  // or of the grid, whose blocks run at once; what they share is lost

constexpr unsigned kMostAtOnce = 3;  // blocks
void run_grid(Extents grid, Extents block, const std::function<void()>& kernel, bool at_once);

}  // namespace simulated
