// Tests of canonicalise (src/cpp/operations/gemm/canonical.cpp and what it is made of): the canonical form computes
// what the operands as given would; keys, messages.
#include "operations/gemm/problem.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "check.h"
#include "made_operands.h"
#include "operations/gemm/run.h"
#include "runtime/key.h"

using namespace cutlass_py;

namespace {

Call call_of(Extents a, Extents b, Request request = {}) {
  return canonicalise(operand("a", a), operand("b", b), nullptr, nullptr, request);
}

template <class Error, class Function>
std::string message(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another type: ") + error.what();
  }
  return "no error";
}

// ------------------------------------------------------------------------------------------------ single facts

TEST(row_major) {
  Call call = call_of({3, 4}, {4, 5});
  const Problem& p = call.problem;
  CHECK(p.m == 3 && p.n == 5 && p.k == 4 && p.batch == 1 && !p.transposed && !p.empty_product);
  CHECK(p.layout_a == 't' && p.layout_b == 't' && p.layout_d == 't');
  CHECK(call.lda == 4 && call.ldb == 5 && call.ldd == 5);
  CHECK(p.align_a == 4 && p.align_b == 2 && p.align_d == 2);
  CHECK(call.out_rank == 2 && call.out_shape[0] == 3 && call.out_shape[1] == 5);
  CHECK(p.d == Dtype::f32 && p.operand_a == Dtype::f32 && p.accumulator == Dtype::f32 && p.kernel == -1);
}

TEST(column_major_out_is_transposed) {
  Operand out = operand("out", {3, 5}, {1, 3});
  Call call = canonicalise(operand("a", {3, 4}), operand("b", {4, 5}), nullptr, &out, {});
  const Problem& p = call.problem;
  CHECK(p.transposed && p.m == 5 && p.n == 3 && p.k == 4 && p.layout_d == 't' && call.ldd == 3);
  CHECK(p.layout_a == 'n' && call.lda == 5);  // b, read the other way round
  CHECK(p.layout_b == 'n' && call.ldb == 4);
  CHECK(call.a.data == operand("b", {4, 5}).data);
  CHECK(call.out_shape[0] == 3 && call.out_shape[1] == 5);  // as the caller sees it
}

TEST(free_leading_dimensions) {
  // One row: its stride is never used, and must not cost the alignment.
  Operand out = operand("out", {1, 5}, {7, 1});
  Call call = canonicalise(operand("a", {1, 99}, {3, 1}), operand("b", {99, 5}), nullptr, &out, {});
  CHECK(call.problem.layout_a == 't' && call.lda == 100 && call.problem.align_a == 4);
  CHECK(call.problem.layout_d == 't' && call.ldd == 8 && call.problem.align_d == 4);
  // One column: likewise, here with D in one column as well.
  call = canonicalise(operand("a", {6, 99}), operand("b", {99, 1}, {1, 3}), nullptr, nullptr, {});
  CHECK(call.problem.transposed && call.problem.layout_a == 't' && call.lda == 100);
}

TEST(no_unit_stride) {
  auto layout = [](Extents strides) {
    return canonicalise(operand("a", {3, 4}, strides), operand("b", {4, 5}), nullptr, nullptr, {}).problem.layout_a;
  };
  CHECK(layout({8, 2}) == 'x' && layout({-4, 1}) == 'x' && layout({4, -1}) == 'x');
  CHECK(layout({0, 1}) == 'x' && layout({3, 1}) == 'x');  // rows on top of each other
  CHECK(layout({4, 1}) == 't' && layout({9, 1}) == 't' && layout({1, 3}) == 'n' && layout({1, 9}) == 'n');
  Operand out = operand("out", {3, 5}, {10, 2});
  CHECK(canonicalise(operand("a", {3, 4}), operand("b", {4, 5}), nullptr, &out, {}).problem.layout_d == 'x');
}

