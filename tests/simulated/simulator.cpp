#include "simulator.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace simulated {
namespace {

struct Queue;

struct Work {
  std::function<void()> run;  // none: it only waits
  int microseconds = 0;
  const Queue* behind = nullptr;  // what has to be done first: `count` pieces of that queue's work
  size_t count = 0;
};

struct Queue {
  std::deque<Work> works;
  size_t queued = 0, done = 0;
  bool captures = false;
  std::vector<Work> graph;  // of its last capture
};

struct Block {
  std::unique_ptr<char[], decltype(&std::free)> bytes;
  size_t size;
  bool alive;
};

struct Gpu {
  std::recursive_mutex mutex;
  std::vector<std::unique_ptr<Queue>> queues;
  std::map<uintptr_t, Block> blocks;  // none goes before `simulated_forget`: what is read too late is found
  std::string wrong;
  void (*hook)() = nullptr;
  long fails = -1, calls = 0;
  long long clock = 0;
  uint32_t random = 1;
};

Gpu& gpu() {
  static auto* made = new Gpu();
  return *made;
}

Queue& queue_of(Stream stream) {
  static Queue* const legacy = static_cast<Queue*>(new_stream());
  return reinterpret_cast<uintptr_t>(stream) <= 1 ? *legacy : *static_cast<Queue*>(stream);
}

void push(Queue& queue, Work work) {
  if (queue.captures) {
    queue.graph.push_back(std::move(work));
    return;
  }
  queue.works.push_back(std::move(work));
  ++queue.queued;
}

// CUDA waits where a queue is full, for work that may want the interpreter.
void let_others_run() {
  const auto hook = gpu().hook;
  if (!hook) return;
  struct Turn {
    std::mutex mutex;
    std::condition_variable over;
    bool done = false;
  };
  auto turn = std::make_shared<Turn>();
  std::thread([=] {
    hook();
    std::lock_guard lock(turn->mutex);
    turn->done = true;
    turn->over.notify_one();
  }).detach();
  std::unique_lock lock(turn->mutex);
  if (!turn->over.wait_for(lock, std::chrono::seconds(5), [&] { return turn->done; })) {
    wrong("something is queued with the interpreter held");
  }
}

void poison(char* bytes, size_t size) { std::memset(bytes, 0xff, size); }

// Poisons the block, as part of the work of a stream.
std::function<void()> turning(uintptr_t address, bool alive) {
  return [=] {
    std::lock_guard lock(gpu().mutex);
    const auto found = gpu().blocks.find(address);
    if (found == gpu().blocks.end()) return;  // of a test that failed
    Block& block = found->second;
    if (block.alive == alive) wrong(alive ? "memory is allocated twice" : "memory is freed twice");
    block.alive = alive;
    poison(block.bytes.get(), block.size);
  };
}

bool is_ready(const Queue& queue) {
  if (queue.works.empty()) return false;
  const Work& next = queue.works.front();
  return !next.behind || next.behind->done >= next.count;
}

// By seed: the first queue that can, the last one, or any.
size_t choose(size_t count, uint32_t seed) {
  if (seed < 2) return seed == 0 ? 0 : count - 1;
  uint32_t& x = gpu().random;
  x = x * 1664525 + 1013904223;
  return (x >> 16) % count;
}

bool run_one(uint32_t seed) {
  Gpu& g = gpu();
  Queue* chosen;
  Work work;
  {
    std::lock_guard lock(g.mutex);
    std::vector<Queue*> ready;
    bool empty = true;
    for (const auto& queue : g.queues) {
      empty &= queue->works.empty();
      if (is_ready(*queue)) ready.push_back(queue.get());
    }
    if (ready.empty()) {
      if (!empty) wrong("streams wait for each other");
      return false;
    }
    chosen = ready[choose(ready.size(), seed)];
    work = std::move(chosen->works.front());
    chosen->works.pop_front();
  }
  if (work.run) work.run();
  std::lock_guard lock(g.mutex);
  g.clock += work.microseconds;
  ++chosen->done;
  return true;
}

}  // namespace

