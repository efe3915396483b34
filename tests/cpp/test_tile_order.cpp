// The order of tiles of our own kernels, and division by multiplication, as the device has them.
#include "kernels/sm90/scheduler.cuh"

#include <algorithm>
#include <random>

#include "check.h"

namespace {

using cutlass_py::sm90::Divisor;
using cutlass_py::sm90::TileOrder;

TEST(quotients) {
  constexpr int64_t kLargest = INT32_MAX;
  std::mt19937_64 random(38);
  for (int i = 0; i < 200000; ++i) {
    const int64_t by = i < 4096 ? i + 1 : kLargest - int64_t(random() >> (33 + random() % 31));
    const Divisor divisor{int32_t(by)};
    const int64_t multiple = int64_t(random() % uint64_t(kLargest / by + 1)) * by;
    for (const int64_t x : {int64_t(0), by - 1, by, multiple - 1, multiple, multiple + by - 1, kLargest}) {
      if (x >= 0 && x <= kLargest) CHECK(divisor.quotient(int(x)) == x / by);
    }
  }
}

// Bands side by side, of each all places along the other axis, of each place the band's width.
void compare(int tiles_m, int tiles_n, int batch, int band, bool along_m) {
  const TileOrder order(tiles_m, tiles_n, batch, band, along_m);
  const int across = along_m ? tiles_n : tiles_m, along = along_m ? tiles_m : tiles_n;
  int i = 0;
  for (int product = 0; product < batch; ++product) {
    for (int begin = 0; begin < across; begin += band) {
      for (int step = 0; step < along; ++step) {
        for (int place = begin; place < std::min(begin + band, across); ++place, ++i) {
          int m, n, found;
          order.at(i, m, n, found);
          CHECK(found == product && m == (along_m ? step : place) && n == (along_m ? place : step));
        }
      }
    }
  }
  CHECK(order.count == i);
}

TEST(bands) {
  for (int band : {1, 2, 4, 8}) {
    for (bool along_m : {false, true}) {
      for (int m : {1, 2, 5, 8, 9}) {
        for (int n : {1, 3, 4, 16, 17}) compare(m, n, 1, band, along_m), compare(m, n, 3, band, along_m);
      }
    }
  }
}

}  // namespace