TEST(alignment) {
  auto align = [](uintptr_t address, int64_t ld, int64_t batch_stride) {
    Operand a = operand("a", {2, 4, 8}, {batch_stride, ld, 1}, address, Dtype::bf16);
    return int(canonicalise(a, operand("b", {2, 8, 8}, {}, 0, Dtype::bf16), nullptr, nullptr, {}).problem.align_a);
  };
  CHECK(align(0x10000, 8, 64) == 4 && align(0x10000, 104, 1024) == 4);
  CHECK(align(0x10002, 8, 64) == 1 && align(0x10008, 8, 64) == 3);
  CHECK(align(0x10000, 9, 72) == 1 && align(0x10000, 10, 80) == 2 && align(0x10000, 12, 96) == 3);
  CHECK(align(0x10000, 8, 65) == 1 && align(0x10000, 8, 68) == 3);
}

TEST(batch) {
  Call call = call_of({7, 3, 4}, {7, 4, 5});
  CHECK(call.problem.batch == 7 && call.a.batch == 12 && call.b.batch == 20 && call.d.batch == 15);
  CHECK(call.out_rank == 3 && call.out_shape[0] == 7);
  call = call_of({1, 3, 4}, {7, 4, 5});
  CHECK(call.problem.batch == 7 && call.a.batch == 0 && call.b.batch == 20);
  call = call_of({3, 4}, {7, 4, 5});
  CHECK(call.problem.batch == 7 && call.a.batch == 0 && call.out_rank == 3);
  call = call_of({1, 3, 4}, {4, 5});
  CHECK(call.problem.batch == 1 && call.out_rank == 3 && call.out_shape[0] == 1);
  call = call_of({0, 3, 4}, {1, 4, 5});
  CHECK(call.problem.batch == 0 && call.out_shape[0] == 0);
}

TEST(batch_folds_into_rows) {
  Call call = call_of({7, 3, 4}, {4, 5});
  CHECK(call.problem.batch == 1 && call.problem.m == 21 && call.a.batch == 0 && call.d.batch == 0);
  CHECK(call.out_rank == 3 && call.out_shape[1] == 3);
  // A single row's stride means nothing.
  Operand rows = operand("a", {7, 1, 4}, {9, 0, 1}), results = operand("out", {7, 1, 5}, {6, 77, 1});
  call = canonicalise(rows, operand("b", {4, 5}), nullptr, &results, {});
  CHECK(call.problem.batch == 1 && call.problem.m == 7 && call.lda == 9 && call.ldd == 6);
  // Not where rows of the batches do not continue each other.
  Operand padded = operand("a", {7, 3, 4}, {16, 4, 1});
  CHECK(canonicalise(padded, operand("b", {4, 5}), nullptr, nullptr, {}).problem.batch == 7);
  Operand out = operand("out", {7, 3, 5}, {20, 5, 1});
  CHECK(canonicalise(operand("a", {7, 3, 4}), operand("b", {4, 5}), nullptr, &out, {}).problem.batch == 7);
  // Nor where C is added to every batch.
  Operand c = operand("c", {3, 5});
  CHECK(canonicalise(operand("a", {7, 3, 4}), operand("b", {4, 5}), &c, nullptr, {}).problem.batch == 7);
  Request unread;
  unread.has_beta = true, unread.beta.value = 0;
  CHECK(canonicalise(operand("a", {7, 3, 4}), operand("b", {4, 5}), &c, nullptr, unread).problem.batch == 1);
  // Nor beyond the largest extent.
  CHECK(call_of({1 << 16, 1 << 15, 1}, {1, 1}).problem.batch == 1 << 16);
}

TEST(fold_to_one_column_keeps_its_rows) {
  // D is (16, 1, 1), one element a batch: as (16, 1) its rows are one element apart.
  Call call = call_of({16, 1, 64}, {64, 1});
  const Problem& p = call.problem;
  const bool column = p.m == 16 && p.n == 1, row = p.m == 1 && p.n == 16, batched = p.batch == 16;
  CHECK(batched || (column && call.ldd == call.d.row) || (row && call.d.col == 1));
}

