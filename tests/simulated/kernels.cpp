// The kernel library of the simulated GPU: products and their epilogues as loops, in double precision, beside the
// elementwise kernels themselves, and those of other operations. Which products there are, simulator.py says before the
// library is asked for.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "abi/activation.h"
#include "abi/dtype.h"
#include "abi/kernel.h"
#include "kernels.h"
#include "kernels/common/activation.cuh"
#include "kernels/common/conversion.cuh"
#include "simulator.h"

namespace {

using cutlass_py::Dtype;

double load(const void* memory, int dtype, int64_t index) {
  const int size = cutlass_py::dtype_size(Dtype(dtype));
  const char* at = static_cast<const char*>(memory) + index * size;
  simulated::check_alive(at);
  uint64_t word[1] = {};
  std::memcpy(word, at, size_t(size));
  double x[1];
  cutlass_py::decode<false>(Dtype(dtype), word, x);
  return x[0];
}

void store(void* memory, int dtype, int64_t index, double x) {
  char* at = static_cast<char*>(memory) + index * cutlass_py::dtype_size(Dtype(dtype));
  simulated::check_alive(at);
  cutlass_py::encode(Dtype(dtype), {x}, [&](const auto& bits) { std::memcpy(at, bits, sizeof bits); });
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

double activated(const CutlassPyEpilogue& e, cutlass_py::Activation activation, double x) {
  switch (activation) {
#define CUTLASS_PY_ACTIVATION(NAME, ...) \
  case cutlass_py::Activation::NAME: return cutlass_py::activation::NAME<false>::apply(x, e.parameters);
#include "activations.inc"
#undef CUTLASS_PY_ACTIVATION
  }
  return NAN;
}

double activated(const CutlassPyEpilogue& e, double x) { return activated(e, cutlass_py::Activation(e.activation), x); }

// kernel.h's formula for one element of D: before it is activated, and after.
double linear(const CutlassPyEpilogue& e, double acc, const Place& p) {
  double z = factor(e.alpha) * acc;
  if (e.scale_a.data) z *= load(e.scale_a, p);
  if (e.scale_b.data) z *= load(e.scale_b, p);
  if (e.c.data && (e.beta.device || e.beta.value != 0)) z += factor(e.beta) * load(e.c, p);
  if (e.bias.data) z += load(e.bias, p);
  return z;
}
double finished(const CutlassPyEpilogue& e, double acc, const Place& p) {
  const double z = linear(e, acc, p);
  const bool derivative = cutlass_py::kActivations[e.activation].derivative;
  if (e.aux.data && !derivative) store(e.aux, p, z);
  const CutlassPyArray& argument = derivative ? e.aux : e.gate;
  return factor(e.scale_out) * (argument.data ? activated(e, load(argument, p)) * z : activated(e, z));
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
  int block;                          // columns of B that share a factor; 0 without scales in blocks
  int place;                          // among the kernels of its dtypes
  CutlassPyGemmFacts facts{};
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

// Where the values lie whose gates an array has.
CutlassPyArray values_of(CutlassPyArray x, int64_t behind) {
  if (x.data) x.data = static_cast<char*>(x.data) + behind * cutlass_py::dtype_size(Dtype(x.dtype));
  return x;
}

// The same of gates and values: one element of D, of two sums; or two of them, of one.
double joined(const CutlassPyGemm& g, double gates, double values, const Place& p) {
  CutlassPyEpilogue of_values = g.epilogue;
  of_values.bias = values_of(of_values.bias, g.pairs.bias);
  of_values.scale_b = values_of(of_values.scale_b, g.pairs.scale_b);
  const double gate = linear(g.epilogue, gates, p), value = linear(of_values, values, p);
  if (g.epilogue.aux.data) {
    store(g.epilogue.aux, p, gate);
    store(values_of(g.epilogue.aux, g.pairs.aux), p, value);
  }
  return factor(g.epilogue.scale_out) * activated(g.epilogue, gate) * value;
}
std::pair<double, double> parted(const CutlassPyGemm& g, double sum, const Place& p) {
  const CutlassPyEpilogue& e = g.epilogue;
  const double z = factor(e.scale_out) * linear(e, sum, p), gate = load(e.aux, p);
  const auto function = cutlass_py::activation_named(cutlass_py::kActivations[e.activation].name + 2);  // behind "d_"
  return {z * load(values_of(e.aux, g.pairs.aux), p) * activated(e, gate),
          z * activated(e, cutlass_py::Activation(function), gate)};
}

constexpr int kBlock = 128;  // of k

void multiply(const Declared& by, CutlassPyGemm g) {
  const int a = dtype_named(by.dtypes[0]), b = dtype_named(by.dtypes[1]), d = dtype_named(by.dtypes[4]);
  const bool rows_a = by.layout[0] == 't', rows_b = by.layout[1] == 't';
  const CutlassPyGemm list = g;
  if (by.block) g.epilogue.scale_a = g.epilogue.scale_b = {};
  const auto scale = [&](const Place& p, int64_t k) {
    if (!by.block) return 1.0;
    const CutlassPyEpilogue& e = list.epilogue;
    return load(e.scale_a, {p.batch, p.row, k / kBlock}) * load(e.scale_b, {p.batch, k / kBlock, p.col / by.block});
  };
  each_place(g.batch, g.m, g.n, [&](const Place& p) {
    Place at = p;
    if (list.pointers) {
      g.a = list_item(list.a, p.batch), g.b = list_item(list.b, p.batch);
      g.d = const_cast<void*>(list_item(list.d, p.batch));
      if (list.epilogue.c.data) g.epilogue.c.data = const_cast<void*>(list_item(list.epilogue.c.data, p.batch));
      at.batch = 0;
    }
    const auto sum = [&](int64_t behind) {
      double sum = 0;
      for (int64_t k = 0; k < g.k; ++k) {
        sum += scale(at, k) * load(g.a, a, at.batch * g.batch_a + (rows_a ? p.row * g.lda + k : k * g.lda + p.row)) *
               load(g.b, b, at.batch * g.batch_b + (rows_b ? k * g.ldb + p.col : p.col * g.ldb + k) + behind);
      }
      return sum;
    };
    const int64_t to = at.batch * g.batch_d + p.row * g.ldd + p.col;
    if (g.pairs.b) {
      store(g.d, d, to, joined(g, sum(0), sum(g.pairs.b), at));
    } else if (g.pairs.d) {
      const auto [of_gate, of_value] = parted(g, sum(0), at);
      store(g.d, d, to, of_gate), store(g.d, d, to + g.pairs.d, of_value);
    } else {
      store(g.d, d, to, finished(g.epilogue, sum(0), at));
    }
  });
}

constexpr size_t kWorkspace = 512;

// Of kernels of the same dtypes, those that were declared later take clearly longer. The workspace is written, for
// somebody else's would show.
int run(const void* arguments, const CutlassPyLaunch* given) {
  const auto* by = static_cast<const Declared*>(given->kernel->context);
  const CutlassPyGemm g = *static_cast<const CutlassPyGemm*>(arguments);
  const CutlassPyLaunch launch = *given;
  const bool takes_workspace = by->kernel.workspace_size(arguments, given);
  const auto compute = [=] {
    if (takes_workspace) {
      simulated::check_alive(launch.workspace);
      std::memset(launch.workspace, 0xff, kWorkspace);
    }
    multiply(*by, g);
  };
  return status(simulated::queue(launch.stream, compute, 10 * (1 + by->place)));
}

size_t needs_workspace(const void*, const CutlassPyLaunch*) { return kWorkspace; }
size_t needs_none(const void*, const CutlassPyLaunch*) { return 0; }

}  // namespace

std::vector<const CutlassPyKernel*>& simulated::kernels() {
  static std::vector<const CutlassPyKernel*> added;
  return added;
}

extern "C" {

extern const CutlassPyElementwise cutlass_py_elementwise;

// dtypes: a, b, acc, c, d. numbers: api, tile, cluster, alignments of a, b, c, d, whether it takes lists, whether it
// takes a workspace, columns of B in a block.
void simulated_declare(const char* name, const char* layout, const char* const* dtypes, const int* numbers) {
  Declared& made = declared.emplace_back();
  made.name = name, made.layout = layout;
  std::copy(dtypes, dtypes + 5, made.dtypes.begin());
  CutlassPyGemmFacts& f = made.facts;
  f.a = made.dtypes[0].c_str(), f.b = made.dtypes[1].c_str(), f.acc = made.dtypes[2].c_str();
  f.c = made.dtypes[3].c_str(), f.d = made.dtypes[4].c_str();
  std::copy(layout, layout + 3, f.layout);
  f.api = numbers[0], f.threads = 128, f.stages = 2;
  std::copy(numbers + 1, numbers + 4, f.tile), std::copy(numbers + 4, numbers + 7, f.cluster);
  f.align_a = numbers[7], f.align_b = numbers[8], f.align_c = numbers[9], f.align_d = numbers[10];
  f.pointers = numbers[11];
  made.block = numbers[13];
  made.kernel.name = made.name.c_str(), made.kernel.facts = &f;
  made.kernel.workspace_size = numbers[12] ? &needs_workspace : &needs_none;
  static std::map<std::array<std::string, 5>, int> places;
  made.place = places[made.dtypes]++;
  made.kernel.run = &run, made.kernel.context = &made;
}

// gelu as kernels with results of 16 bits have it.
float simulated_gelu(float x) { return cutlass_py::activation::gelu<true>::apply(x, nullptr); }

const CutlassPyLibrary* cutlass_py_library() {
  static const std::vector<const CutlassPyKernel*> kernels = [] {
    std::vector<const CutlassPyKernel*> all = simulated::kernels();
    for (const Declared& each : declared) all.push_back(&each.kernel);
    return all;
  }();
  static const CutlassPyLibrary library = {CUTLASS_PY_ABI,
                                           int32_t(kernels.size()),
                                           kernels.data(),
                                           &cutlass_py_elementwise,
                                           [](int) { return "a simulated failure"; },
                                           nullptr,
                                           nullptr};
  return &library;
}
}
