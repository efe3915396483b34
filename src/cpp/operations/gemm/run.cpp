#include "operations/gemm/run.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

#include "runtime/registry.h"

namespace cutlass_py {
namespace {

using device::Stream;

class Scratch {
 public:
  Scratch(int device_id, Stream stream, const GivenScratch* given = nullptr)
      : device_id_(device_id), stream_(stream), given_(given) {}
  ~Scratch() {
    if (!given_) device::release(memory_, stream_);
  }
  Scratch(const Scratch&) = delete;

  size_t reserve(size_t bytes) {  // returns the offset
    const size_t offset = size_;
    size_ += scratch_aligned(bytes);
    return offset;
  }
  void allocate() {
    if (!size_) return;
    if (!given_) {
      memory_ = static_cast<char*>(device::allocate(size_, device_id_, stream_));
      return;
    }
    if (size_ > given_->bytes) {
      refuse(Refusal(std::to_string(size_) + " bytes of scratch are needed on cuda:" + std::to_string(device_id_) +
                     " but " + std::to_string(given_->bytes) + " were given"));
    }
    memory_ = given_->data;
  }
  void* at(size_t offset) const { return memory_ + offset; }
  size_t size() const { return size_; }

 private:
  int device_id_;
  Stream stream_;
  const GivenScratch* given_;
  size_t size_ = 0;
  char* memory_ = nullptr;
};

// `user` is read until the launch.
CutlassPyEpilogue with_user(CutlassPyEpilogue epilogue, const std::vector<CutlassPyOperand>& user) {
  if (!user.empty()) epilogue.user = user.data();
  return epilogue;
}

std::vector<CutlassPyOperand> operands_of(const std::vector<UserOperand>& user) {
  std::vector<CutlassPyOperand> operands;
  for (const UserOperand& x : user) operands.push_back({x.matrix, x.value});
  return operands;
}

// A packed copy: rows padded to 16 bytes, so that TMA takes it.
struct Packing {
  Matrix packed;
  int64_t ld = 0;
  size_t offset = 0;

  Packing(const CutlassPyArray& from, char layout, int64_t rows, int64_t cols, int64_t batch, Scratch& scratch) {
    const int64_t size = element_size(from);
    const int64_t lines = layout == 't' ? rows : cols, line = layout == 't' ? cols : rows;
    ld = round_up(line, 16 / size);
    const int64_t batches = from.batch ? batch : 1;
    packed = {nullptr, dtype_of(from), layout == 't' ? ld : 1, layout == 't' ? 1 : ld, from.batch ? lines * ld : 0};
    offset = scratch.reserve(size_t(batches * lines * ld * size));
  }

  void run(const DevicePlan& plan, const CutlassPyArray& from, int64_t rows, int64_t cols, int64_t batch,
           const Scratch& scratch, Stream stream) {
    packed.data = scratch.at(offset);
    check(elementwise().copy(&from, &packed, int32_t(element_size(from)), from.batch ? batch : 1, rows, cols, stream),
          plan, "packing an operand");
  }
};

// A reduction of a user's epilogue that the kernel leaves in scratch (CutlassPyOperand), and its end.
class DeferredReduction {
 public:
  static bool is(const UserOperand& x, const CutlassPyKernel& kernel) {
    return x.reduction >= 0 && (facts_of(kernel).api == 2 || x.kind == 's');
  }

  // `handed` is what the kernel writes to in place of the result. Values that another one, `stored`, has in scratch are
  // there only once.
  DeferredReduction(CutlassPyArray& handed, const UserOperand& x, const Problem& p, const CutlassPyKernel& kernel,
                    const DeferredReduction* stored, Scratch& scratch)
      : handed_(&handed), to_(handed), reduction_(x.reduction), first_(x.first), batch_(p.batch) {
    const int64_t m = p.m, n = p.n;
    const bool values = facts_of(kernel).api == 2;
    handed = {nullptr, to_.dtype, values ? n : 1, values ? 1 : 0, values ? m * n : m};
    from_ = {nullptr, to_.dtype, 0, 1, handed.batch};
    if (x.kind == 'm') from_.row = n, lines_ = m, length_ = n;
    if (x.kind == 'n') from_.row = 1, from_.col = n, lines_ = n, length_ = m;
    if (x.kind == 's') length_ = handed.batch;
    if (x.kind == 'n') to_.row = to_.col;
    const size_t bytes = size_t(handed.batch * batch_ * dtype_size(Dtype(to_.dtype)));
    offset_ = stored ? stored->offset_ : scratch.reserve(bytes);
    workspace_ = scratch.reserve(elementwise().reduce_workspace(&from_, batch_, lines_, length_));
  }