TEST(scalars) {
  Request options;
  options.alpha.value = 0;
  CHECK(call_of({3, 4}, {4, 5}, options).problem.empty_product);
  CHECK(call_of({3, 0}, {0, 5}).problem.empty_product);
  Operand c = operand("c", {3, 5}, {}, 0, Dtype::f16);
  Call call = canonicalise(operand("a", {3, 4}), operand("b", {4, 5}), &c, nullptr, {});
  CHECK(call.epilogue.beta.value == 1 && call.problem.c == Dtype::f16 && call.problem.has_c());
  options = {};
  options.has_beta = true, options.beta.value = 0;
  call = canonicalise(operand("a", {3, 4}), operand("b", {4, 5}), &c, nullptr, options);
  CHECK(call.epilogue.beta.value == 0 && !call.problem.has_c() && !call.epilogue.c.data);
}

TEST(dtypes) {
  auto problem = [](Dtype dtype, const char* compute, Dtype out = Dtype::none) {
    Request options;
    options.compute = compute;
    options.out_dtype = out;
    return canonicalise(operand("a", {3, 4}, {}, 0, dtype), operand("b", {4, 5}, {}, 0, dtype), nullptr, nullptr,
                        options)
        .problem;
  };
  CHECK(problem(Dtype::f32, "tf32").operand_a == Dtype::tf32 && problem(Dtype::f32, "tf32").a == Dtype::f32);
  CHECK(problem(Dtype::bf16, nullptr).accumulator == Dtype::f32 && problem(Dtype::bf16, nullptr).d == Dtype::bf16);
  CHECK(problem(Dtype::f64, nullptr).accumulator == Dtype::f64);
  CHECK(problem(Dtype::s8, nullptr).d == Dtype::s32 && problem(Dtype::s8, nullptr).accumulator == Dtype::s32);
  CHECK(problem(Dtype::c64, nullptr).d == Dtype::c64 && problem(Dtype::c64, nullptr).accumulator == Dtype::c64);
  CHECK(problem(Dtype::f32, "3xtf32").operand_b == Dtype::tf32x3);
  Operand out = operand("out", {3, 5}, {1, 3}, 0, Dtype::f32);
  const Problem mixed = canonicalise(operand("a", {3, 4}, {}, 0, Dtype::e4m3), operand("b", {4, 5}, {}, 0, Dtype::e5m2),
                                     nullptr, &out, {})
                            .problem;
  CHECK(mixed.transposed && mixed.a == Dtype::e5m2 && mixed.b == Dtype::e4m3 && mixed.operand_a == Dtype::e5m2);
  CHECK(problem(Dtype::e4m3, nullptr).d == Dtype::bf16 && problem(Dtype::e4m3, nullptr, Dtype::f16).d == Dtype::f16);
}

TEST(hash_and_equality) {
  std::vector<Problem> problems;
  for (int64_t m : {3, 4}) {
    for (int64_t n : {5, 6}) {
      for (Dtype out : {Dtype::f32, Dtype::f16}) {
        Request options;
        options.out_dtype = out;
        problems.push_back(call_of({m, 4}, {4, n}, options).problem);
        problems.push_back(problems.back());
        problems.back().kernel = 3;
      }
    }
  }
  const auto hash = [](const Problem& p) { return Key(CUTLASS_PY_GEMM, p).hash(); };
  std::unordered_set<Problem, decltype(hash)> distinct(problems.begin(), problems.end(), 16, hash);
  CHECK(distinct.size() == problems.size());
  std::unordered_set<size_t> hashes;
  for (const Problem& p : problems) hashes.insert(hash(p));
  CHECK(hashes.size() == problems.size());
  // The same class of call elsewhere in memory, with other scalars, is the same problem.
  Request twice;
  twice.alpha.value = 2;
  Call one = call_of({3, 4}, {4, 5});
  Call two =
      canonicalise(operand("a", {3, 4}, {}, 0x770000), operand("b", {4, 5}, {}, 0x990000), nullptr, nullptr, twice);
  CHECK(one.problem == two.problem && Key(CUTLASS_PY_GEMM, one.problem) == Key(CUTLASS_PY_GEMM, two.problem));
  // An alignment of its own is not.
  Call shifted = canonicalise(operand("a", {3, 4}, {}, 0x770004), operand("b", {4, 5}), nullptr, nullptr, {});
  CHECK(!(one.problem == shifted.problem));
}

