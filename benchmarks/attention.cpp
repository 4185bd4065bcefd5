// SPDX-License-Identifier: Apache-2.0
// Claims: exact attention runs near the peak of the machine, in bf16 well above that of fp32, and
// its maximum logits are free.
//   claim attention_fwd_peak_fraction    forward, fp32, flops per second over those of the FMA loop
//   claim attention_bwd_peak_fraction    the same backward
//   claim attention_bf16_speedup         fp32 over bf16, forward and backward together
//   claim max_logit_overhead_percent     forward with statistics over without, minus 1
//   claim attention_two_thread_scaling   one thread over two, forward and backward, wall time
// Method: one causal sequence of 8192 tokens, head dimension 128, one thread; flops are those of
// visible pairs, 4 d (forward) and 10 d (backward) each. Each round runs every variant once beside
// an FMA loop of the same instruction set; claims are medians of ratios within a round. Single
// threads are measured by their CPU time: hosts are shared. Scaling needs wall time: fastest of all
// rounds.
#include "benchmarks/fma_peak.h"

#include <muster/kernels/attention.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using muster::DType;
using muster::bench::cpu_seconds;
using muster::bench::median;
using muster::bench::peak_flops_per_second;
using muster::kernels::AttentionProblem;
using muster::kernels::AttentionStatistics;

constexpr int kRounds = 7;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
    check(muster::kernels::attention_forward(
        problem,
        {{tensors[0].data()}, {tensors[1].data()}, {tensors[2].data()}},
        {{tensors[4].data()}, lse.data()},
        statistics ? AttentionStatistics{max_logit, nonfinite_rows} : AttentionStatistics{}));
  }

  void backward() {
    check(muster::kernels::attention_backward(
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

  static void check(const muster::Status& status) {
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.to_string().c_str());
      std::exit(1);
    }
  }

  std::vector<std::int64_t> cu;
  std::vector<std::vector<float>> tensors;  // q, k, v, dout, out, dq, dk, dv
  std::vector<float> lse;
  std::vector<float> max_logit;
  std::vector<std::int64_t> nonfinite_rows;
  AttentionProblem problem;
};

double seconds_of(double (*clock)(), const std::function<void()>& work) {
  const double begin = clock();
  work();
  return clock() - begin;
}

void peak_claims(std::int64_t tokens) {
  Work floats(DType::kFloat32, tokens, 1, 128, 1);
  Work halves(DType::kBFloat16, tokens, 1, 128, 1);
  const double forward_flops = attention_flops(floats.problem, false);
  const double backward_flops = attention_flops(floats.problem, true);
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> speedup;
  std::vector<double> peaks;
  for (int round = 0; round <= kRounds; ++round) {
    const double peak = peak_flops_per_second();
    const double f = seconds_of(cpu_seconds, [&] { floats.forward(true); });
    const double b = seconds_of(cpu_seconds, [&] { floats.backward(); });
    const double hf = seconds_of(cpu_seconds, [&] { halves.forward(true); });
    const double hb = seconds_of(cpu_seconds, [&] { halves.backward(); });
    if (round > 0) {  // the first touches fresh memory
      peaks.push_back(peak);
      forward.push_back(forward_flops / f / peak);
      backward.push_back(backward_flops / b / peak);
      speedup.push_back((f + b) / (hf + hb));
    }
  }
  std::printf(
      "FMA loop %.0f GFLOP/s; fp32 runs %s, bf16 %s\n",
      median(peaks) / 1e9,
      muster::kernels::attention_path(DType::kFloat32),
      muster::kernels::attention_path(DType::kBFloat16));
  std::printf("claim attention_fwd_peak_fraction %.3f\n", median(forward));
  std::printf("claim attention_bwd_peak_fraction %.3f\n", median(backward));
  std::printf("claim attention_bf16_speedup %.2f\n", median(speedup));
}

void statistics_claim() {
  Work work(DType::kFloat32, 1024, 2, 128, 1);
  std::vector<double> ratios;
  for (int round = 0; round <= 10 * kRounds; ++round) {
    double with = 0;
    double without = 0;
    for (int half = 0; half < 2; ++half) {  // either goes first every other time
      const bool first = (round + half) % 2 == 0;
      (first ? with : without) = seconds_of(cpu_seconds, [&] { work.forward(first); });
    }
    if (round > 0) {
      ratios.push_back(with / without);
    }
  }
  std::printf("claim max_logit_overhead_percent %.2f\n", 100 * (median(ratios) - 1));
}

double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Seconds {
  double wall{1e9};
  double busiest{1e9};  // CPU time of the thread that had most
};

void scaling_claim(std::int64_t tokens) {
  Work one(DType::kFloat32, tokens, 1, 128, 1);
  Work two(DType::kFloat32, tokens, 1, 128, 2);
  Seconds of_one;
  Seconds of_two;
  for (int round = 0; round <= 2 * kRounds; ++round) {
    for (auto [work, best] : {std::pair{&one, &of_one}, std::pair{&two, &of_two}}) {
      const double process = process_seconds();
      const double thread = cpu_seconds();
      const double wall = wall_seconds();
      work->forward(true);
      work->backward();
      const double own = cpu_seconds() - thread;
      best->wall = std::min(best->wall, wall_seconds() - wall);
      best->busiest = std::min(best->busiest, std::max(own, process_seconds() - process - own));
    }
  }
  // On a host whose cores are busy, only the second ratio measures the kernels.
  std::printf("two threads by CPU time of the busier one: %.2f\n", of_one.busiest / of_two.busiest);
  std::printf("claim attention_two_thread_scaling %.2f\n", of_one.wall / of_two.wall);
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
          const double seconds = seconds_of(cpu_seconds, [&] {
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
