#include "threads.h"

#include <ucontext.h>

#include <memory>
#include <mutex>
#include <vector>

#include "simulator.h"

namespace simulated {

Thread running;

namespace {

constexpr size_t kStack = 256 << 10;

enum class Wait { none, for_block, for_grid };

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

void place_block(int first, Extents grid, Extents at, Extents block) {
  for (unsigned u = 0; u < block.x * block.y * block.z; ++u) {
    const Extents index(u % block.x, u / block.x % block.y, u / (block.x * block.y));
    fiber(first + int(u)).thread = {index, at, grid, int(u)};
  }
}

// Whether all threads of the block wait for the grid, or else have finished.
bool run_block(int first, int count) {
  for (bool backwards = false;; backwards = !backwards) {  // no order is to be relied on
    int waiting[3] = {};
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

void run_grid(Extents grid, Extents block, const std::function<void()>& kernel, bool at_once) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  code = &kernel;
  const int threads = int(block.x * block.y * block.z), blocks = int(grid.x * grid.y);
  if (!at_once) {
    for (int i = 0; i < blocks; ++i) {
      place_block(0, grid, {i % grid.x, i / grid.x, 0}, block);
      if (run_block(0, threads)) return wrong("blocks that may not run at once wait for each other");
    }
    return;
  }
  for (int i = 0; i < blocks; ++i) place_block(i * threads, grid, {i % grid.x, i / grid.x, 0}, block);
  for (int waiting = blocks; waiting == blocks;) {
    waiting = 0;
    for (int i = 0; i < blocks; ++i) waiting += run_block(i * threads, threads);
    if (waiting && waiting < blocks) return wrong("blocks wait for others that have finished");
  }
}

}  // namespace simulated