// ------------------------------------------------------------------------------------------------ numeric equivalence

// Strides of a random layout with distinct elements; `negative` allows them to run backwards.
Extents random_strides(std::mt19937& random, const Extents& shape, bool negative) {
  auto pick = [&](int low, int high) { return int64_t(std::uniform_int_distribution<int>(low, high)(random)); };
  std::vector<size_t> order(shape.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  // Batch outermost more often than not, so that folding is met.
  if (shape.size() == 3 && pick(0, 3)) {
    if (pick(0, 1)) std::swap(order[1], order[2]);
    std::reverse(order.begin(), order.end());
  } else {
    std::shuffle(order.begin(), order.end(), random);
  }
  Extents strides(shape.size());
  if (pick(0, 1)) {  // compact
    for (size_t i = shape.size(), packed = 1; i-- > 0; packed *= size_t(shape[i])) strides[i] = int64_t(packed);
    return strides;
  }
  int64_t step = pick(0, 2) ? 1 : pick(2, 3);
  for (size_t i : order) {
    strides[i] = negative && !pick(0, 5) ? -step : step;
    step *= shape[i];
    if (!pick(0, 3)) step += pick(1, 5);
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1 && pick(0, 1)) strides[i] = pick(-20, 20);  // means nothing
  }
  return strides;
}

struct Buffer {
  std::vector<float> memory = std::vector<float>(8192, -777.0f);
  Operand x;

  Buffer(std::mt19937& random, const char* name, const Extents& shape, bool negative)
      : x(operand(name, shape, random_strides(random, shape, negative))) {
    x.data = memory.data() + 4096;
    if (name[0] != 'o') {
      for (float& value : memory) value = float(int(random() % 7) - 3);
    }
  }
  // By numpy's rules: indices from the end, an extent of 1 repeats.
  float& at(const Extents& index) {
    int64_t offset = 0;
    for (int back = 1; back <= x.rank; ++back) {
      const int i = x.rank - back;
      if (x.shape[i] > 1) offset += index[index.size() - size_t(back)] * x.strides[i];
    }
    return static_cast<float*>(x.data)[offset];
  }
};

// What a kernel reads: by layout and leading dimension where there is one.
float& element(const CutlassPyArray& x, char layout, int64_t ld, int64_t b, int64_t i, int64_t j) {
  auto* data = static_cast<float*>(x.data) + b * x.batch;
  if (layout == 't') return data[i * ld + j];
  if (layout == 'n') return data[j * ld + i];
  return data[i * x.row + j * x.col];
}

float at(const CutlassPyArray& x, int64_t b, int64_t i, int64_t j) { return element(x, 'x', 0, b, i, j); }

bool aligned(const CutlassPyArray& x, char layout, int64_t ld, int64_t batch, uint8_t log2) {
  if (log2 > 4) return false;
  const int64_t bytes = int64_t(1) << log2;
  return reinterpret_cast<uintptr_t>(x.data) % uintptr_t(bytes) == 0 && (layout == 'x' || ld * 4 % bytes == 0) &&
         (layout == 'x' || batch <= 1 || x.batch * 4 % bytes == 0);
}

