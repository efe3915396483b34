#include "threads.h"

#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "simulator.h"

namespace simulated {

Thread running;

namespace {

constexpr size_t kStack = 256 << 10;

enum class Wait { none, for_block, for_grid, for_anything };

// A thread of every block in turn.
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  Thread thread;
  Wait waits = Wait::none;
};

ucontext_t outside;
Fiber* current = nullptr;
const std::function<void()>* code = nullptr;

void live() {
  for (;;) {
    (*code)();
    current->waits = Wait::none;
    swapcontext(&current->context, &outside);
  }
}

std::vector<std::unique_ptr<Fiber>> fibers;

Fiber& fiber(int number) {
  while (int(fibers.size()) <= number) {
    Fiber& made = *fibers.emplace_back(std::make_unique<Fiber>());
    getcontext(&made.context);
    made.context.uc_stack.ss_sp = made.stack.get();
    made.context.uc_stack.ss_size = kStack;
    makecontext(&made.context, &live, 0);
  }
  return *fibers[number];
}

void resume(int number) {
  current = &fiber(number);
  running = current->thread;
  swapcontext(&outside, &current->context);
}

void wait(Wait waits) {
  current->waits = waits;
  swapcontext(&current->context, &outside);
}

Extents block_of(Extents grid, unsigned i) { return {i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)}; }

void place_block(int first, Extents grid, Extents at, Extents block) {
  for (unsigned u = 0; u < block.x * block.y * block.z; ++u) {
    const Extents index(u % block.x, u / block.x % block.y, u / (block.x * block.y));
    fiber(first + int(u)).thread = {index, at, grid, int(u), 0};
  }
}

// Whether all threads of the block wait for the grid, or else have finished.
bool run_block(int first, int count) {
  for (bool backwards = false;; backwards = !backwards) {  // no order is to be relied on
    int waiting[4] = {};
    for (int i = 0; i < count; ++i) {
      const int number = first + (backwards ? count - 1 - i : i);
      resume(number);
      ++waiting[int(fibers[number]->waits)];
    }
    if (waiting[int(Wait::for_block)] == count) continue;
    if (waiting[int(Wait::none)] == count) return false;
    if (waiting[int(Wait::for_grid)] == count) return true;
    fibers.clear();
    wrong("threads of a block wait for others that have finished, or that wait for something else");
    return false;
  }
}

}  // namespace

void synchronize() { wait(Wait::for_block); }
void synchronize_grid() { wait(Wait::for_grid); }
void yield() { wait(Wait::for_anything); }

void run_cluster(Extents grid, unsigned first, unsigned blocks, unsigned threads, const std::function<void()>& kernel,
                 const std::function<bool()>& happens) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  code = &kernel;
  std::vector<int> waiting;
  for (unsigned i = 0; i < blocks; ++i) {
    place_block(int(i * threads), grid, {first + i, 0, 0}, {threads, 1, 1});
    for (unsigned j = 0; j < threads; ++j) {
      waiting.push_back(int(i * threads + j));
      fibers[waiting.back()]->thread.rank = int(i);
    }
  }
  for (bool backwards = false; !waiting.empty(); backwards = !backwards) {  // no order is to be relied on
    if (backwards) std::reverse(waiting.begin(), waiting.end());
    std::vector<int> left;
    for (int number : waiting) {
      resume(number);
      if (fibers[number]->waits != Wait::none) left.push_back(number);
    }
    if (backwards) std::reverse(left.begin(), left.end());
    const bool some_finished = left.size() < waiting.size();
    waiting = std::move(left);
    if (!waiting.empty() && !happens() && !some_finished) {
      fibers.clear();
      return wrong("threads of a cluster wait for what does not happen");
    }
  }
}

void run_grid(Extents grid, Extents block, const std::function<void()>& kernel, bool at_once) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  code = &kernel;
  const int threads = int(block.x * block.y * block.z), blocks = int(grid.x * grid.y * grid.z);
  if (!at_once) {
    for (int i = 0; i < blocks; ++i) {
      place_block(0, grid, block_of(grid, i), block);
      if (run_block(0, threads)) return wrong("blocks that may not run at once wait for each other");
    }
    return;
  }
  for (int i = 0; i < blocks; ++i) place_block(i * threads, grid, block_of(grid, i), block);
  for (int waiting = blocks; waiting == blocks;) {
    waiting = 0;
    for (int i = 0; i < blocks; ++i) waiting += run_block(i * threads, threads);
    if (waiting && waiting < blocks) return wrong("blocks wait for others that have finished");
  }
}

}  // namespace simulated
