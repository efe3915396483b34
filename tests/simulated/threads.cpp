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

// A thread of every block in turn.
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  Thread thread;
  bool waits = false;
};

ucontext_t outside;
Fiber* current = nullptr;
const std::function<void()>* code = nullptr;

void live() {
  for (;;) {
    (*code)();
    current->waits = false;
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

void run_block(Extents grid, Extents at, Extents block) {
  const int count = int(block.x * block.y * block.z);
  for (int i = 0; i < count; ++i) {
    const unsigned u = unsigned(i);
    fiber(i).thread = {{u % block.x, u / block.x % block.y, u / (block.x * block.y)}, at, grid, i};
  }
  int waiting = count;
  for (bool backwards = false; waiting; backwards = !backwards) {  // no order is to be relied on
    waiting = 0;
    for (int i = 0; i < count; ++i) {
      const int number = backwards ? count - 1 - i : i;
      resume(number);
      waiting += current->waits;
    }
    if (waiting && waiting < count) {
      fibers.clear();
      return wrong("threads of a block wait for others that have finished");
    }
  }
}

}  // namespace

void synchronize() {
  current->waits = true;
  swapcontext(&current->context, &outside);
}

void run_grid(Extents grid, Extents block, const std::function<void()>& kernel) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  code = &kernel;
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) run_block(grid, {x, y, 0}, block);
  }
}

}  // namespace simulated
