// SPDX-License-Identifier: Apache-2.0
// Claims: exact attention runs near the peak of the machine, in bf16 well above that of fp32, and
// its maximum logits are free.
//   claim attention_fwd_peak_fraction    forward, fp32, flops per second over those of the FMA loop
//   claim attention_bwd_peak_fraction    the same backward
//   claim attention_bf16_speedup         fp32 over bf16, forward and backward together
//   claim max_logit_overhead_percent     forward with statistics over without, minus 1
//   claim attention_two_thread_scaling   one thread over two, forward and backward, wall time
// Method: one causal sequence of 8192 tokens, head dimension 128, one thread; flops are those of
// visible pairs, 4 d (forward) and 10 d (backward) each. Variants take turns beside an FMA loop of
// the same instruction set (harness.h). Single threads are measured by their CPU time; scaling
// needs wall time.
#include "benchmarks/fma_peak.h"

#include <muster/kernels/attention.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using muster::DType;
using muster::bench::cpu_seconds;
using muster::bench::median;
using muster::bench::must;
using muster::bench::peak_flops_per_second;
using muster::bench::run_fma_loop;
using muster::bench::Series;
using muster::kernels::AttentionProblem;
using muster::kernels::AttentionStatistics;

using Seconds = std::span<const double>;

// ---- the work ------------------------------------------------------------------------------

// Tensors of 4-byte elements; bf16 uses half of each.
struct Work {
  Work(DType type, std::int64_t tokens, int heads, int head_dim, int threads)
      : cu{0, tokens},
        tensors(8, std::vector<float>(static_cast<std::size_t>(tokens * heads * head_dim))),
        lse(static_cast<std::size_t>(tokens * heads)),
        max_logit(static_cast<std::size_t>(heads)),
        nonfinite_rows(static_cast<std::size_t>(heads)) {
    problem.type = type;
    problem.heads = heads;
    problem.head_dim = head_dim;
    problem.cu_q = cu;
    problem.threads = threads;
    std::uint32_t state = 1;
    for (std::size_t t = 0; t < 4; ++t) {
      for (std::size_t i = 0; i < tensors[t].size(); ++i) {
        state = state * 1664525U + 1013904223U;
        const float value = static_cast<float>(state >> 8U) / 4194304.0F - 2.0F;
        if (type == DType::kBFloat16) {
          std::uint32_t bits = 0;
          std::memcpy(&bits, &value, sizeof(bits));
          const auto half = static_cast<std::uint16_t>(bits >> 16U);
          std::memcpy(reinterpret_cast<char*>(tensors[t].data()) + 2 * i, &half, sizeof(half));
        } else {
          tensors[t][i] = value;
        }
      }
    }
  }

  void forward(bool statistics) {
    must(muster::kernels::attention_forward(
        problem,
        {{tensors[0].data()}, {tensors[1].data()}, {tensors[2].data()}},
        {{tensors[4].data()}, lse.data()},
        statistics ? AttentionStatistics{max_logit, nonfinite_rows} : AttentionStatistics{}));
  }

  void backward() {
    must(muster::kernels::attention_backward(
        problem,
        {{tensors[0].data()}, {tensors[1].data()}, {tensors[2].data()}},
        {{tensors[4].data()},
         lse.data(),
         {tensors[3].data()},
         nullptr,
         {tensors[5].data()},
         {tensors[6].data()},
         {tensors[7].data()}}));
  }

  std::vector<std::int64_t> cu;
  std::vector<std::vector<float>> tensors;  // q, k, v, dout, out, dq, dk, dv
  std::vector<float> lse;
  std::vector<float> max_logit;
  std::vector<std::int64_t> nonfinite_rows;
  AttentionProblem problem;
};

double seconds_of(const std::function<void()>& work) {
  const double begin = cpu_seconds();
  work();
  return cpu_seconds() - begin;
}

void show(const Series& series) {
  std::printf("%s", series.report().c_str());
  std::fflush(stdout);
}