// Computes one run of a call as kernels do; false where its alignments lie or D is written outside of `memory`.
bool compute(const Call& call, std::vector<float>& memory) {
  const Problem& p = call.problem;
  const Epilogue& e = call.epilogue;
  bool fine = aligned(call.a, p.layout_a, call.lda, p.batch, p.align_a) &&
              aligned(call.b, p.layout_b, call.ldb, p.batch, p.align_b) &&
              aligned(call.d, p.layout_d, call.ldd, p.batch, p.align_d) && p.layout_d != 'n';
  if (p.has_c()) fine = fine && aligned(e.c, p.layout_c, e.c.row, p.batch, p.align_c);
  if (p.gate != Dtype::none) fine = fine && aligned(e.gate, p.layout_gate, e.gate.row, p.batch, p.align_gate);
  for (int64_t y = 0; y < p.batch; ++y) {
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        float sum = 0;
        for (int64_t l = 0; l < p.k; ++l) {
          sum += element(call.a, p.layout_a, call.lda, y, i, l) * element(call.b, p.layout_b, call.ldb, y, l, j);
        }
        if (p.scale_a) sum *= at(e.scale_a, y, i, j);
        if (p.scale_b) sum *= at(e.scale_b, y, i, j);
        if (p.has_c()) sum += at(e.c, y, i, j);
        if (p.bias != Dtype::none) sum += at(e.bias, y, i, j);
        if (p.gate != Dtype::none) sum *= at(e.gate, y, i, j);
        float* to = &element(call.d, p.layout_d, call.ldd, y, i, j);
        if (to < memory.data() || to >= memory.data() + memory.size()) return false;
        *to = sum;
      }
    }
  }
  return fine;
}

// Every index of a shape, in order.
std::vector<Extents> indices_of(const Extents& shape) {
  std::vector<Extents> all{{}};
  for (int64_t extent : shape) {
    std::vector<Extents> longer;
    for (const Extents& index : all) {
      for (int64_t i = 0; i < extent; ++i) longer.push_back(index), longer.back().push_back(i);
    }
    all = longer;
  }
  return all;
}

TEST(canonical_form_computes_the_same) {
  std::mt19937 random(11);
  auto pick = [&](int low, int high) { return int64_t(std::uniform_int_distribution<int>(low, high)(random)); };
  int folded = 0, transposed = 0, packed = 0, strided_d = 0, looped = 0, vectors = 0;
  for (int round = 0; round < 20000; ++round) {
    const int64_t m = pick(1, 4), n = pick(1, 4), k = pick(1, 4);
    Extents batch;
    for (int64_t rank = pick(0, 3); rank > 0; --rank) batch.push_back(pick(1, 3));
    // An operand's shape: the batch, or the end of it, with extents of 1 here and there.
    auto shape = [&](bool whole, Extents core) {
      Extents lead(batch.begin() + (whole ? 0 : pick(0, int(batch.size()))), batch.end());
      for (int64_t& extent : lead) extent = whole || pick(0, 2) ? extent : 1;
      lead.insert(lead.end(), core.begin(), core.end());
      return lead;
    };
    const bool a_whole = pick(0, 1);
    Buffer a(random, "a", shape(a_whole, {m, k}), true), b(random, "b", shape(!a_whole, {k, n}), true);
    Buffer c(random, "c", shape(false, {m, n}), true), gate(random, "gate", shape(false, {m, n}), true);
    Buffer bias(random, "bias", shape(false, pick(0, 1) ? Extents{1, n} : Extents{m, 1}), true);
    Buffer scale_a(random, "scale_a", shape(false, {m, 1}), true),
        scale_b(random, "scale_b", shape(false, {1, n}), true);
    Buffer out(random, "out", shape(true, {m, n}), true);
    Request request;
    auto give = [&](Role role, const Buffer& x) { request.operands[int(role)] = pick(0, 2) ? nullptr : &x.x; };
    give(Role::c, c), give(Role::bias, bias), give(Role::gate, gate);
    give(Role::scale_a, scale_a), give(Role::scale_b, scale_b);
    auto given = [&](Role role) { return request.at(role) != nullptr; };
    request.operands[int(Role::a)] = &a.x, request.operands[int(Role::b)] = &b.x;
    request.operands[int(Role::out)] = &out.x;

    const std::vector<Extents> indices = indices_of(shape(true, {m, n}));
    std::vector<float> expected;
    for (const Extents& index : indices) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        Extents left = index, right = index;
        left[index.size() - 1] = l, right[index.size() - 2] = l;
        sum += a.at(left) * b.at(right);
      }
      if (given(Role::scale_a)) sum *= scale_a.at(index);
      if (given(Role::scale_b)) sum *= scale_b.at(index);
      if (given(Role::c)) sum += c.at(index);
      if (given(Role::bias)) sum += bias.at(index);
      if (given(Role::gate)) sum *= gate.at(index);
      expected.push_back(sum);
    }

    Call call;
    try {
      call = canonicalise(request);
    } catch (const std::invalid_argument& error) {
      CHECK(!"refused a call that is right");
      std::printf("  %s\n", error.what());
      return;
    }
    const Problem& p = call.problem;
    folded += p.batch == 1 && call.loop.empty() && indices.size() > size_t(m * n);
    transposed += p.transposed;
    packed += p.layout_a == 'x';
    strided_d += p.layout_d == 'x';
    looped += !call.loop.empty();
    vectors += p.scale_a == 'v' || p.scale_b == 'v';
    bool fine = true;
    run_all(call, [&] { fine = compute(call, out.memory) && fine; });
    size_t written = 0;
    for (float value : out.memory) written += value != -777.0f;
    fine = fine && written == expected.size();
    for (size_t i = 0; i < indices.size(); ++i) fine = fine && out.at(indices[i]) == expected[i];
    if (!fine) {
      CHECK(!"the canonical form computes something else");
      std::printf("  round %d: %s batch %d in %d runs (%d, %d, %d) %c%c%c%c\n", round, p.transposed ? "transposed" : "",
                  p.batch, int(call.loop.size()), p.m, p.n, p.k, p.layout_a, p.layout_b, p.layout_c, p.layout_d);
      return;
    }
  }
  // Each of them was met.
  CHECK(folded > 100 && transposed > 100 && packed > 100 && strided_d > 100 && looped > 100 && vectors > 100);
}

