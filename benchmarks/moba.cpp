// SPDX-License-Identifier: Apache-2.0
// Claims: block attention is faster than full attention by about what it leaves out.
//   claim moba_ideal_fraction_16k_b512k3   16384 tokens, blocks of 512, 3 per query
//   claim moba_ideal_fraction_16k_b128k8   16384 tokens, blocks of 128, 8 per query
//   claim moba_speedup_32k_b128k8          32768 tokens: full attention / block attention
//   claim moba_hot_block_ratio             every query chooses block 0 too / random choices
// Method: one head of 128, fp32, causal, one thread, forward and backward, processor time, variants
// in turn (harness.h). The fractions are full attention of this library / block attention, divided
// by the same ratio of floating point operations (docs/concepts/moba.md): gate, pooling and lists
// count against them. `bench_moba N` runs one round with N tokens, a look at a small size.
#include "benchmarks/harness.h"

#include <muster/kernels/moba.h>

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace muster::kernels;  // NOLINT(google-build-using-namespace): a program, not a header

using muster::bench::must;
using muster::bench::Series;
using Seconds = std::span<const double>;

constexpr int kDim = 128;

// Uniform in [-sqrt(3), sqrt(3)]: variance 1.
std::vector<float> random_values(std::int64_t count, std::uint32_t seed) {
  std::vector<float> result(static_cast<std::size_t>(count));
  std::uint32_t state = seed;
  for (float& x : result) {
    state = state * 1664525U + 1013904223U;
    x = (static_cast<float>(state >> 8U) / 16777216.0F - 0.5F) * 3.4641F;
  }
  return result;
}

struct Tensors {
  explicit Tensors(std::int64_t tokens)
      : cu{0, tokens},
        q(random_values(tokens * kDim, 1)),
        k(random_values(tokens * kDim, 2)),
        v(random_values(tokens * kDim, 3)),
        dout(random_values(tokens * kDim, 4)),
        out(q.size()),
        dq(q.size()),
        dk(q.size()),
        dv(q.size()),
        lse(static_cast<std::size_t>(tokens)) {
    problem.heads = 1;
    problem.head_dim = kDim;
    problem.cu_q = cu;
  }

  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  // The first keys point where every query points a little.
  void make_hot(std::int64_t block) {
    for (std::size_t i = 0; i < q.size(); i += kDim) {
      q[i] = 2;
    }
    for (std::int64_t key = 0; key < block; ++key) {
      k[static_cast<std::size_t>(key * kDim)] = 8;
    }
  }

  std::vector<std::int64_t> cu;
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<float> dout;
  std::vector<float> out;
  std::vector<float> dq;
  std::vector<float> dk;
  std::vector<float> dv;
  std::vector<float> lse;
  AttentionProblem problem;
  MobaSelection selection;
};

void run_full(Tensors& t) {
  must(attention_forward(
      t.problem, {{t.q.data()}, {t.k.data()}, {t.v.data()}}, {{t.out.data()}, t.lse.data()}));
  must(attention_backward(
      t.problem,
      {{t.q.data()}, {t.k.data()}, {t.v.data()}},
      {{t.out.data()},
       t.lse.data(),
       {t.dout.data()},
       nullptr,
       {t.dq.data()},
       {t.dk.data()},
       {t.dv.data()}}));
}

void run_moba(Tensors& t, const MobaOptions& options) {
  must(moba_forward(
      t.problem,
      options,
      {{t.q.data()}, {t.k.data()}, {t.v.data()}},
      {},
      {{t.out.data()}, t.lse.data()},
      t.selection,
      {}));
  must(moba_backward(
      t.problem,
      options,
      {{t.q.data()}, {t.k.data()}, {t.v.data()}},
      {{t.out.data()},
       t.lse.data(),
       {t.dout.data()},
       nullptr,
       {t.dq.data()},
       {t.dk.data()},
       {t.dv.data()}},
      t.selection));
}

double flops(const Tensors& t, const MobaOptions* options) {
  const auto of = [&](bool backward) {
    return options == nullptr ? attention_flops(t.problem, backward)
                              : moba_flops(t.problem, *options, backward);
  };
  return of(false) + of(true);
}

const MobaOptions kLarge{512, 3};
const MobaOptions kSmall{128, 8};

void fraction_claims(std::int64_t tokens, double budget_s) {
  Tensors t(tokens);
  Tensors hot(tokens);
  hot.make_hot(kSmall.block);
  const double large_ideal = flops(t, nullptr) / flops(t, &kLarge);
  const double small_ideal = flops(t, nullptr) / flops(t, &kSmall);
  Series series(std::to_string(tokens) + " tokens", {.budget_s = budget_s}, Series::Time::kThread);
  const auto full = series.add("full", [&] { run_full(t); });
  const auto large = series.add("blocks of 512, 3", [&] { run_moba(t, kLarge); });
  const auto small = series.add("blocks of 128, 8", [&] { run_moba(t, kSmall); });
  const auto crowded = series.add("blocks of 128, 8, hot", [&] { run_moba(hot, kSmall); });
  series.add_figure({"moba_ideal_fraction_16k_b512k3", 0.05}, [=](Seconds s) {
    return s[full] / s[large] / large_ideal;
  });
  series.add_figure({"moba_ideal_fraction_16k_b128k8", 0.05}, [=](Seconds s) {
    return s[full] / s[small] / small_ideal;
  });
  series.add_figure(
      {"moba_hot_block_ratio", 0.05}, [=](Seconds s) { return s[crowded] / s[small]; });
  series.run();
  std::printf("%s", series.report().c_str());
}

void long_sequence_claim() {
  Tensors t(32768);
  Series series("32768 tokens", {.budget_s = 90, .rounds_min = 6}, Series::Time::kThread);
  const auto full = series.add("full", [&] { run_full(t); });
  const auto small = series.add("blocks of 128, 8", [&] { run_moba(t, kSmall); });
  series.add_figure(
      {.name = "moba_speedup_32k_b128k8", .tolerance = 0.05, .digits = 2},
      [=](Seconds s) { return s[full] / s[small]; });
  series.run();
  std::printf("%s", series.report().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 1) {
    fraction_claims(std::atoll(argv[1]), 0);
    return 0;
  }
  fraction_claims(16384, 50);
  long_sequence_claim();
  return 0;
}
