// The threads of blocks, one after the other: each runs until it waits for the others.
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
  int rank = 0;    // of its block in a cluster
};

extern Thread running;
void synchronize();       // the test fails where not every thread of the block does
void synchronize_grid();  // or of the grid, whose blocks run at once; what they share is lost

constexpr unsigned kMostAtOnce = 3;  // blocks
void run_grid(Extents grid, Extents block, const std::function<void()>& kernel, bool at_once);

// Threads of the blocks of a cluster, which call `yield` as long as they wait for each other. Where none gets on,
// `happens` may let something happen for which they wait: the test fails where nothing does.
void yield();
void run_cluster(Extents grid, unsigned first, unsigned blocks, unsigned threads, const std::function<void()>& kernel,
                 const std::function<bool()>& happens);

}  // namespace simulated
