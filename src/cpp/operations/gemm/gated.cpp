#include "operations/gemm/gated.h"

#include <string_view>

namespace cutlass_py {
namespace {

// A row-major array on the device, gone with this.
class Temporary {
 public:
  Temporary(const Operand& like, int64_t columns, Dtype dtype, device::Stream stream) : stream_(stream) {
    int64_t shape[kMaxRank];
    std::copy(like.shape, like.shape + like.rank, shape);
    shape[like.rank - 1] = columns;
    operand.name = "the product", operand.dtype = dtype, operand.device = like.device;
    operand.set_row_major(shape, like.rank);
    size_t bytes = size_t(dtype_size(dtype));
    for (int i = 0; i < like.rank; ++i) bytes *= size_t(shape[i]);
    operand.data = device::allocate(bytes, like.device.id, stream);
  }
  ~Temporary() { device::release(operand.data, stream_); }
  Temporary(const Temporary&) = delete;

  Operand operand;

 private:
  device::Stream stream_;
};

// Of the columns the gates or the values.
Operand half_of(const Operand& x, bool values, bool interleaved) {
  Operand half = x;
  int64_t &columns = half.shape[x.rank - 1], &step = half.strides[x.rank - 1];
  columns /= 2;
  if (values) half.data = static_cast<char*>(x.data) + (interleaved ? 1 : columns) * step * dtype_size(x.dtype);
  if (interleaved) step *= 2;
  return half;
}

// The product of a request as it is, without what is made of it.
Request product_of(const Request& given, const Operand& out) {
  Request r = given;
  r.bias_dtype = given.at(Role::out)->dtype;
  r.gated = r.interleaved = false, r.activation = Activation::identity;
  r.out_dtype = Dtype::none, r.scale_out = kOne, r.has_scale_out = false;
  r.operands[int(Role::aux)] = r.operands[int(Role::scale_out)] = nullptr;
  r.operands[int(Role::out)] = &out;
  return r;
}

// Of that product, x: out = activation(gate) * x, or of aux where it is a derivative.
Request function_of(const Request& given, const Operand& b, const Operand& x, Activation function, Role role,
                    const Operand* beside, const Operand& out, bool scaled) {
  Request r = given;
  r.gated = r.interleaved = false, r.activation = function, r.out_dtype = Dtype::none, r.splits = 0;
  r.alpha = kZero, r.scale_a = r.scale_b = 1, r.has_scale_a = r.has_scale_b = r.has_beta = false;
  for (Role gone : {Role::alpha, Role::scale_a, Role::scale_b, Role::bias, Role::aux}) r.operands[int(gone)] = nullptr;
  if (!scaled) r.scale_out = kOne, r.has_scale_out = false, r.operands[int(Role::scale_out)] = nullptr;
  r.operands[int(Role::b)] = &b, r.operands[int(Role::c)] = &x, r.operands[int(Role::out)] = &out;
  if (beside) r.operands[int(role)] = beside;
  return r;
}

}  // namespace

void run_gated(const Request& r, const Call& call, device::Stream stream,
               const std::function<void(const Request&)>& run) {
  const Operand &b = *r.at(Role::b), &out = *r.at(Role::out);
  const int64_t columns = b.shape[b.rank - 1];
  const Dtype wide = call.problem.accumulator == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  const Temporary product(out, columns, wide, stream);
  const auto half_of = [&](const Operand& x, bool values) { return cutlass_py::half_of(x, values, r.interleaved); };
  run(product_of(r, product.operand));
  if (call.problem.pairs == 'b') {
    const Operand half = half_of(b, false), gates = half_of(product.operand, false),
                  values = half_of(product.operand, true);
    run(function_of(r, half, values, r.activation, Role::gate, &gates, out, true));
    const Operand* aux = r.at(Role::aux);
    if (aux) run(function_of(r, b, product.operand, Activation::identity, Role::gate, nullptr, *aux, false));
    return;
  }
  const Operand &aux = *r.at(Role::aux), gates = half_of(aux, false), values = half_of(aux, true);
  const Operand of_gates = half_of(out, false), of_values = half_of(out, true);
  const auto function = Activation(activation_named(std::string_view(r.function().name).substr(2)));  // behind "d_"
  // In this order, so that out may be aux.
  const Temporary times(out, columns, wide, stream);
  run(function_of(r, b, product.operand, Activation::identity, Role::gate, &values, times.operand, false));
  run(function_of(r, b, product.operand, function, Role::gate, &gates, of_values, true));
  run(function_of(r, b, times.operand, r.activation, Role::aux, &gates, of_gates, true));
}

}  // namespace cutlass_py
