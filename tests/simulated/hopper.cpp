#include "hopper.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "simulator.h"

namespace simulated::hopper {
namespace {

struct Barrier {
  int arrivals = 0, pending = 0, bytes = 0;
  uint32_t phase = 0;
};

// Threads that meet, again and again.
struct Meeting {
  int there = 0, times = 0;

  void join(int count);
  void arrive(int count);
};

// Work of a thread that is done in groups.
struct Groups {
  std::deque<std::vector<std::function<void()>>> committed;
  std::vector<std::function<void()>> open;

  void commit() { committed.push_back(std::move(open)), open.clear(); }
  void wait(int left) {
    for (; int(committed.size()) > left; committed.pop_front()) {
      for (const auto& work : committed.front()) work();
    }
  }
  bool idle() const {
    return open.empty() &&
           std::all_of(committed.begin(), committed.end(), [](const auto& group) { return group.empty(); });
  }
};

struct Block {
  std::vector<char> memory;
  std::map<uint32_t, Barrier> barriers;
  std::map<int, Meeting> named, warps;
  std::map<int, Groups> stores, products, copies;
  unsigned threads = 0;      // that have not ended
  std::vector<bool> waited;  // for the kernel before, by thread
};

struct Cluster {
  std::vector<Block> blocks;
  Meeting meeting;
  std::deque<std::function<void()>> loads;
  long events = 0, seen = 0;
  uint32_t random = 1;

