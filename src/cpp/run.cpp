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

CutlassPyEpilogue epilogue_of(const Epilogue& e) {
  auto scalar = [](const Scalar& x) { return CutlassPyScalar{x.value, x.imaginary, x.device}; };
  return {scalar(e.alpha),  scalar(e.beta),        scalar(e.scale_out),   array_of(e.c),
          array_of(e.bias), array_of(e.scale_a),   array_of(e.scale_b),   array_of(e.gate),
          array_of(e.aux),  array_of(e.bias_grad), int32_t(e.activation), {e.parameters[0], e.parameters[1]}};
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
  g.epilogue = composed ? CutlassPyEpilogue{} : epilogue_of(call.epilogue);
  if (composed) g.epilogue.alpha.value = 1;
  g.device = p.device.id;
  g.sm_count = plan.sm_count;
  g.raster = plan.raster;
  g.swizzle = plan.swizzle;
  g.overlap = plan.overlap && !device::capturing(stream);
  g.stream = stream;
  g.a = call.a.data, g.lda = call.lda, g.batch_a = call.a.batch;
  g.b = call.b.data, g.ldb = call.ldb, g.batch_b = call.b.batch;
  g.d = call.d.data, g.ldd = call.ldd, g.batch_d = call.d.batch;

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
    const CutlassPyArray acc = array_of(product), d = array_of(call.d);
    const CutlassPyEpilogue epilogue = epilogue_of(call.epilogue);
    int status = library->elementwise->compose(plan.kernel ? &acc : nullptr, 1, 0, &epilogue, &d, p.batch, p.m, p.n,
                                               nullptr, stream);
    if (status) throw CudaError("gemm: the composed epilogue failed: " + std::string(library->error_string(status)));
  }
}

}  // namespace cutlass_py
