// SPDX-License-Identifier: Apache-2.0
// Claims: block attention is faster than full attention by about what it leaves out.
//   claim moba_ideal_fraction_16k_b512k3   16384 tokens, blocks of 512, 3 per query
//   claim moba_ideal_fraction_16k_b128k8   16384 tokens, blocks of 128, 8 per query
//   claim moba_speedup_32k_b128k8          32768 tokens: full attention / block attention
//   claim moba_hot_block_ratio             every query chooses block 0 too / random choices
// Method: one head of 128, fp32, causal, one thread, forward and backward, processor time (the host
// is shared). The fractions are full attention of this library / block attention, divided by the
// same ratio of floating point operations (docs/concepts/moba.md): gate, pooling and lists count
// against them. Each round runs every variant once; the claims are medians of the ratios within a
// round. `bench_moba N` runs one round with N tokens, a look at a small size.
#include <muster/kernels/moba.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

namespace {

using namespace muster::kernels;  // NOLINT(google-build-using-namespace): a program, not a header

constexpr int kDim = 128;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

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

void require(const muster::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "bench_moba: %s\n", status.to_string().c_str());
    std::exit(1);  // NOLINT(concurrency-mt-unsafe)
  }
}

struct Times {
  double forward{0};
  double backward{0};

  [[nodiscard]] double sum() const { return forward + backward; }
};

Times run_full(Tensors& t) {
  const double start = processor_seconds();
  require(attention_forward(
      t.problem, {{t.q.data()}, {t.k.data()}, {t.v.data()}}, {{t.out.data()}, t.lse.data()}));
  const double middle = processor_seconds();
  require(attention_backward(
      t.problem,
      {{t.q.data()}, {t.k.data()}, {t.v.data()}},
      {{t.out.data()},
       t.lse.data(),
       {t.dout.data()},
       nullptr,
       {t.dq.data()},
       {t.dk.data()},
       {t.dv.data()}}));
  return {middle - start, processor_seconds() - middle};
}

Times run_moba(Tensors& t, const MobaOptions& options) {
  const double start = processor_seconds();
  require(moba_forward(
      t.problem,
      options,
      {{t.q.data()}, {t.k.data()}, {t.v.data()}},
      {},
      {{t.out.data()}, t.lse.data()},
      t.selection,
      {}));
  const double middle = processor_seconds();
  require(moba_backward(
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
  return {middle - start, processor_seconds() - middle};
}

double flops(const Tensors& t, const MobaOptions* options) {
  const auto of = [&](bool backward) {
    return options == nullptr ? attention_flops(t.problem, backward)
                              : moba_flops(t.problem, *options, backward);
  };
  return of(false) + of(true);
}

void show(const char* name, const Tensors& t, const Times& times, const MobaOptions* options) {
  std::printf(
      "%6lld tokens  %-12s  forward %8.1f ms  backward %8.1f ms  %6.1f GFLOP/s\n",
      static_cast<long long>(t.cu.back()),
      name,
      1e3 * times.forward,
      1e3 * times.backward,
      flops(t, options) / times.sum() * 1e-9);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

const MobaOptions kLarge{512, 3};
const MobaOptions kSmall{128, 8};

struct Ratios {
  std::vector<double> large;
  std::vector<double> small;
  std::vector<double> hot;
};

void run_round(Tensors& t, Tensors& hot, Ratios& ratios) {
  const Times full = run_full(t);
  const Times large = run_moba(t, kLarge);
  const Times small = run_moba(t, kSmall);
  const Times hot_small = run_moba(hot, kSmall);
  show("full", t, full, nullptr);
  show("512, 3", t, large, &kLarge);
  show("128, 8", t, small, &kSmall);
  show("128, 8 hot", hot, hot_small, &kSmall);
  const double full_flops = flops(t, nullptr);
  ratios.large.push_back(full.sum() / large.sum() / (full_flops / flops(t, &kLarge)));
  ratios.small.push_back(full.sum() / small.sum() / (full_flops / flops(t, &kSmall)));
  ratios.hot.push_back(hot_small.sum() / small.sum());
}

double speedup_of_long_sequence() {
  Tensors t(32768);
  run_moba(t, kSmall);
  const Times before = run_moba(t, kSmall);
  const Times full = run_full(t);
  const Times after = run_moba(t, kSmall);
  show("full", t, full, nullptr);
  show("128, 8", t, after, &kSmall);
  return 2 * full.sum() / (before.sum() + after.sum());
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 16384;
  const int rounds = argc > 1 ? 1 : 3;
  Tensors t(tokens);
  Tensors hot(tokens);
  hot.make_hot(kSmall.block);
  run_moba(t, kLarge);  // pages and caches
  Ratios ratios;
  for (int round = 0; round < rounds; ++round) {
    run_round(t, hot, ratios);
  }
  if (argc > 1) {
    std::printf("fractions %.3f %.3f hot %.3f\n", ratios.large[0], ratios.small[0], ratios.hot[0]);
    return 0;
  }
  const double speedup = speedup_of_long_sequence();
  std::printf("claim moba_ideal_fraction_16k_b512k3 %.3f\n", median(ratios.large));
  std::printf("claim moba_ideal_fraction_16k_b128k8 %.3f\n", median(ratios.small));
  std::printf("claim moba_speedup_32k_b128k8 %.2f\n", speedup);
  std::printf("claim moba_hot_block_ratio %.3f\n", median(ratios.hot));
  return 0;
}