TEST(vectors) {
  CHECK(call_of({4}, {4, 5}).out_rank == 1 && call_of({3, 4}, {4}).out_rank == 1 && call_of({4}, {4}).out_rank == 0);
  Call call = call_of({4}, {2, 7, 4, 5});
  CHECK(call.out_rank == 3 && call.out_shape[1] == 7 && call.problem.batch == 14 && call.problem.m == 1);
  call = call_of({2, 7, 3, 4}, {4});
  CHECK(call.out_rank == 3 && call.problem.batch == 1);  // one tall matrix by one vector
}

TEST(batch_of_many_dimensions) {
  Call call = call_of({2, 3, 6, 4}, {2, 3, 4, 5});
  CHECK(call.problem.batch == 6 && call.loop.empty() && call.out_rank == 4);
  call = call_of({2, 3, 6, 4}, {4, 5});
  CHECK(call.problem.batch == 1 && call.problem.m == 36);
  call = call_of({2, 1, 6, 4}, {3, 4, 5});  // a repeats along the inner dimension, b along the outer one
  CHECK(call.problem.batch == 3 && call.loop.size() == 2 && call.loop[1][Role::a] == 24 * 4 &&
        call.loop[1][Role::b] == 0);
  CHECK(call.loop[1][Role::out] == 3 * 30 * 4);
  call = call_of({2, 0, 6, 4}, {4, 5});
  CHECK(call.problem.batch == 0 && call.loop.empty());
}