  bool chance() { return (random = random * 1664525 + 1013904223) >> 31; }
};
std::unique_ptr<Cluster> cluster;
void (*late)() = nullptr;  // writes what the kernel before has not written yet

Block& block() { return cluster->blocks[running.rank]; }
Block& block(int rank) {  // of the cluster
  if (!cluster->blocks[rank].threads) wrong("a block is used that has ended");
  return cluster->blocks[rank];
}

void check_waited() {
  if (!block().waited[running.number]) wrong("memory is used before the kernel before has ended");
}

void Meeting::arrive(int count) {
  if (++there == count) there = 0, ++times, ++cluster->events;
}
void Meeting::join(int count) {
  const int now = times;
  arrive(count);
  while (times == now) yield();
}

Barrier& barrier(Block& block, uint32_t at) {
  if (!block.barriers.count(at)) wrong("a barrier is used that was not made");
  return block.barriers[at];
}

void complete(Barrier& barrier) {
  if (barrier.pending < 0) wrong("a barrier is arrived at too often");
  if (barrier.pending || barrier.bytes) return;
  barrier.pending = barrier.arrivals, barrier.phase ^= 1, ++cluster->events;
}

// each(address in memory, address in shared memory or null) for the lines of a box, element by element.
template <class Each>
void box_elements(const Map& map, uint32_t place, const int (&at)[3], Each each) {
  for (uint32_t z = 0; z < map.box[2]; ++z) {
    for (uint32_t y = 0; y < map.box[1]; ++y) {
      for (uint32_t x = 0; x < map.box[0]; ++x, place += map.size) {
        const int64_t i[3] = {at[0] + int64_t(x), at[1] + int64_t(y), at[2] + int64_t(z)};
        bool inside = true;
        for (int k = 0; k < 3; ++k) inside &= i[k] >= 0 && uint64_t(i[k]) < map.extents[k];
        char* address = map.data + i[0] * map.size + i[1] * int64_t(map.strides[0]) + i[2] * int64_t(map.strides[1]);
        if (inside && (x == 0 || x + 1 == map.box[0])) check_alive(address);
        each(inside ? address : nullptr, swizzled(place, map.swizzle));
      }
    }
  }
}

void round_to_tf32(char* at) {
  uint32_t bits;
  std::memcpy(&bits, at, sizeof bits);
  if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
  std::memcpy(at, &bits, sizeof bits);
}

bool happens() {
  Cluster& c = *cluster;
  if (c.events != c.seen) {
    c.seen = c.events;
    return true;
  }
  if (c.loads.empty()) return false;
  const auto load = std::move(c.loads.front());
  c.loads.pop_front();
  load();
  return true;
}

}  // namespace

void run_grid(Extents grid, unsigned threads, unsigned size, unsigned shared_bytes,
              const std::function<void()>& kernel) {
  for (unsigned first = 0; first < grid.x; first += size) {
    cluster = std::make_unique<Cluster>();
    cluster->random = first + 1;
    cluster->blocks.resize(size);
    for (Block& each : cluster->blocks) {
      each.memory.assign(shared_bytes + 1024, char(0xff));
      each.threads = threads, each.waited.assign(threads, false);
    }
    const auto thread = [&] {
      kernel();
      --block().threads;
    };
    run_cluster(grid, first, size, threads, thread, &happens);
    if (!cluster->loads.empty()) wrong("a block ends before its loads");
    for (const Block& each : cluster->blocks) {
      for (const auto& [_, groups] : each.stores) {
        if (!groups.idle()) wrong("a thread ends before its stores");
      }
      for (const auto& [_, copies] : each.copies) {
        if (!copies.idle()) wrong("a thread copies and tells no barrier of it");
      }
    }
  }
  cluster.reset();
}

char* shared(uint32_t address, uint32_t bytes) { return shared_of(running.rank, address, bytes); }
char* shared_of(int rank, uint32_t address, uint32_t bytes) {
  Block& b = block(rank);
  static char aside[256];
  if (bytes == 16 && address % 16) wrong("16 bytes of shared memory are not aligned");
  if (address + bytes <= b.memory.size()) return b.memory.data() + address;
  wrong("an address is outside of shared memory");
  return aside;
}

void init_barrier(uint32_t at, int arrivals) { block().barriers[at] = {arrivals, arrivals, 0, 0}; }

void wait_for_predecessor() {
  if (!cluster) return;
  for (int i = 0; late && i < 64; ++i) ++cluster->events, yield();  // those that do not wait go on
  if (const auto write = std::exchange(late, nullptr)) write();
  block().waited[running.number] = true;
}

void arrive(uint32_t at, int rank, int expected_bytes) {
  Barrier& there = barrier(block(rank), at);
  there.bytes += expected_bytes;
  --there.pending;
  complete(there);
}

void wait(uint32_t at, uint32_t parity) {
  Block& mine = block();
  while (barrier(mine, at).phase == parity) yield();
}

void synchronize(int number, int threads) { block().named[number].join(threads); }
void arrive_named(int number, int threads) { block().named[number].arrive(threads); }
void synchronize_block() { synchronize(0, int(block().waited.size())); }
void synchronize_warp() { block().warps[running.number / 32].join(32); }
void synchronize_cluster() { cluster->meeting.join(int(cluster->blocks.size() * block().waited.size())); }

void load(uint32_t to, const Map& map, uint32_t at, const int (&place)[3], uint32_t blocks) {
  const auto work = [=, x = place[0], y = place[1], z = place[2]] {
    for (size_t rank = 0; rank < cluster->blocks.size(); ++rank) {
      if (!(blocks >> rank & 1)) continue;
      Block& there = block(int(rank));
      box_elements(map, to, {x, y, z}, [&](const char* from, uint32_t address) {
        if (address + map.size > there.memory.size()) return wrong("a load goes outside of shared memory");
        if (from) {
          std::memcpy(&there.memory[address], from, map.size);
          if (map.tf32) round_to_tf32(&there.memory[address]);
        } else {
          std::memset(&there.memory[address], 0, map.size);
        }
      });
      Barrier& told = barrier(there, at);
      told.bytes -= int(map.box[0] * map.box[1] * map.box[2] * map.size);
      complete(told);
    }
  };
  if (to % 128) wrong("a load goes to where it may not");
  if (place[0] * int(map.size) % 16) wrong("a load begins within a granule: an illegal instruction");
  check_waited();
  if (cluster->chance()) return work();
  cluster->loads.push_back(work);
}

void store(const Map& map, uint32_t from, const int (&place)[3]) {
  if (from % 128) wrong("a store comes from where it may not");
  if (place[0] * int(map.size) % 16) wrong("a store begins within a granule: an illegal instruction");
  check_waited();
  const auto work = [=, x = place[0], y = place[1], z = place[2]] {
    box_elements(map, from, {x, y, z}, [&](char* to, uint32_t address) {
      if (to) std::memcpy(to, shared(address, map.size), map.size);
    });
  };
  if (cluster->chance()) return work();
  block().stores[running.number].open.push_back(work);
}
void commit_stores() { block().stores[running.number].commit(); }
void wait_for_stores(int groups) { block().stores[running.number].wait(groups); }

void copy(uint32_t to, const void* from, uint32_t bytes, uint32_t inside) {
  check_waited();
  char* place = shared(to, bytes);
  if (to % bytes || uintptr_t(from) % bytes) wrong("a copy is not aligned");
  block().copies[running.number].open.push_back([=] {
    if (inside) check_alive(from), check_alive(static_cast<const char*>(from) + inside - 1);
    std::memset(place, 0, bytes), std::memcpy(place, from, inside);
  });
}
void commit_copies() { block().copies[running.number].commit(); }
void wait_for_copies(int groups) { block().copies[running.number].wait(groups); }
void arrive_when_copied(uint32_t at) {
  const auto work = [at, rank = running.rank, copies = std::exchange(block().copies[running.number].open, {})] {
    for (const auto& each : copies) each();
    arrive(at, rank);
  };
  if (cluster->chance()) return work();
  cluster->loads.push_back(work);
}

void queue_product(std::function<void()> product) {
  block().products[running.number].open.push_back(std::move(product));
}
void commit_products() { block().products[running.number].commit(); }
void wait_for_products(int groups) {
  block().products[running.number].wait(groups);
  synchronize_warp();  // which does so as one
}

}  // namespace simulated::hopper

extern "C" void simulated_late(void (*work)()) { simulated::hopper::late = work; }
