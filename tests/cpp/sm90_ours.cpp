// Where our kernels for sm90 put and look for numbers, for test_sm90_cute.py: their own code, with the instructions of
// the simulated GPU, of which nothing runs but what writes down places.
#include <vector>

#include "kernels/sm90/gemm.cuh"

namespace {

std::vector<char> memory(256 << 10);
uint32_t touched;
bool storing;  // or what is stored goes aside

// By lines of a matrix and places in them.
struct Table {
  uint32_t* to;
  int width, height;

  void set(int x, int y, uint32_t place) const {
    if (x < 0 || x >= width || y < 0 || y >= height) return;
    uint32_t& at = to[y * width + x];
    at = at == ~0u ? place : ~1u;  // a number that is there twice has no place
  }
};
Table loaded;

void write_box(const Table& table, const simulated::hopper::Map& map, uint32_t at, int x, int y) {
  for (uint32_t i = 0; i < map.box[1]; ++i) {
    for (uint32_t j = 0; j < map.box[0]; ++j, at += map.size) {
      table.set(x + int(j), y + int(i), simulated::hopper::swizzled(at, map.swizzle));
    }
  }
}

}  // namespace

namespace simulated {

Thread running;

namespace hopper {

char* shared(uint32_t address, uint32_t) {
  static char aside[16];
  touched = address;
  return storing ? &memory[address] : aside;
}
void load(uint32_t to, const Map& map, uint32_t, const int (&at)[3], uint32_t) {
  write_box(loaded, map, to, at[0], at[1]);
}
void synchronize_warp() {}

}  // namespace hopper
}  // namespace simulated

namespace cutlass_py::sm90 {
namespace {

struct Operands {
  uint64_t left, right;
};
std::vector<Operands> multiplied;

// Writes down what the four instructions are told.
template <int N, bool a_along, bool b_along>
struct Recorded {
  template <class Sums>
  static void multiply(Sums&, uint64_t a, uint64_t b, int) {
    for (uint64_t i = 0; i < 4; ++i) {
      multiplied.push_back({a + i * next_bytes<a_along, 64>(), b + i * next_bytes<b_along, panel_of(N)>()});
    }
  }
};

}  // namespace

template <class A, class B, int N, bool a_along, bool b_along>
struct Wgmma<A, B, SumF32, N, a_along, b_along> : Recorded<N, a_along, b_along> {};
template <class A, class B, int N, bool a_along, bool b_along>
struct Wgmma<A, B, SumF16, N, a_along, b_along> : Recorded<N, a_along, b_along> {};
template <class A, class B, int N, bool a_along, bool b_along>
struct Wgmma<A, B, SumS32, N, a_along, b_along> : Recorded<N, a_along, b_along> {};

namespace {

constexpr int kLeftBlock = 64;  // rows of an instruction

template <class X>
struct Of {
  using Lies = Fragment<X, typename X::D>;

  static SharedMemory<X> shared() { return SharedMemory<X>(kAtom); }
  static int stages() { return X::stages; }
  static int columns() { return X::columns; }

  // [line][block of rows][instruction] of the left operand, and the same, for the right one has no blocks.
  static void descriptors(int stage, uint32_t* addresses, Operands* to) {
    const SharedMemory<X> memory = shared();
    const Release<X> release(memory, Place<X>());
    typename Multiply<X>::Sums sums;
    for (int block = 0; block < X::M / kLeftBlock; ++block) {
      const int first_row = block / X::blocks * X::rows;
      multiplied.clear();
      Multiply<X>{memory, release, first_row}.stage(sums, block % X::blocks, stage, true);
      for (int i = 0; i < X::lines; ++i) {
        for (int j = 0; j < 4; ++j) to[(i * (X::M / kLeftBlock) + block) * 4 + j] = multiplied[i * 4 + j];
      }
    }
    for (int i = 0; i < X::lines; ++i) {
      *addresses++ = memory.left(stage) + i * X::left_line;
      *addresses++ = memory.right(stage) + i * X::right_line;
    }
  }

  // Of a stage's first line, [row][k]: what the simulated GPU makes of descriptors.
  static void read(bool left, int stage, uint32_t* to) {
    std::vector<uint32_t> addresses(2 * X::lines);
    std::vector<Operands> told(X::lines * X::M / kLeftBlock * 4);
    descriptors(stage, addresses.data(), told.data());
    constexpr int depth = X::line / 4;
    for (int row = 0; row < (left ? X::M : X::N); ++row) {
      for (int k = 0; k < X::line; ++k) {
        const Operands& x = told[(left ? row / kLeftBlock * 4 : 0) + k / depth];
        if (left) {
          operand<typename X::Left, X::left_along>(x.left, row % kLeftBlock, k % depth);
        } else {
          operand<typename X::Right, X::right_along>(x.right, row, k % depth);
        }
        *to++ = touched - addresses[left ? 0 : 1];
      }
    }
  }