void peak_claims(std::int64_t tokens) {
  Work floats(DType::kFloat32, tokens, 1, 128, 1);
  Work halves(DType::kBFloat16, tokens, 1, 128, 1);
  const double forward_flops = attention_flops(floats.problem, false);
  const double backward_flops = attention_flops(floats.problem, true);
  const double fma_flops = run_fma_loop();
  std::printf(
      "fp32 runs %s, bf16 %s\n",
      muster::kernels::attention_path(DType::kFloat32),
      muster::kernels::attention_path(DType::kBFloat16));
  Series series("attention near the peak", {.budget_s = 30}, Series::Time::kThread);
  const auto fma = series.add("FMA loop", [] { run_fma_loop(); });
  const auto f = series.add("fp32 forward", [&] { floats.forward(true); });
  const auto b = series.add("fp32 backward", [&] { floats.backward(); });
  const auto hf = series.add("bf16 forward", [&] { halves.forward(true); });
  const auto hb = series.add("bf16 backward", [&] { halves.backward(); });
  series.add_figure({"attention_fwd_peak_fraction", 0.03}, [=](Seconds s) {
    return forward_flops / s[f] * s[fma] / fma_flops;
  });
  series.add_figure({"attention_bwd_peak_fraction", 0.03}, [=](Seconds s) {
    return backward_flops / s[b] * s[fma] / fma_flops;
  });
  series.add_figure(
      {"attention_bf16_speedup", 0.03}, [=](Seconds s) { return (s[f] + s[b]) / (s[hf] + s[hb]); });
  series.run();
  show(series);
}

void statistics_claim() {
  Work work(DType::kFloat32, 1024, 2, 128, 1);
  Series series("statistics of attention", {.budget_s = 15}, Series::Time::kThread);
  const auto with = series.add("forward with statistics", [&] { work.forward(true); });
  const auto without = series.add("forward without", [&] { work.forward(false); });
  series.add_figure(
      {.name = "max_logit_overhead_percent", .tolerance = 0.5, .is_relative = false, .digits = 2},
      [=](Seconds s) { return 100 * (s[with] / s[without] - 1); });
  series.run();
  show(series);
}

void scaling_claim(std::int64_t tokens) {
  Work one(DType::kFloat32, tokens, 1, 128, 1);
  Work two(DType::kFloat32, tokens, 1, 128, 2);
  Series series("threads of attention", {.budget_s = 15}, Series::Time::kWall);
  const auto run = [](Work& work) {
    return [&work] {
      work.forward(true);
      work.backward();
    };
  };
  const auto alone = series.add("one thread", run(one));
  const auto both = series.add("two threads", run(two));
  series.add_figure(
      {"attention_two_thread_scaling", 0.05}, [=](Seconds s) { return s[alone] / s[both]; });
  series.run();
  show(series);
}

// Fractions of the peak at other shapes, for docs/concepts/attention.md.
void profile() {
  std::printf(
      "%-6s %6s %5s %5s %9s %9s\n", "type", "tokens", "heads", "dim", "forward", "backward");
  for (const auto type : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto& [tokens, heads, dim] :
         {std::tuple{128, 4, 32}, {128, 4, 64}, {1024, 2, 64}, {1024, 2, 128}, {2048, 1, 256}}) {
      Work work(type, tokens, heads, dim, 1);
      std::vector<double> forward;
      std::vector<double> backward;
      for (int round = 0; round < 9; ++round) {
        const double peak = peak_flops_per_second();
        const double flops = attention_flops(work.problem, false);
        const auto repeats = static_cast<int>(5e8 / flops) + 1;  // as a training step would: warm
        const auto rate = [&](const std::function<void()>& call) {
          const double seconds = seconds_of([&] {
            for (int i = 0; i < repeats; ++i) {
              call();
            }
          });
          return flops * repeats / seconds / peak;
        };
        forward.push_back(rate([&] { work.forward(true); }));
        backward.push_back(2.5 * rate([&] { work.backward(); }));
      }
      const char* name = type == DType::kFloat32 ? "fp32" : "bf16";
      std::printf(
          "%-6s %6d %5d %5d %9.3f %9.3f\n",
          name,
          tokens,
          heads,
          dim,
          median(forward),
          median(backward));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool wants_profile = argc > 1 && std::string_view(argv[1]) == "profile";
  if (wants_profile) {
    profile();
    return 0;
  }
  const std::int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 8192;
  peak_claims(tokens);
  statistics_claim();
  scaling_claim(tokens / 2);
  return 0;
}
