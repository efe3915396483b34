// A GPU that is none: its memory is the host's, its streams are queues that nothing empties by itself, its products are
// loops. Tests of the call path see then what a call queues, in every order that its events allow, and what is lost
// where a call to CUDA fails.
#pragma once

#include <cstddef>
#include <functional>

namespace simulated {

using Stream = void*;  // null, or 1 as DLPack says, is the legacy one

// The first four return false, or null, where the test says that this call fails.
bool queue(Stream stream, std::function<void()> work, int microseconds = 1);
bool wait(Stream waiter, Stream signaler);
void* allocate(size_t bytes, Stream stream);  // not a number, until something is written to it
bool count_call();
bool order(Stream waiter, Stream signaler);  // as `wait`, by somebody else; false where that ends a capture
void release(void* memory, Stream stream);
Stream new_stream();
bool capturing(Stream stream);
size_t length(Stream stream);  // of what was ever queued
void run_all();
long long now();  // microseconds of work done

void check_alive(const void* address);  // by work that is about to touch it
void wrong(const char* what);           // the test fails

}  // namespace simulated