  int first() const { return first_; }

  void place(const Scratch& scratch) { handed_->data = from_.data = scratch.at(offset_); }

  void run(const DevicePlan& plan, const Scratch& scratch, Stream stream) const {
    check(elementwise().reduce(&from_, &to_, reduction_, batch_, lines_, length_, scratch.at(workspace_), stream), plan,
          "a reduction");
  }

 private:
  CutlassPyArray* handed_;
  CutlassPyArray to_, from_;
  int32_t reduction_;
  int first_;
  int64_t batch_, lines_ = 1, length_ = 0;
  size_t offset_, workspace_;
};

// What a kernel does to a product that another one finishes: nothing, but for scales that are part of the product.
CutlassPyEpilogue unfinished(const Call& call) {
  CutlassPyEpilogue e{};
  e.alpha.value = e.scale_out.value = 1;
  if (call.problem.block()) e.scale_a = call.epilogue.scale_a, e.scale_b = call.epilogue.scale_b;
  return e;
}

// What is left to do to such a product.
CutlassPyEpilogue finishing(const Call& call) {
  CutlassPyEpilogue e = call.epilogue;
  if (call.problem.block()) e.scale_a = e.scale_b = {};
  return e;
}

// What is left to do to a D that is summed as it is.
CutlassPyEpilogue summing(const Call& call) {
  CutlassPyEpilogue e{};
  e.alpha.value = e.scale_out.value = 1;
  e.bias_grad = call.epilogue.bias_grad;
  return e;
}

// Some bytes on; null stays null.
template <class T>
T* moved(T* data, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return data ? static_cast<Byte*>(data) + bytes : nullptr;
}

// What a kernel that joins pairs is told of vectors, which it reads by any stride: where the next gate lies.
CutlassPyEpilogue epilogue_of(const Call& call) {
  CutlassPyEpilogue e = call.epilogue;
  if (call.problem.interleaved) e.bias.col *= 2, e.scale_b.col *= 2;
  return e;
}

// What a kernel is told of the operands as they lie. The epilogue is the caller's to say.
CutlassPyGemm arguments_of(const Call& call) {
  const Problem& p = call.problem;
  CutlassPyGemm g{};
  g.m = p.m, g.n = p.n, g.k = p.k, g.batch = p.batch;
  g.a = call.a.data, g.lda = call.lda, g.batch_a = call.a.batch;
  g.b = call.b.data, g.ldb = call.ldb, g.batch_b = call.b.batch;
  g.d = call.d.data, g.ldd = call.ldd, g.batch_d = call.d.batch;
  g.groups = call.groups, g.pairs = call.pairs;
  return g;
}

// One problem by its plan. Scratch is laid out and allocated at once; then everything is queued: packing, the kernel,
// reductions that it leaves, the composed epilogue or the sum of D.
class Run {
 public:
  Run(const Call& call, const DevicePlan& plan, Stream stream, const GivenScratch* given = nullptr)
      : call_(call),
        p_(call.problem),
        plan_(plan),
        stream_(stream),
        scratch_(p_.device.id, stream, given),
        composed_(plan.scratch != Dtype::none || !plan.kernel),
        user_(operands_of(call.user)),
        finish_args_(composed_ ? finishing(call) : summing(call)),
        parts_(p_, plan.splits),
        g_(arguments_of(call)),
        launch_(plan.on(p_.device.id)) {
    launch_.stream = stream;
    g_.epilogue = composed_ ? unfinished(call) : with_user(epilogue_of(call), user_);
  }

