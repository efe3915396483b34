// The kernel library of the simulated GPU: products and their epilogues as loops, in double precision. Which kernels
// there are, device.py says (`simulated_declare`) before the library is asked for.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "activation.h"
#include "dtype.h"
#include "kernel.h"
#include "simulator.h"

namespace {

using cutlass_py::Dtype;

double bf16_value(uint16_t bits) {
  const uint32_t word = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

uint16_t bf16_bits(double x) {  // exact numbers alone are asked for
  const float value = float(x);
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  return uint16_t(word >> 16);
}

template <class T>
double value_of(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return double(value);
}

template <class T>
void put(void* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

double load(const void* memory, int dtype, int64_t index) {
  const char* at = static_cast<const char*>(memory) + index * cutlass_py::dtype_size(Dtype(dtype));
  simulated::check_alive(at);
  switch (Dtype(dtype)) {
    case Dtype::f16: return value_of<_Float16>(at);
    case Dtype::bf16: return bf16_value(uint16_t(value_of<uint16_t>(at)));
    case Dtype::f32: return value_of<float>(at);
    case Dtype::f64: return value_of<double>(at);
    case Dtype::s8: return value_of<int8_t>(at);
    case Dtype::s32: return value_of<int32_t>(at);
    default: simulated::wrong("a dtype that is not simulated is read"); return NAN;
  }
}

void store(void* memory, int dtype, int64_t index, double x) {
  char* at = static_cast<char*>(memory) + index * cutlass_py::dtype_size(Dtype(dtype));
  simulated::check_alive(at);
  switch (Dtype(dtype)) {
    case Dtype::f16: return put(at, _Float16(x));
    case Dtype::bf16: return put(at, bf16_bits(x));
    case Dtype::f32: return put(at, float(x));
    case Dtype::f64: return put(at, x);
    case Dtype::s8: return put(at, int8_t(x));
    case Dtype::s32: return put(at, int32_t(x));
    default: simulated::wrong("a dtype that is not simulated is written");
  }
}

struct Place {
  int64_t batch, row, col;
};

double load(const CutlassPyArray& x, const Place& p) {
  return load(x.data, x.dtype, p.batch * x.batch + p.row * x.row + p.col * x.col);
}

void store(const CutlassPyArray& x, const Place& p, double value) {
  store(x.data, x.dtype, p.batch * x.batch + p.row * x.row + p.col * x.col, value);
}

double factor(const CutlassPyScalar& x) { return x.device ? load(x.device, int(Dtype::f32), 0) : x.value; }

double activated(int activation, double x) {
  switch (cutlass_py::Activation(activation)) {
    case cutlass_py::Activation::identity: return x;
    case cutlass_py::Activation::relu: return x < 0 ? 0 : x;
    default: simulated::wrong("an activation that is not simulated"); return NAN;
  }
}

// kernel.h's formula for one element of D.
double finished(const CutlassPyEpilogue& e, double acc, const Place& p) {
  double z = factor(e.alpha) * acc;
  if (e.scale_a.data) z *= load(e.scale_a, p);
  if (e.scale_b.data) z *= load(e.scale_b, p);
  if (e.c.data && (e.beta.device || e.beta.value != 0)) z += factor(e.beta) * load(e.c, p);
  if (e.bias.data) z += load(e.bias, p);
  if (e.aux.data) store(e.aux, p, z);
  const double y = e.gate.data ? activated(e.activation, load(e.gate, p)) * z : activated(e.activation, z);
  return factor(e.scale_out) * y;
}

void each_place(int64_t batch, int64_t rows, int64_t cols, const std::function<void(const Place&)>& f) {
  for (int64_t i = 0; i < batch; ++i) {
    for (int64_t j = 0; j < rows; ++j) {
      for (int64_t k = 0; k < cols; ++k) f({i, j, k});
    }
  }
}

int status(bool queued) { return queued ? 0 : 1; }

// ------------------------------------------------------------------------------------------------ products

struct Declared {
  std::string name, layout;
  std::array<std::string, 5> dtypes;  // a, b, acc, c, d
  CutlassPyKernel kernel{};
};
std::deque<Declared> declared;

// As it is held in memory.
int dtype_named(const std::string& name) {
  for (int i = 0; i < cutlass_py::kDtypeCount; ++i) {
    if (name == cutlass_py::kDtypes[i].name) return int(cutlass_py::kDtypes[i].storage);
  }
  return 0;
}

const void* list_item(const void* list, int64_t i) {
  const void* item;
  simulated::check_alive(list);
  std::memcpy(&item, static_cast<const char*>(list) + i * sizeof item, sizeof item);
  return item;
}

void multiply(const Declared& by, CutlassPyGemm g) {
  const int a = dtype_named(by.dtypes[0]), b = dtype_named(by.dtypes[1]), d = dtype_named(by.dtypes[4]);
  const bool rows_a = by.layout[0] == 't', rows_b = by.layout[1] == 't';
  const CutlassPyGemm list = g;
  each_place(g.batch, g.m, g.n, [&](const Place& p) {
    Place at = p;
    if (list.pointers) {
      g.a = list_item(list.a, p.batch), g.b = list_item(list.b, p.batch);
      g.d = const_cast<void*>(list_item(list.d, p.batch));
      if (list.epilogue.c.data) g.epilogue.c.data = const_cast<void*>(list_item(list.epilogue.c.data, p.batch));
      at.batch = 0;
    }
    double sum = 0;
    for (int64_t k = 0; k < g.k; ++k) {
      sum += load(g.a, a, at.batch * g.batch_a + (rows_a ? p.row * g.lda + k : k * g.lda + p.row)) *
             load(g.b, b, at.batch * g.batch_b + (rows_b ? k * g.ldb + p.col : p.col * g.ldb + k));
    }
    store(g.d, d, at.batch * g.batch_d + p.row * g.ldd + p.col, finished(g.epilogue, sum, at));
  });
}

constexpr size_t kWorkspace = 512;

// Kernels that were declared later take longer. The workspace is written, for somebody else's would show.
int launch(size_t index, const CutlassPyGemm* given) {
  const Declared* by = &declared[index];
  const CutlassPyGemm g = *given;
  const bool takes_workspace = by->kernel.workspace_size(given);
  const auto run = [=] {
    if (takes_workspace) {
      simulated::check_alive(g.workspace);
      std::memset(g.workspace, 0xff, kWorkspace);
    }
    multiply(*by, g);
  };
  return status(simulated::queue(g.stream, run, 10 * (1 + int(index))));
}

size_t needs_workspace(const CutlassPyGemm*) { return kWorkspace; }
size_t needs_none(const CutlassPyGemm*) { return 0; }

constexpr size_t kMost = 1024;
template <size_t index>
int launch_number(const CutlassPyGemm* g) {
  return launch(index, g);
}
template <size_t... index>
constexpr std::array<int (*)(const CutlassPyGemm*), kMost> launchers(std::index_sequence<index...>) {
  return {&launch_number<index>...};
}
constexpr auto kLaunchers = launchers(std::make_index_sequence<kMost>());

// ------------------------------------------------------------------------------------------------ elementwise

int copy(const CutlassPyArray* from, const CutlassPyArray* to, int32_t size, int64_t batch, int64_t rows, int64_t cols,
         void* stream) {
  const CutlassPyArray x = *from, y = *to;
  return status(simulated::queue(stream, [=] {
    each_place(batch, rows, cols, [&](const Place& p) {
      const char* source = static_cast<char*>(x.data) + size * (p.batch * x.batch + p.row * x.row + p.col * x.col);
      char* target = static_cast<char*>(y.data) + size * (p.batch * y.batch + p.row * y.row + p.col * y.col);
      simulated::check_alive(source), simulated::check_alive(target);
      std::memcpy(target, source, size_t(size));
    });
  }));
}

void sum_over(const CutlassPyArray& sums, const CutlassPyArray& d, int64_t batch, int64_t rows, int64_t cols,
              double scale_out) {
  each_place(batch, rows, cols, [&](const Place& p) { store(sums, p, 0); });
  each_place(batch, rows, cols, [&](const Place& p) { store(sums, p, load(sums, p) + load(d, p) / scale_out); });
}

int compose(const CutlassPyArray* acc, int32_t parts, int64_t part_stride, const CutlassPyEpilogue* epilogue,
            const CutlassPyArray* d, int64_t batch, int64_t rows, int64_t cols, void* workspace, void* stream) {
  const CutlassPyArray product = *acc, result = *d;
  const CutlassPyEpilogue e = *epilogue;
  return status(simulated::queue(stream, [=] {
    simulated::check_alive(workspace);
    std::memset(workspace, 0xff, kWorkspace);
    each_place(batch, rows, cols, [&](const Place& p) {
      double sum = 0;
      for (int i = 0; i < parts && product.data; ++i) {
        CutlassPyArray part = product;
        part.data = static_cast<char*>(part.data) + i * part_stride * cutlass_py::dtype_size(Dtype(part.dtype));
        sum += load(part, p);
      }
      store(result, p, finished(e, sum, p));
    });
    if (e.bias_grad.data) sum_over(e.bias_grad, result, batch, rows, cols, factor(e.scale_out));
  }));
}

size_t compose_workspace(const CutlassPyEpilogue*, int64_t, int64_t, int64_t) { return kWorkspace; }

int reduce(const CutlassPyArray*, const CutlassPyArray*, int32_t, int64_t, int64_t, int64_t, void*, void*) {
  simulated::wrong("a reduction, which is not simulated");
  return 1;
}
size_t reduce_workspace(const CutlassPyArray*, int64_t, int64_t, int64_t) { return 0; }

int write_pointers(const void* const* pointers, int64_t count, void* destination, void* stream) {
  const std::vector<const void*> list(pointers, pointers + count);
  return status(simulated::queue(stream, [=] {
    simulated::check_alive(destination);
    std::memcpy(destination, list.data(), list.size() * sizeof(void*));
  }));
}

const CutlassPyElementwise elementwise = {&copy,   &compose,          &compose_workspace,
                                          &reduce, &reduce_workspace, &write_pointers};

}  // namespace

extern "C" {

// dtypes: a, b, acc, c, d. numbers: api, tile, cluster, alignments of a, b, c, d, whether it takes lists, whether it
// takes a workspace.
void simulated_declare(const char* name, const char* layout, const char* const* dtypes, const int* numbers) {
  Declared& made = declared.emplace_back();
  made.name = name, made.layout = layout;
  std::copy(dtypes, dtypes + 5, made.dtypes.begin());
  CutlassPyFacts& f = made.kernel.facts;
  f.a = made.dtypes[0].c_str(), f.b = made.dtypes[1].c_str(), f.acc = made.dtypes[2].c_str();
  f.c = made.dtypes[3].c_str(), f.d = made.dtypes[4].c_str();
  std::copy(layout, layout + 3, f.layout);
  f.api = numbers[0], f.threads = 128, f.stages = 2;
  std::copy(numbers + 1, numbers + 4, f.tile), std::copy(numbers + 4, numbers + 7, f.cluster);
  f.align_a = numbers[7], f.align_b = numbers[8], f.align_c = numbers[9], f.align_d = numbers[10];
  f.pointers = numbers[11];
  made.kernel.name = made.name.c_str();
  made.kernel.workspace_size = numbers[12] ? &needs_workspace : &needs_none;
  made.kernel.run = kLaunchers.at(declared.size() - 1);
}

const CutlassPyLibrary* cutlass_py_library() {
  static std::vector<const CutlassPyKernel*> kernels;
  for (const Declared& each : declared) kernels.push_back(&each.kernel);
  static const CutlassPyLibrary library = {CUTLASS_PY_ABI, int32_t(kernels.size()), kernels.data(), &elementwise,
                                           [](int) { return "a simulated failure"; }};
  return &library;
}
}
