// SPDX-License-Identifier: Apache-2.0
// Arguments of exact attention that break a rule: a Status that names them, and nothing written.
#include "tests/unit/kernels/attention/case.h"

#include <cstdlib>
#include <string_view>

namespace muster::kernels {
namespace {

using test::AttentionRun;

// The message names `argument` and `rule`, and no output was touched.
void expect_refused(
    const AttentionProblem& problem, const std::string& argument, const std::string& rule) {
  AttentionRun<float> run({.queries = {4, 4}, .heads = 4, .kv_heads = 2, .head_dim = 16});
  const Status forward = attention_forward(
      problem,
      {{run.q.data()}, {run.k.data()}, {run.v.data()}},
      {{run.out.data()}, run.lse.data()},
      {run.max_logit, run.nonfinite_rows});
  const Status backward = attention_backward(
      problem,
      {{run.q.data()}, {run.k.data()}, {run.v.data()}},
      {{run.out.data()},
       run.lse.data(),
       {run.dout.data()},
       nullptr,
       {run.dq.data()},
       {run.dk.data()},
       {run.dv.data()}});
  for (const Status& status : {forward, backward}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(argument), std::string::npos) << status.to_string();
    EXPECT_NE(status.message().find(rule), std::string::npos) << status.to_string();
  }
  for (auto* tensor : {&run.out, &run.dq, &run.dk, &run.dv}) {
    for (std::size_t i = 0; i < tensor->size(); ++i) {
      ASSERT_EQ((*tensor)[i], 77.0F);
    }
  }
  EXPECT_EQ(run.max_logit, std::vector<float>(4, 77.0F));
}

const std::vector<std::int64_t> kLengths{0, 4, 8};

AttentionProblem sound() {
  AttentionProblem p;
  p.heads = 4;
  p.kv_heads = 2;
  p.head_dim = 16;
  p.cu_q = kLengths;
  return p;
}

TEST(FlashArguments, HeadsMustBeAMultipleOfKvHeads) {
  AttentionProblem p = sound();
  p.kv_heads = 3;
  expect_refused(p, "kv_heads", "must divide heads 4, got 3");
  p.kv_heads = -1;
  expect_refused(p, "kv_heads", "must divide");
  p = sound();
  p.heads = 0;
  expect_refused(p, "heads", "must be at least 1, got 0");
}

TEST(FlashArguments, HeadDimensionsOfEightTo256AreTaken) {
  AttentionProblem p = sound();
  for (const int head_dim : {0, 7, 257, -8}) {
    p.head_dim = head_dim;
    expect_refused(p, "head_dim", "must be between 8 and 256");
  }
}

TEST(FlashArguments, LengthsMustNotDecreaseAndBeginWithZero) {
  AttentionProblem p = sound();
  const std::vector<std::int64_t> decreasing{0, 6, 4};
  p.cu_q = decreasing;
  expect_refused(p, "cu_q[2]", "must not be less than cu_q[1] = 6, got 4");
  p = sound();
  p.cu_k = decreasing;
  expect_refused(p, "cu_k[2]", "must not be less than cu_k[1] = 6, got 4");
  const std::vector<std::int64_t> late{1, 4, 8};
  p.cu_k = late;
  expect_refused(p, "cu_k", "must begin with 0, got 1");
  const std::vector<std::int64_t> fewer{0, 8};
  p.cu_k = fewer;
  expect_refused(p, "cu_k", "must describe the 2 sequences of cu_q, got 1");
  p = sound();
  p.cu_q = {};
  expect_refused(p, "cu_q", "at least a 0");
  const std::vector<std::int64_t> long_sequence{0, 4, std::int64_t{1} << 33};
  p.cu_q = long_sequence;
  expect_refused(p, "cu_q: sequence 1", "at most 2^31 - 1 tokens");
}

TEST(FlashArguments, ScaleAndSoftcapMustBeNumbers) {
  AttentionProblem p = sound();
  p.scale = std::numeric_limits<double>::quiet_NaN();
  expect_refused(p, "scale", "finite");
  p = sound();
  p.softcap = -1;
  expect_refused(p, "softcap", "not negative");
  p = sound();
  p.threads = 0;
  expect_refused(p, "threads", "must be between 1 and 1024, got 0");
  p.threads = 1 << 20;
  expect_refused(p, "threads", "must be between 1 and 1024, got 1048576");
}

TEST(FlashArguments, StridesWithWhichRowsOverlapAreRefused) {
  AttentionRun<float> run({.queries = {4, 4}, .heads = 4, .kv_heads = 2, .head_dim = 16});
  const auto refuses = [&](AttentionInput q, AttentionOutput out, const char* what) {
    const Status status =
        attention_forward(sound(), {q, {run.k.data()}, {run.v.data()}}, {out, run.lse.data()});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(what), std::string::npos) << status.to_string();
    EXPECT_EQ(run.out[0], 77.0F);
  };
  refuses(
      {run.q.data(), 64, 8},
      {run.out.data()},
      "q must have rows that do not overlap, got token_stride 64 and head_stride 8");
  refuses({run.q.data()}, {run.out.data(), 32, 16}, "out must have rows that do not overlap");
  refuses({run.q.data(), -64, 16}, {run.out.data()}, "q must not have a negative stride");
  refuses(
      {run.q.data(), INT64_MAX / 4, 16},
      {run.out.data()},
      "q must have strides that do not overflow");
  refuses({nullptr}, {run.out.data()}, "q must not be null");
  refuses({reinterpret_cast<const char*>(run.q.data()) + 1}, {run.out.data()}, "q must be aligned");
}