  void operator()() {
    const device::Relaxed relaxed;  // the first launch of an elementwise kernel loads it
    reserve();
    scratch_.allocate();
    pack();
    if (plan_.kernel) multiply();
    for (const DeferredReduction& each : deferred_) each.run(plan_, scratch_, stream_);
    if (composed_ || plan_.sums) finish();
  }

  // Without running it.
  size_t scratch_bytes() {
    reserve();
    return scratch_.size();
  }

 private:
  void reserve() {
    if (plan_.pack_a) pack_a_.emplace(call_.a, plan_.pack_a, p_.m, p_.k, p_.batch, scratch_);
    if (plan_.pack_b) pack_b_.emplace(call_.b, plan_.pack_b, p_.k, p_.columns_of_b(), p_.batch, scratch_);
    if (plan_.pack_scales) {
      pack_scales_.emplace(call_.epilogue.scale_a, 'n', p_.m, blocks_of(p_.k), p_.batch, scratch_);
    }
    if (pack_a_) g_.lda = pack_a_->ld, g_.batch_a = pack_a_->packed.batch;
    if (pack_b_) g_.ldb = pack_b_->ld * (p_.interleaved ? 2 : 1), g_.batch_b = pack_b_->packed.batch;
    if (pack_b_ && g_.pairs.b) g_.pairs.b = (p_.interleaved ? 1 : p_.n) * pack_b_->packed.col;
    if (pack_scales_) g_.epilogue.scale_a = pack_scales_->packed;  // no address yet
    product_.dtype = int32_t(p_.accumulator);
    if (plan_.kernel && composed_) {
      const int64_t size = dtype_size(plan_.scratch);
      product_.dtype = int32_t(plan_.scratch);
      product_.row = round_up(p_.n, 16 / size);
      product_.batch = product_.row * p_.m;
      part_stride_ = product_.batch * p_.batch;
      product_offset_ = scratch_.reserve(size_t(part_stride_ * parts_.count * size));
      g_.ldd = product_.row, g_.batch_d = product_.batch;
    }
    if (composed_ || plan_.sums) {
      finish_offset_ = scratch_.reserve(elementwise().compose_workspace(&finish_args_, p_.batch, p_.m, p_.n));
    }
    for (size_t i = 0; plan_.kernel && i < user_.size(); ++i) reserve_reduction(i);
    if (!call_.group_ends.empty()) groups_offset_ = scratch_.reserve(call_.group_ends.size() * sizeof(int64_t));
    if (plan_.kernel) workspace_offset_ = scratch_.reserve(workspace_bytes());
  }

  // The launches run one after the other: enough for any.
  size_t workspace_bytes() const {
    size_t most = 0;
    parts_.each([&](int64_t first, int64_t count) {
      const CutlassPyGemm g = launch_of_parts(first, count);
      most = std::max(most, plan_.kernel->workspace_size(&g, &launch_));
    });
    return most;
  }

  void reserve_reduction(size_t i) {
    const UserOperand& x = call_.user[i];
    const CutlassPyKernel& kernel = *plan_.kernel;
    if (!DeferredReduction::is(x, kernel)) return;
    const auto same = [&](const DeferredReduction& each) {
      return facts_of(kernel).api == 2 && each.first() == x.first;
    };
    const auto found = std::find_if(deferred_.begin(), deferred_.end(), same);
    const DeferredReduction* stored = found == deferred_.end() ? nullptr : &*found;
    deferred_.push_back(DeferredReduction(user_[i].array, x, p_, kernel, stored, scratch_));
  }

  void pack() {
    if (pack_a_) {
      pack_a_->run(plan_, call_.a, p_.m, p_.k, p_.batch, scratch_, stream_);
      g_.a = pack_a_->packed.data;
    }
    if (pack_b_) {
      pack_b_->run(plan_, call_.b, p_.k, p_.columns_of_b(), p_.batch, scratch_, stream_);
      g_.b = pack_b_->packed.data;
    }
    if (pack_scales_) {
      pack_scales_->run(plan_, call_.epilogue.scale_a, p_.m, blocks_of(p_.k), p_.batch, scratch_, stream_);
      g_.epilogue.scale_a = pack_scales_->packed;
    }
  }

