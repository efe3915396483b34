#include <algorithm>
#include <cstdlib>
#include <string>

#include "operations/quantize/problem.h"

namespace cutlass_py::quantization {
namespace {

int64_t groups_of(int64_t extent, int size) { return size ? extent / size + (extent % size != 0) : 1; }

// ------------------------------------------------------------------------------------------------ shapes

void check_x(const Operand& x, const Scaling& scaling) {
  check_dtype(x.dtype, kFrom, kFromNames, found_dtype(x));
  const int least = scaling.rows > 1 ? 2 : 1;
  if (x.rank >= least) return;
  refuse(found(x).expects(least == 1 ? "1 dimension or more"
                                     : "2 dimensions or more with scaling '" + std::string(scaling.name) + "'"));
}

void check_given(const Operand& x, Dtype dtype, const Operand& like) {
  if (x.dtype != dtype) refuse_type(found_dtype(x).expects(dtype_name(dtype)));
  if (x.rank != like.rank || !std::equal(x.shape, x.shape + x.rank, like.shape)) {
    refuse(found(x).expects(shape_text(like.shape, like.rank)));
  }
  if (x.readonly) refuse(Refusal(x.name, "is read-only"));
  if (overlaps_itself(x)) refuse(Refusal(x.name, "overlaps itself: it has a stride of 0 or interleaved rows"));
}

// Of a new array, row-major.
Operand row_major(Role role, Dtype dtype, const Operand& x, const int64_t* shape, int rank) {
  Operand made;
  made.name = kNames[int(role)], made.dtype = dtype, made.device = x.device;
  made.set_row_major(shape, rank);
  return made;
}

// The scales of x: a row's last two extents become those of the groups, a vector has the last alone.
int shape_of_scales(const Operand& x, const Scaling& scaling, int64_t* shape) {
  if (!scaling.rows) return 0;
  std::copy(x.shape, x.shape + x.rank, shape);
  shape[x.rank - 1] = groups_of(x.shape[x.rank - 1], scaling.cols);
  if (x.rank > 1) shape[x.rank - 2] = groups_of(x.shape[x.rank - 2], scaling.rows);
  return x.rank;
}

// A vector is a row.
Operand with_rows(const Operand& x) {
  if (x.rank != 1) return x;
  Operand row = x;
  row.rank = 2, row.shape[1] = x.shape[0], row.strides[1] = x.strides[0];
  row.shape[0] = 1, row.strides[0] = 0;
  return row;
}

// Groups of several rows are a block of threads each, and launches have 31 bits for those.
void check_count(const Call& call, const Scaling& scaling) {
  double groups = 1;
  for (int i = 0; i < call.scales.rank; ++i) groups *= double(call.scales.shape[i]);
  if (scaling.rows > 1 && groups > INT32_MAX) {
    refuse(found(call.x).expects("less than 2**31 groups with scaling '" + std::string(scaling.name) + "'"));
  }
}

// ------------------------------------------------------------------------------------------------ layouts

char layout_of(const Operand& x) {
  const int64_t rows = x.shape[x.rank - 2], cols = x.shape[x.rank - 1];
  const int64_t row = x.strides[x.rank - 2], col = x.strides[x.rank - 1];
  if ((col == 1 || cols <= 1) && (rows <= 1 || row >= cols)) return 't';
  return (row == 1 || rows <= 1) && (cols <= 1 || col >= rows) ? 'n' : 'x';
}

uint8_t alignment_of(const Operand& x, char layout) {
  uint64_t bits = reinterpret_cast<uintptr_t>(x.data) | 16;
  const int unit = layout == 't' ? x.rank - 1 : layout == 'n' ? x.rank - 2 : -1;
  for (int i = 0; i < x.rank; ++i) {
    if (i != unit && x.shape[i] > 1) bits |= uint64_t(x.strides[i] * dtype_size(x.dtype));
  }
  uint8_t log2 = 0;
  while (!(bits >> log2 & 1)) ++log2;
  return log2;
}

// ------------------------------------------------------------------------------------------------ arguments

// One dimension of x, q and scales.
struct Dimension {
  int64_t extent, x, q, scale;
  bool follows(const Dimension& outer) const {  // without a gap
    return outer.x == extent * x && outer.q == extent * q && outer.scale == extent * scale;
  }
};

// The dimensions that may become fewer: those that groups go along alike.
std::vector<Dimension> collapsed(const std::vector<Dimension>& from) {
  std::vector<Dimension> to;
  for (const Dimension& each : from) {
    if (each.extent == 1) continue;
    if (!to.empty() && each.follows(to.back())) {
      to.back() = {to.back().extent * each.extent, each.x, each.q, each.scale};
    } else {
      to.push_back(each);
    }
  }
  return to;
}

void fill_arguments(Call& call, const Scaling& scaling) {
  const Operand x = with_rows(call.x), q = with_rows(call.q);
  const int count = x.rank, kept = scaling.rows > 1 ? 2 : scaling.rows ? 1 : 0;  // at the end, as they are
  const Operand& s = call.scales;
  std::vector<Dimension> all;
  for (int i = 0; i < count; ++i) {
    const int at = i - (count - s.rank);  // a vector's scales have no rows
    all.push_back({x.shape[i], x.strides[i], q.strides[i], at >= 0 && s.rank ? s.strides[at] : 0});
  }
  if (!scaling.cols) all.back().scale = 0;
  std::vector<Dimension> dims = collapsed({all.begin(), all.end() - kept});
  dims.insert(dims.end(), all.end() - kept, all.end());
  while (dims.size() < 2) dims.insert(dims.begin(), {1, 0, 0, 0});
  if (!kept) {  // any order will do
    Dimension &rows = dims[dims.size() - 2], &cols = dims.back();
    if (rows.extent > 1 && std::llabs(rows.x) < std::llabs(cols.x) && std::llabs(rows.q) < std::llabs(cols.q)) {
      std::swap(rows, cols);
    }
  }
  CutlassPyQuantize& g = call.arguments;
  g.rank = int32_t(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    g.extent[i] = dims[i].extent, g.x_stride[i] = dims[i].x, g.q_stride[i] = dims[i].q;
    g.scale_stride[i] = dims[i].scale;
  }
  g.x = x.data, g.q = q.data, g.scales = static_cast<float*>(s.data);
}

// ------------------------------------------------------------------------------------------------ overlap

// visit(written, other) of what must not share elements.
template <class Visit>
void each_pair(const Request& r, Visit visit) {
  const Operand *x = r.at(Role::x), *out = r.at(Role::out), *scales = r.at(Role::scales);
  if (out) visit(*out, *x);
  if (scales) visit(*scales, *x);
  if (out && scales) visit(*scales, *out);
}

void check_overlap(const Request& r, Call& call) {
  each_pair(r, [&](const Operand& written, const Operand& other) {
    if (written.metadata_only || other.metadata_only || provably_disjoint(written, other)) return;
    call.possible_overlaps.push_back({&written, &other,
                                      Refusal(written.name, "shares elements with", "overlap")
                                          .beside(other.name)
                                          .hints("what is written has memory of its own")});
  });
}

}  // namespace

Call canonicalise(const Request& r) {
  const Scaling& scaling = kScalings[r.scaling];
  Call call;
  Problem& p = call.problem;
  call.x = *r.at(Role::x);
  check_x(call.x, scaling);
  call.q = row_major(Role::out, r.q, call.x, call.x.shape, call.x.rank);
  if (const Operand* out = r.at(Role::out)) {
    check_given(*out, r.q, call.q);
    call.q = *out;
  }
  int64_t shape[kMaxRank];
  const int rank = shape_of_scales(call.x, scaling, shape);
  call.scales = call.made = row_major(Role::scales, Dtype::f32, call.x, shape, rank);
  if (const Operand* scales = r.at(Role::scales)) {
    check_given(*scales, Dtype::f32, call.scales);
    call.scales = *scales;
  } else if (r.transposes) {
    constexpr int64_t kUnit = 4;  // 16 bytes, which TMA wants
    std::swap(shape[rank - 1], shape[rank - 2]);
    shape[rank - 1] = (shape[rank - 1] + kUnit - 1) / kUnit * kUnit;
    call.made.set_row_major(shape, rank);
    std::copy(call.made.strides, call.made.strides + rank, call.scales.strides);
    std::swap(call.scales.strides[rank - 1], call.scales.strides[rank - 2]);
  }
  check_overlap(r, call);
  fill_arguments(call, scaling);
  check_count(call, scaling);

  const Operand x = with_rows(call.x), q = with_rows(call.q);
  p.rows = x.shape[x.rank - 2], p.cols = x.shape[x.rank - 1];
  for (int i = 0; i < x.rank - 2; ++i) p.batch *= x.shape[i];
  p.x = x.dtype, p.q = r.q, p.scaling = uint8_t(r.scaling), p.device = x.device;
  p.layout_x = layout_of(x), p.layout_q = layout_of(q);
  p.align_x = alignment_of(x, p.layout_x), p.align_q = alignment_of(q, p.layout_q);
  return call;
}

void place(Call& call, Role role, void* data) {
  if (role == Role::scales) {
    call.scales.data = data, call.arguments.scales = static_cast<float*>(data);
  } else {
    call.q.data = call.arguments.q = data;
  }
}

bool nothing_to_do(const Call& call) {
  const Operand& scales = call.scales;
  return std::find(scales.shape, scales.shape + scales.rank, 0) != scales.shape + scales.rank;
}

bool provably_apart(const Request& r) {
  bool apart = true;
  each_pair(r,
            [&](const Operand& written, const Operand& other) { apart = apart && provably_disjoint(written, other); });
  return apart;
}

}  // namespace cutlass_py::quantization