TEST(FlashArguments, StatisticsTakeOneEntryForEachHeadOrNone) {
  AttentionRun<float> run({.queries = {4, 4}, .heads = 4, .kv_heads = 2, .head_dim = 16});
  std::vector<float> three(3);
  const Status status = attention_forward(
      sound(),
      {{run.q.data()}, {run.k.data()}, {run.v.data()}},
      {{run.out.data()}, run.lse.data()},
      {three, {}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(
      status.message().find("max_logit must have 4 elements or none, got 3"), std::string::npos)
      << status.to_string();
  EXPECT_EQ(run.out[0], 77.0F);
}

TEST(FlashArguments, NullIsFineWhereThereAreNoTokens) {
  AttentionProblem p = sound();
  const std::vector<std::int64_t> empty{0, 0, 0};
  p.cu_q = empty;
  std::vector<float> max_logit(4);
  EXPECT_TRUE(attention_forward(p, {}, {}, {max_logit, {}}).ok());
  EXPECT_EQ(max_logit[0], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(attention_backward(p, {}, {}).ok());
  const std::vector<std::int64_t> none{0};
  p.cu_q = none;
  EXPECT_TRUE(attention_forward(p, {}, {}).ok());
}

TEST(FlashArguments, KeysNobodyAsksAboutGetZeroGradients) {
  AttentionRun<float> run({.queries = {0, 2}, .keys = {9, 2}, .head_dim = 8});
  run.run();
  for (std::size_t i = 0; i < 9 * 8; ++i) {
    EXPECT_EQ(run.dk[i], 0.0F);
    EXPECT_EQ(run.dv[i], 0.0F);
  }
}

TEST(FlashArguments, OffsetsBeyondTwoToThe31AreFollowed) {
  // Two tokens whose rows lie 2^31 + 2^20 elements apart, in address space that is mostly never
  // touched.
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + (std::int64_t{1} << 20);
  constexpr std::size_t kBytes = (static_cast<std::size_t>(kStride) + 64) * sizeof(float);
  void* map = mmap(
      nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  auto* far = static_cast<float*>(map);
  AttentionRun<float> run({.queries = {2}, .head_dim = 8});
  run.run();
  std::vector<float> lse(2);
  std::copy_n(run.k.data(), 8, far);
  std::copy_n(run.k.data() + 8, 8, far + kStride);
  const Status status = attention_forward(
      run.problem(),
      {{run.q.data()}, {far, kStride, 8}, {run.v.data()}},
      {{far + 16, kStride, 8}, lse.data()});
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (std::size_t d = 0; d < 8; ++d) {
    EXPECT_EQ(far[16 + d], run.out[d]);
    EXPECT_EQ(far[static_cast<std::size_t>(kStride) + 16 + d], run.out[8 + d]);
  }
  munmap(map, kBytes);
}

TEST(FlashPath, IsOneOfTheFourAndTheOneAskedFor) {
  const std::string_view path = attention_path(DType::kFloat32);
  const std::string_view half = attention_path(DType::kBFloat16);
  EXPECT_TRUE(path == "avx512" || path == "avx2" || path == "baseline") << path;
  EXPECT_TRUE(half == path || half == "avx512_bf16") << half;
  const char* wish = std::getenv("MUSTER_KERNELS_ISA");
  if (wish != nullptr && *wish != 0) {
    EXPECT_EQ(half, path);
  }
}

TEST(FlashFlops, CountVisiblePairs) {
  AttentionProblem p = sound();
  EXPECT_EQ(attention_flops(p, false), 4.0 * 16 * 4 * (10 + 10));
  EXPECT_EQ(attention_flops(p, true), 10.0 * 16 * 4 * (10 + 10));
  p.causal = false;
  EXPECT_EQ(attention_flops(p, false), 4.0 * 16 * 4 * 32);
  const std::vector<std::int64_t> fewer{0, 2, 8};
  p = sound();
  p.cu_k = fewer;  // 4 queries of 2 keys see 0, 0, 1, 2; 4 of 6 see 3, 4, 5, 6
  EXPECT_EQ(attention_flops(p, false), 4.0 * 16 * 4 * (3 + 18));
}

}  // namespace
}  // namespace muster::kernels