  // Of a line, where it lies along k [row][k], else [k][row]: as the copy engine is told by all that load a share.
  static void load(bool left, uint32_t* to) {
    Parameters p;
    CutlassPyGemm g{};
    g.m = g.n = g.k = g.lda = g.ldb = 4096, g.batch = 1;
    if (encode_operands(p, X::shape(false, 1), g)) return;
    const auto lines = [&](bool along, int extent) {
      loaded = along ? Table{to, extent, X::line} : Table{to, X::line, extent};
    };
    lines(left ? X::left_along : X::right_along, left ? X::M : X::N);
    for (int i = 0; left && i < X::cluster_n; ++i) {
      OperandLoad<X::left_along, X::M, X::cluster_n>{p.left, i, 0}.line(0, 0, 0, 0, 0);
    }
    for (int i = 0; !left && i < X::cluster_m; ++i) {
      OperandLoad<X::right_along, X::N, X::cluster_m>{p.right, i, 0}.line(0, 0, 0, 0, 0);
    }
  }

  // Of a part of D, by its lines: as the copy engine is told; false where it is told nothing.
  static bool store(bool turned, uint32_t* to) {
    Operand d;
    CutlassPyGemm g{};
    g.m = g.n = 4096, g.batch = 1;
    if (X::direct) return false;
    if (encode_matrix(d, X::shape(turned, 1), g, X::d_size, memory.data(), 4096, 0)) return true;
    const Table table = turned ? Table{to, 64, X::columns} : Table{to, X::columns, 64};
    Lies(turned).boxes(0, {0, 0, 0}, [&](Address box, int x, int y) { write_box(table, known(d.map), box, x, y); });
    return true;
  }
  // And as threads copy it, in words or by elements: what they find are the two bytes of an element's number, one by
  // one, for an element may have no more.
  static void elements(bool turned, bool words, uint32_t* to) {
    using Element = typename Lies::Element;
    const int width = turned ? 64 : X::columns, height = turned ? X::columns : 64, row = width + !words;
    std::vector<uint32_t> found(size_t(row * height));
    for (int byte = 0; byte < 2; ++byte) {
      for (int i = 0; i < width * height; ++i) {
        const auto number = Element(i >> 8 * byte & 0xff);
        std::memcpy(&memory[size_t(i) * sizeof number], &number, sizeof number);
      }
      std::vector<Element> d(found.size(), Element(0xff));
      Operand matrix{};
      matrix.data = d.data(), matrix.row = row;
      storing = true;
      for (unsigned& thread = simulated::running.index.x = 0; thread < 128; ++thread) {
        Lies(turned).template copy_by_threads<true>(0, matrix, {0, 0, 0}, 64, X::columns);
      }
      storing = false;
      for (size_t i = 0; i < d.size(); ++i) found[i] |= uint32_t(d[i]) << 8 * byte;
    }
    const Table table{to, width, height};
    for (int i = 0; i < row * height; ++i) {
      table.set(i % row, i / row, found[size_t(i)] * uint32_t(sizeof(Element)));
    }
  }
  // The bytes of a part into which the threads put their numbers, [thread][number].
  static void put(bool turned, const float* numbers, char* to) {
    typename X::Number x[kUnit];
    for (int column = 0; column < X::columns; column += kUnitColumns) {
      for (int i = 0; i < 2 * 128; ++i) {  // of a warp first all say where their rows are
        const int thread = i / 64 * 32 + i % 32;
        storing = i % 64 >= 32;
        simulated::running.number = thread, simulated::running.index.x = unsigned(thread);
        for (int j = 0; j < kUnit; ++j) {
          x[j] = typename X::Number(numbers[thread * X::columns / 2 + column / 2 + j]);
        }
        Lies(turned).put(0, x, column);
      }
    }
    storing = false;
    std::memcpy(to, memory.data(), Lies::bytes);
  }
};

struct Functions {
  int (*stages)(), (*columns)();
  void (*descriptors)(int, uint32_t*, Operands*);
  void (*read)(bool, int, uint32_t*);
  void (*load)(bool, uint32_t*);
  bool (*store)(bool, uint32_t*);
  void (*elements)(bool, bool, uint32_t*);
  void (*put)(bool, const float*, char*);
};
template <class X, class F = Of<X>>
constexpr Functions functions() {
  return {&F::stages, &F::columns, &F::descriptors, &F::read, &F::load, &F::store, &F::elements, &F::put};
}

}  // namespace
}  // namespace cutlass_py::sm90

namespace cutlass_py {
static const sm90::Functions designs[] = {
#define DESIGN(...) sm90::functions<__VA_ARGS__>(),
#include "designs.inc"
};
}  // namespace cutlass_py

using cutlass_py::designs;

extern "C" {

int stages(int i) { return designs[i].stages(); }
int columns(int i) { return designs[i].columns(); }
void descriptors(int i, int stage, uint32_t* addresses, uint64_t* to) {
  designs[i].descriptors(stage, addresses, reinterpret_cast<cutlass_py::sm90::Operands*>(to));
}
void reads(int i, bool left, int stage, uint32_t* to) { designs[i].read(left, stage, to); }
void loads(int i, bool left, uint32_t* to) { designs[i].load(left, to); }
bool stores(int i, bool turned, uint32_t* to) { return designs[i].store(turned, to); }
void elements(int i, bool turned, bool words, uint32_t* to) { designs[i].elements(turned, words, to); }
void put(int i, bool turned, const float* numbers, char* to) { designs[i].put(turned, numbers, to); }

}  // extern "C"
