// What a Hopper's blocks share on the simulated GPU: shared memory, its barriers, bulk copies, groups of products.
//
// What is asynchronous happens as late as it may, or at once, by chance: loads when nothing else does, products and
// stores when their groups are waited for. So what does not wait is found, and what hands memory back too early.
#pragma once

#include <cstdint>
#include <functional>

#include "threads.h"

namespace simulated::hopper {

// A tensor map, in the 128 bytes of CUDA's.
struct Map {
  char* data;
  uint64_t extents[3], strides[2];  // the latter in bytes, of all but the innermost
  uint32_t box[3], size, swizzle;   // bytes of an element; of what a swizzle repeats in, 0 without one
  bool tf32;                        // rounded as it is loaded: to nearest, ties to even
};

// Blocks of a cluster run at once, one cluster after the other.
void run_grid(Extents grid, unsigned threads, unsigned cluster, unsigned shared_bytes,
              const std::function<void()>& kernel);

char* shared(uint32_t address, uint32_t bytes);  // of the running thread's block
char* shared_of(int rank, uint32_t address, uint32_t bytes);

void init_barrier(uint32_t at, int arrivals);
void arrive(uint32_t at, int rank, int expected_bytes = 0);
void wait(uint32_t at, uint32_t parity);
void synchronize(int number, int threads);  // a named barrier of the block
void arrive_named(int number, int threads);
void synchronize_block();
void synchronize_warp();
void synchronize_cluster();
void wait_for_predecessor();  // no copy begins before that, and what simulated_late says is written in it

void load(uint32_t to, const Map& map, uint32_t barrier, const int (&at)[3], uint32_t blocks);
void store(const Map& map, uint32_t from, const int (&at)[3]);
void commit_stores();
void wait_for_stores(int groups);

void copy(uint32_t to, const void* from, uint32_t bytes, uint32_t inside);  // the others are 0
void arrive_when_copied(uint32_t at);
void commit_copies();
void wait_for_copies(int groups);

void queue_product(std::function<void()> product);
void commit_products();
void wait_for_products(int groups);

// An address whose 16 bytes are swapped with others of the row, by the row: rows of 128, 64 or 32 bytes.
inline uint32_t swizzled(uint32_t address, uint32_t row_bytes) {
  return row_bytes ? address ^ (address >> 3 & (row_bytes - 16)) : address;
}

}  // namespace simulated::hopper