TEST(lists) {
  const std::vector<void*> left{reinterpret_cast<void*>(0x1000), reinterpret_cast<void*>(0x9000),
                                reinterpret_cast<void*>(0x2008)};
  Operand a = operand("a", {3, 6, 4}, {0, 4, 1}, 0x1000), b = operand("b", {4, 5}), out = operand("out", {3, 6, 5});
  a.list = &left;
  Request request;
  request.lists = true;
  Call call = canonicalise(a, b, nullptr, nullptr, request);
  CHECK(!call.problem.pointers && call.problem.batch == 1 && call.loop.size() == 3);  // the CPU takes one by one
  CHECK(call.loop[1][Role::a] == 0x8000 && call.loop[2][Role::a] == 0x1008 && call.loop[2][Role::b] == 0 &&
        call.loop[2][Role::out] == 2 * 30 * 4);
  a.device = b.device = out.device = {DeviceType::cuda, 0};
  call = canonicalise(a, b, nullptr, nullptr, request);
  CHECK(call.problem.pointers && call.problem.batch == 3 && call.loop.empty() && call.problem.align_a == 3);
  CHECK(call.pointers_a == left && call.pointers_b.size() == 3 && call.pointers_b[2] == b.data);
  CHECK(call.pointers_d.empty() && call.problem.align_d == 2);
  place_result(call, reinterpret_cast<void*>(0x77000));
  CHECK(call.pointers_d.size() == 3 && call.pointers_d[2] == reinterpret_cast<void*>(0x77000 + 2 * 30 * 4));
  call = canonicalise(a, b, nullptr, &out, request);
  CHECK(call.pointers_d.size() == 3 && call.pointers_d[1] == static_cast<char*>(out.data) + 30 * 4);
  request.alpha.value = 0;
  CHECK(canonicalise(a, b, nullptr, &out, request).loop.size() == 3);
  const std::vector<void*> results{reinterpret_cast<void*>(0x50000), reinterpret_cast<void*>(0x51000),
                                   reinterpret_cast<void*>(0x57000)};
  out = operand("out", {3, 6, 5}, {0, 1, 6}, 0x50000);
  out.device = a.device;
  out.list = &results;
  request.alpha.value = 1;
  call = canonicalise(a, b, nullptr, &out, request);
  CHECK(call.problem.transposed && call.pointers_b == left && call.pointers_d == results);
}

TEST(epilogue) {
  Operand a = operand("a", {3, 4}), b = operand("b", {4, 5}), bias = operand("bias", {5}),
          out = operand("out", {3, 5}, {1, 3});
  Operand scale = operand("scale_a", {3}), one = operand("alpha", {1});
  Request request;
  request.operands[int(Role::a)] = &a, request.operands[int(Role::b)] = &b, request.operands[int(Role::bias)] = &bias;
  request.operands[int(Role::scale_a)] = &scale;
  Call call = canonicalise(request);
  CHECK(call.problem.bias_axis == 'n' && call.problem.scale_a == 'v' && !call.problem.scale_b);
  CHECK(call.epilogue.bias.row == 0 && call.epilogue.bias.col == 1 && call.problem.align_bias == 4);
  request.operands[int(Role::out)] = &out;
  call = canonicalise(request);  // transposed: everything changes sides
  CHECK(call.problem.bias_axis == 'm' && call.problem.scale_b == 'v' && !call.problem.scale_a);
  CHECK(call.epilogue.bias.row == 1 && call.epilogue.bias.col == 0 && call.epilogue.scale_b.col == 1);
  request = {};
  request.operands[int(Role::a)] = &a, request.operands[int(Role::b)] = &b, request.operands[int(Role::alpha)] = &one;
  call = canonicalise(request);
  CHECK(call.problem.device_alpha && call.epilogue.alpha.device == one.data);
  request.operands[int(Role::alpha)] = nullptr;
  request.scale_a = 0.5, request.scale_out.value = 3;
  call = canonicalise(request);
  CHECK(call.epilogue.alpha.value == 0.5 && call.problem.scale_out == 'h');
  request.scale_a = 1, request.scale_out.value = 1;
  CHECK(canonicalise(request).problem.plain_sum && !canonicalise(request).problem.scale_out);
  request.scale_a = 0;
  CHECK(canonicalise(request).problem.empty_product);
}

// ------------------------------------------------------------------------------------------------ messages