bool count_call() {
  std::lock_guard lock(gpu().mutex);
  return gpu().calls++ != gpu().fails;
}

bool queue(Stream stream, std::function<void()> work, int microseconds) {
  let_others_run();
  if (!count_call()) return false;
  std::lock_guard lock(gpu().mutex);
  push(queue_of(stream), {std::move(work), microseconds});
  return true;
}

bool wait(Stream waiter, Stream signaler) {
  let_others_run();
  return count_call() && order(waiter, signaler);
}

bool order(Stream waiter, Stream signaler) {
  std::lock_guard lock(gpu().mutex);
  Queue &from = queue_of(signaler), &to = queue_of(waiter);
  if (&from == &to) return true;
  if (from.captures || to.captures) {
    wrong("an event of another stream ends a capture");
    return false;
  }
  push(to, {nullptr, 0, &from, from.queued});
  return true;
}

void* allocate(size_t bytes, Stream stream) {
  if (!count_call()) return nullptr;
  std::lock_guard lock(gpu().mutex);
  char* memory = static_cast<char*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  const auto address = reinterpret_cast<uintptr_t>(memory);
  gpu().blocks.emplace(address, Block{{memory, &std::free}, bytes, false});
  push(queue_of(stream), {turning(address, true)});
  return reinterpret_cast<void*>(address);
}

void release(void* memory, Stream stream) {
  std::lock_guard lock(gpu().mutex);
  push(queue_of(stream), {turning(reinterpret_cast<uintptr_t>(memory), false)});
}

Stream new_stream() {
  std::lock_guard lock(gpu().mutex);
  gpu().queues.push_back(std::make_unique<Queue>());
  return gpu().queues.back().get();
}

bool capturing(Stream stream) {
  std::lock_guard lock(gpu().mutex);
  return queue_of(stream).captures;
}

size_t length(Stream stream) {
  std::lock_guard lock(gpu().mutex);
  const Queue& queue = queue_of(stream);
  return queue.captures ? queue.graph.size() : queue.queued;
}

void run_all() {
  while (run_one(0)) {
  }
}

long long now() { return gpu().clock; }

void check_alive(const void* address) {
  std::lock_guard lock(gpu().mutex);
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  auto after = gpu().blocks.upper_bound(wanted);
  if (after == gpu().blocks.begin()) return;
  const auto& [from, block] = *std::prev(after);
  if (wanted < from + block.size && !block.alive) wrong("a kernel touches memory that is not allocated");
}

void wrong(const char* what) {
  std::lock_guard lock(gpu().mutex);
  gpu().wrong = what;
}

}  // namespace simulated

// ------------------------------------------------------------------------------------------------ for device.py

using namespace simulated;

extern "C" {

void* simulated_stream() { return new_stream(); }
void simulated_queue(void* stream, void (*work)()) { push(queue_of(stream), {work, 1}); }
void simulated_wait(void* waiter, void* signaler) { order(waiter, signaler); }

// Everything that is queued, in an order that the seed chooses among those that are allowed.
void simulated_run(uint32_t seed) {
  gpu().random = seed;
  while (run_one(seed)) {
  }
}

void simulated_capture(void* stream) {
  queue_of(stream).graph.clear();
  queue_of(stream).captures = true;
}
void simulated_captured(void* stream) { queue_of(stream).captures = false; }
void simulated_replay(void* stream) {
  for (const Work& work : queue_of(stream).graph) push(queue_of(stream), work);
}

void simulated_fail(long calls) {  // the one after so many; none if negative
  gpu().calls = 0;
  gpu().fails = calls;
}
int simulated_failed() { return gpu().fails >= 0 && gpu().calls > gpu().fails; }
void simulated_hook(void (*hook)()) { gpu().hook = hook; }
const char* simulated_wrong() { return gpu().wrong.c_str(); }

int simulated_alive() {
  int count = 0;
  for (const auto& [_, block] : gpu().blocks) count += block.alive;
  return count;
}

void simulated_forget() {
  gpu().wrong.clear();
  gpu().blocks.clear();
}
}