  void multiply() {
    launch_.workspace = scratch_.at(workspace_offset_);
    for (DeferredReduction& each : deferred_) each.place(scratch_);
    if (composed_) g_.d = product_.data = scratch_.at(product_offset_);
    if (!call_.group_ends.empty()) tell_groups();
    parts_.each([&](int64_t first, int64_t count) {
      const CutlassPyGemm g = launch_of_parts(first, count);
      launch(plan_, &g, launch_);
    });
  }

  // As addresses of lists travel.
  void tell_groups() {
    std::vector<const void*> ends;
    for (const int64_t end : call_.group_ends) ends.push_back(reinterpret_cast<const void*>(end));
    void* numbers = scratch_.at(groups_offset_);
    check(elementwise().write_pointers(ends.data(), int64_t(ends.size()), numbers, stream_), plan_, "writing groups");
    g_.groups.numbers = numbers;
  }

  // One part of k, or several of equal length as a batch.
  CutlassPyGemm launch_of_parts(int64_t first, int64_t count) const {
    const bool row_major_a = (plan_.pack_a ? plan_.pack_a : p_.layout_a) == 't';
    const bool row_major_b = (plan_.pack_b ? plan_.pack_b : p_.layout_b) == 't';
    const int64_t step_a = parts_.length * (row_major_a ? 1 : g_.lda);
    const int64_t step_b = parts_.length * (row_major_b ? g_.ldb : 1);
    CutlassPyGemm g = g_;
    CutlassPyArray &scale_a = g.epilogue.scale_a, &scale_b = g.epilogue.scale_b;
    g.a = moved(g.a, first * step_a * dtype_size(p_.a)), g.b = moved(g.b, first * step_b * dtype_size(p_.b));
    g.d = moved(g.d, first * part_stride_ * dtype_size(plan_.scratch));
    g.k = int32_t(parts_.length_of(first));
    if (count > 1) g.batch = int32_t(count), g.batch_a = step_a, g.batch_b = step_b, g.batch_d = part_stride_;
    if (!p_.block()) return g;
    const int64_t blocks = parts_.length / kScaleBlock;
    const int64_t step_scale_a = blocks * scale_a.col, step_scale_b = blocks * scale_b.row;
    scale_a.data = moved(scale_a.data, first * step_scale_a * int64_t(sizeof(float)));
    scale_b.data = moved(scale_b.data, first * step_scale_b * int64_t(sizeof(float)));
    if (count > 1) scale_a.batch = step_scale_a, scale_b.batch = step_scale_b;
    return g;
  }

  void finish() {
    CutlassPyArray d = call_.d;
    const CutlassPyArray product = composed_ ? product_ : d;
    if (!composed_) d.data = nullptr;
    check(elementwise().compose(&product, int32_t(parts_.count), part_stride_, &finish_args_, &d, p_.batch, p_.m, p_.n,
                                scratch_.at(finish_offset_), stream_),
          plan_, composed_ ? "the composed epilogue" : "the sum of D");
  }

