#include "run.h"

#include <optional>

#include "registry.h"

namespace cutlass_py {
namespace {

using device::Stream;

class Scratch {
 public:
  Scratch(int device_id, Stream stream) : device_id_(device_id), stream_(stream) {}
  ~Scratch() { device::release(memory_, stream_); }
  Scratch(const Scratch&) = delete;

  size_t reserve(size_t bytes) {  // returns the offset
    const size_t offset = size_;
    size_ += (bytes + 255) / 256 * 256;
    return offset;
  }
  void allocate() {
    if (size_) memory_ = static_cast<char*>(device::allocate(size_, device_id_, stream_));
  }
  void* at(size_t offset) const { return memory_ + offset; }

 private:
  int device_id_;
  Stream stream_;
  size_t size_ = 0;
  char* memory_ = nullptr;
};

void check(int status, const Plan& plan, const char* what) {
  if (status == 0) return;
  throw CudaError("gemm: " + std::string(what) + " failed: " + plan.library->error_string(status) + " (kernel " +
                  (plan.kernel ? plan.kernel->name : "none") + ")");
}

CutlassPyArray array_of(const Matrix& matrix) {
  return {matrix.data, int32_t(matrix.dtype), matrix.row, matrix.col, matrix.batch};
}

// A packed copy: rows padded to 16 bytes, so that TMA takes it.
struct Packing {
  Matrix packed;
  int64_t ld = 0;
  size_t offset = 0, bytes = 0;

  Packing(const Matrix& from, char layout, int64_t rows, int64_t cols, int64_t batch, Scratch& scratch) {
    const int64_t size = dtype_size(from.dtype), unit = 16 / size;
    const int64_t lines = layout == 't' ? rows : cols, line = layout == 't' ? cols : rows;
    ld = (line + unit - 1) / unit * unit;
    const int64_t batches = from.batch ? batch : 1;
    packed = {nullptr, from.dtype, layout == 't' ? ld : 1, layout == 't' ? 1 : ld, from.batch ? lines * ld : 0};
    bytes = size_t(batches * lines * ld * size);
    offset = scratch.reserve(bytes);
  }

  void run(const Plan& plan, const Matrix& from, int64_t rows, int64_t cols, int64_t batch, const Scratch& scratch,
           Stream stream) {
    packed.data = scratch.at(offset);
    const CutlassPyArray source = array_of(from), destination = array_of(packed);
    check(plan.library->elementwise->copy(&source, &destination, dtype_size(from.dtype), from.batch ? batch : 1, rows,
                                          cols, stream),
          plan, "packing an operand");
  }
};

}  // namespace

void run_on_device(const Call& call, const Plan& plan, Stream stream) {
  const Problem& p = call.problem;
  Scratch scratch(p.device.id, stream);
  const bool composed = plan.scratch != Dtype::none || !plan.kernel;

  CutlassPyGemm g{};
  g.m = p.m, g.n = p.n, g.k = p.k, g.batch = p.batch;
  g.alpha = composed ? 1 : call.alpha;
  g.beta = composed ? 0 : call.beta;
  g.device = p.device.id;
  g.sm_count = plan.sm_count;
  g.raster = plan.raster;
  g.swizzle = plan.swizzle;
  g.overlap = plan.overlap && !device::capturing(stream);
  g.stream = stream;
  g.a = call.a.data, g.lda = call.lda, g.batch_a = call.a.batch;
  g.b = call.b.data, g.ldb = call.ldb, g.batch_b = call.b.batch;
  g.d = call.d.data, g.ldd = call.ldd, g.batch_d = call.d.batch;
  if (!composed) g.c = call.c.data, g.ldc = call.ldc, g.batch_c = call.c.batch;

  std::optional<Packing> pack_a, pack_b;
  if (plan.pack_a) pack_a.emplace(call.a, plan.pack_a, p.m, p.k, p.batch, scratch);
  if (plan.pack_b) pack_b.emplace(call.b, plan.pack_b, p.k, p.n, p.batch, scratch);
  Matrix product{nullptr, plan.scratch, 0, 1, 0};
  size_t product_offset = 0;
  if (plan.kernel && composed) {
    const int64_t unit = 16 / dtype_size(plan.scratch);
    product.row = (int64_t(p.n) + unit - 1) / unit * unit;
    product.batch = product.row * p.m;
    product_offset = scratch.reserve(size_t(product.batch * p.batch * dtype_size(plan.scratch)));
  }
  const size_t workspace = plan.kernel ? plan.kernel->workspace_size(&g) : 0;
  const size_t workspace_offset = scratch.reserve(workspace);
  scratch.allocate();

  if (pack_a) {
    pack_a->run(plan, call.a, p.m, p.k, p.batch, scratch, stream);
    g.a = pack_a->packed.data, g.lda = pack_a->ld, g.batch_a = pack_a->packed.batch;
  }
  if (pack_b) {
    pack_b->run(plan, call.b, p.k, p.n, p.batch, scratch, stream);
    g.b = pack_b->packed.data, g.ldb = pack_b->ld, g.batch_b = pack_b->packed.batch;
  }
  if (plan.kernel) {
    if (composed) {
      product.data = scratch.at(product_offset);
      g.d = product.data, g.ldd = product.row, g.batch_d = product.batch;
    }
    if (workspace) g.workspace = scratch.at(workspace_offset);
    check(plan.kernel->run(&g), plan, "the launch");
  }
  if (composed) {
    const CutlassPyLibrary* library = plan.library ? plan.library : builtin_library();
    const CutlassPyArray acc = array_of(product), c = array_of(call.c), d = array_of(call.d);
    int status = library->elementwise->compose(plan.kernel ? &acc : nullptr, call.c.data ? &c : nullptr, &d, call.alpha,
                                               call.beta, p.batch, p.m, p.n, stream);
    if (status) throw CudaError("gemm: the composed epilogue failed: " + std::string(library->error_string(status)));
  }
}

nb::object host_operand(const Matrix& x, int64_t rows, int64_t cols, int64_t batch) {
  if (!x.data && x.dtype == Dtype::none) return nb::none();
  const int64_t size = dtype_size(x.dtype);
  return nb::make_tuple(reinterpret_cast<uintptr_t>(x.data), dtype_name(x.dtype), nb::make_tuple(batch, rows, cols),
                        nb::make_tuple(x.batch * size, x.row * size, x.col * size));
}

void run_on_host(const Call& call, const Plan& plan) {
  const Problem& p = call.problem;
  plan.host(host_operand(call.a, p.m, p.k, p.batch), host_operand(call.b, p.k, p.n, p.batch),
            host_operand(call.c, p.m, p.n, p.batch), host_operand(call.d, p.m, p.n, p.batch), call.alpha, call.beta,
            dtype_name(p.compute));
}

}  // namespace cutlass_py