TEST(gates_and_values) {
  Request r;
  r.gated = true, r.activation = Activation::silu;
  const auto of = [&](int64_t k, bool along_k) {
    const Operand b = along_k ? operand("b", {k, 12}, {1, k}) : operand("b", {k, 12});
    return canonicalise(operand("a", {3, k}), b, nullptr, nullptr, r);
  };
  Call call = of(8, true);
  CHECK(call.problem.n == 6 && call.problem.columns_of_b() == 12 && call.ldb == 8 && call.pairs.b == 6 * 8);
  r.interleaved = true;
  call = of(8, true);  // rows of gates, and rows of values
  CHECK(call.problem.layout_b == 'n' && call.ldb == 16 && call.pairs.b == 8 && call.problem.align_b == 4);
  call = of(6, true);
  CHECK(call.ldb == 12 && call.problem.align_b == 3);  // bytes of a row: values begin there
  call = of(8, false);
  CHECK(call.problem.layout_b == 'x' && call.pairs.b == 1 && call.b.col == 1);
}

TEST(messages) {
  using Value = ArgumentError;
  const Operand a = operand("a", {3, 4}), b = operand("b", {4, 5});
  auto with = [&](const Operand* c, const Operand* out, Request options = {}) {
    return message<Value>([&] { canonicalise(a, b, c, out, options); });
  };
  CHECK(message<Value>([] { call_of({}, {3, 4}); }) == "gemm: a is (); expected at least 1 dimension");
  CHECK(message<Value>([] { call_of({3, 4}, {5, 6}); }) ==
        "gemm: a is (3, 4) but b is (5, 6); inner extents must agree");
  CHECK(message<Value>([] { call_of({2, 3, 4}, {3, 4, 6}); }) ==
        "gemm: a is (2, 3, 4) but b is (3, 4, 6); batch extents must agree or be 1");
  CHECK(message<Value>([] { call_of({int64_t(1) << 31, 4}, {4, 6}); }) ==
        "gemm: a is (2147483648, 4); extents above 2147482624 are not supported");
  CHECK(call_of({(int64_t(1) << 31) - 1024, 4}, {4, 6}).problem.m == 2147482624);
  Operand other = operand("b", {4, 5}, {}, 0, Dtype::bf16);
  CHECK(message<ArgumentTypeError>([&] { canonicalise(a, other, nullptr, nullptr, {}); }) ==
        "gemm: a is f32 but b is bf16; f32 goes with f32");
  Operand far = b;
  far.device = {DeviceType::cuda, 2};
  CHECK(message<Value>([&] { check_same_device(a, far); }) == "gemm: a is on cpu but b is on cuda:2");
  Operand out = operand("out", {3, 6});
  CHECK(with(nullptr, &out) == "gemm: out is (3, 6); expected (3, 5)");
  out = operand("out", {3, 5});
  out.readonly = true;
  CHECK(with(nullptr, &out) == "gemm: out is read-only");
  out.readonly = false;
  Request options;
  options.out_dtype = Dtype::f16;
  CHECK(message<ArgumentTypeError>([&] { canonicalise(a, b, nullptr, &out, options); }) ==
        "gemm: out is f32 but out_dtype is f16");
  out = operand("out", {3, 5}, {0, 1});
  CHECK(with(nullptr, &out) == "gemm: out overlaps itself: it has a stride of 0 or interleaved rows");
  Operand c = operand("c", {5, 3});
  CHECK(with(&c, nullptr) == "gemm: c is (5, 3); expected (3, 5)");
  options = {};
  options.has_beta = true;
  CHECK(with(nullptr, nullptr, options) == "gemm: beta is given but c is not");
  options = {};
  options.compute = "f16";
  CHECK(with(nullptr, nullptr, options) == "gemm: compute='f16' is not one of 'f32', 'tf32', '3xtf32' for f32 inputs");
  CHECK(to_string(Device{}) == "cpu" && to_string({DeviceType::cuda, 3}) == "cuda:3");
}

}  // namespace