  const Call& call_;
  const Problem& p_;
  const DevicePlan& plan_;
  const Stream stream_;
  Scratch scratch_;
  const bool composed_;
  std::vector<CutlassPyOperand> user_;
  const CutlassPyEpilogue finish_args_;
  const Splits parts_;
  CutlassPyGemm g_;
  CutlassPyLaunch launch_;
  std::optional<Packing> pack_a_, pack_b_, pack_scales_;
  std::vector<DeferredReduction> deferred_;
  Matrix product_{nullptr, Dtype::none, 0, 1};  // in scratch; without a kernel it has a dtype and nothing else
  int64_t part_stride_ = 0;
  size_t product_offset_ = 0, finish_offset_ = 0, workspace_offset_ = 0, groups_offset_ = 0;
};

// A list of matrices in one launch: the addresses travel to the device in the launch of a small kernel.
void run_list(const Call& call, const DevicePlan& plan, Stream stream) {
  const Problem& p = call.problem;
  const device::Relaxed relaxed;  // as above
  Scratch scratch(p.device.id, stream);
  CutlassPyLaunch where = plan.on(p.device.id);
  where.stream = stream;
  CutlassPyGemm g = arguments_of(call);
  g.pointers = 1;
  g.epilogue = call.epilogue;

  const std::vector<void*>* lists[] = {&call.pointers_a, &call.pointers_b, &call.pointers_d, &call.pointers_c};
  size_t offsets[4] = {};
  for (int i = 0; i < 4; ++i) offsets[i] = scratch.reserve(lists[i]->size() * sizeof(void*));
  const size_t extents_offset = scratch.reserve(call.extents.size() * sizeof(CutlassPyExtents));
  const size_t workspace_offset = scratch.reserve(plan.kernel->workspace_size(&g, &where));
  scratch.allocate();
  for (int i = 0; i < 4; ++i) {
    if (lists[i]->empty()) continue;
    check(elementwise().write_pointers(lists[i]->data(), int64_t(lists[i]->size()), scratch.at(offsets[i]), stream),
          plan, "writing addresses");
  }
  g.a = scratch.at(offsets[0]), g.b = scratch.at(offsets[1]), g.d = scratch.at(offsets[2]);
  if (!call.pointers_c.empty()) g.epilogue.c.data = scratch.at(offsets[3]);
  if (!call.extents.empty()) {
    void* extents = scratch.at(extents_offset);
    constexpr int64_t words = sizeof(CutlassPyExtents) / sizeof(void*);
    const auto* from = reinterpret_cast<const void* const*>(call.extents.data());
    check(elementwise().write_pointers(from, int64_t(call.extents.size()) * words, extents, stream), plan,
          "writing extents");
    g.extents = static_cast<const CutlassPyExtents*>(extents);
  }
  where.workspace = scratch.at(workspace_offset);
  launch(plan, &g, where);
}

}  // namespace

const CutlassPyElementwise& elementwise() {
  const CutlassPyLibrary* library = builtin_library();
  if (!library) throw CudaError(in_operation(device::why_none()));
  return *library->elementwise;
}

void run_on_device(const Call& call, const DevicePlan& plan, Stream stream, const GivenScratch* given) {
  if (std::optional<CutlassPyGemm> g = single_launch(call, plan)) {
    CutlassPyLaunch where = plan.on(call.problem.device.id);
    where.stream = stream;
    launch(plan, &*g, where);
  } else if (!call.problem.pointers) {
    Run(call, plan, stream, given)();
  } else {
    run_list(call, plan, stream);
  }
}

std::optional<CutlassPyGemm> single_launch(const Call& call, const DevicePlan& plan) {
  const bool packs = plan.pack_a || plan.pack_b || plan.pack_scales;
  const bool single = plan.kernel && !packs && !plan.sums && plan.scratch == Dtype::none && plan.splits == 1;
  if (!single || !call.user.empty() || !call.group_ends.empty() || call.problem.pointers || !call.loop.empty() ||
      nothing_to_do(call.problem))
    return std::nullopt;
  CutlassPyGemm g = arguments_of(call);
  g.epilogue = epilogue_of(call);
  const CutlassPyLaunch where = plan.on(call.problem.device.id);
  return plan.kernel->workspace_size(&g, &where) ? std::nullopt : std::optional(g);
}

size_t scratch_bytes(const Call& call, const DevicePlan& plan) { return Run(call, plan, nullptr).scratch_bytes(); }

std::string kernel_of(const DevicePlan& plan) { return plan.kernel ? plan.kernel->name : "epilogue"; }

std::string range_name(const Problem& p, std::string text) {
  text += p.batch != 1 ? " " + std::to_string(p.batch) + " x (" : " (";
  return text + std::to_string(p.m) + ", " + std::to_string(p.n) + ", " + std::to_string(p.k) + ")";
}

}  // namespace cutlass_py
