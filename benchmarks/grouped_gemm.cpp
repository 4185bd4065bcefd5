// SPDX-License-Identifier: Apache-2.0
// Claim: the products of experts run near the peak of the machine, however skewed their rows are.
//   claim grouped_gemm_peak_fraction     forward, dgrad and wgrad together, fp32, flops per second
//                                        over those of the FMA loop
//   claim grouped_gemm_bf16_speedup      fp32 over bf16, the same three
// Method: 16 experts [512, 1024] with 4096 rows, half of them one expert's and the smallest with 1,
// one thread, 2 flops a term. Variants take turns beside an FMA loop of the same instruction set,
// by the thread's CPU time (harness.h). `profile` prints other shapes, and what rows of single
// groups cost as bytes of weights.
#include "benchmarks/fma_peak.h"

#include <muster/kernels/grouped_gemm.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using muster::DType;
using muster::bench::cpu_seconds;
using muster::bench::median;
using muster::bench::run_fma_loop;
using muster::bench::Series;
using muster::kernels::GroupedProblem;

using Sizes = std::vector<std::int64_t>;

// Tensors of 4-byte elements; bf16 uses half of each.
struct Work {
  Work(DType type, Sizes counts, std::int64_t in, std::int64_t out) : rows(std::move(counts)) {
    for (const std::int64_t count : rows) {
      begins.push_back(total);
      total += count;
      ends.push_back(total);
    }
    problem = {{begins, rows, ends}, in, out, type, 1};
    const auto groups = std::ssize(rows);
    for (const std::int64_t size :
         {total * in, total * out, groups * in * out, total * out, total * in, groups * in * out}) {
      tensors.emplace_back(static_cast<std::size_t>(size));
    }
    std::uint32_t state = 1;
    for (std::size_t t = 0; t < 3; ++t) {
      for (std::size_t i = 0; i < tensors[t].size(); ++i) {
        state = state * 1664525U + 1013904223U;
        fill(t, i, static_cast<float>(state >> 8U) / 8388608.0F - 1.0F);
      }
    }
  }

  void fill(std::size_t tensor, std::size_t i, float value) {
    if (problem.type == DType::kFloat32) {
      tensors[tensor][i] = value;
      return;
    }
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    const auto half = static_cast<std::uint16_t>(bits >> 16U);
    std::memcpy(reinterpret_cast<char*>(tensors[tensor].data()) + 2 * i, &half, sizeof(half));
  }

  void forward() {
    grouped_forward(problem, tensors[0].data(), tensors[2].data(), tensors[3].data());
  }

  void dgrad() {
    grouped_dgrad(problem, tensors[1].data(), tensors[2].data(), tensors[4].data(), false);
  }

  void wgrad() { grouped_wgrad(problem, tensors[0].data(), tensors[1].data(), tensors[5].data()); }

  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(total) * static_cast<double>(problem.in) *
           static_cast<double>(problem.out);
  }

  [[nodiscard]] double weight_bytes() const {
    const double element = problem.type == DType::kFloat32 ? 4 : 2;
    return element * static_cast<double>(tensors[2].size());
  }

  Sizes rows;
  Sizes begins;
  Sizes ends;
  std::int64_t total{0};
  GroupedProblem problem;
  std::vector<std::vector<float>> tensors;  // x, dy, weights, y, dx, gradients
};

double seconds_of(const std::function<void()>& work) {
  const double begin = cpu_seconds();
  work();
  return cpu_seconds() - begin;
}

// Half the rows to one expert, few or one to the last.
Sizes skewed_rows() {
  return {2048, 640, 384, 256, 192, 144, 112, 88, 72, 56, 40, 28, 17, 12, 6, 1};
}

void claims() {
  using Seconds = std::span<const double>;
  Work floats(DType::kFloat32, skewed_rows(), 1024, 512);
  Work halves(DType::kBFloat16, skewed_rows(), 1024, 512);
  const double fma_flops = run_fma_loop();
  const double flops = floats.flops();
  Series series("products of 16 skewed experts", {.budget_s = 20}, Series::Time::kThread);
  const auto fma = series.add("FMA loop", [] { run_fma_loop(); });
  const auto forward = series.add("fp32 forward", [&] { floats.forward(); });
  const auto dgrad = series.add("fp32 dgrad", [&] { floats.dgrad(); });
  const auto wgrad = series.add("fp32 wgrad", [&] { floats.wgrad(); });
  const auto bf16 = series.add("bf16, all three", [&] {
    halves.forward();
    halves.dgrad();
    halves.wgrad();
  });
  for (const auto& [name, part] :
       {std::pair{"forward", forward}, std::pair{"dgrad", dgrad}, std::pair{"wgrad", wgrad}}) {
    series.add_figure({.name = name, .is_claim = false}, [=, part = part](Seconds s) {
      return flops / s[part] * s[fma] / fma_flops;
    });
  }
  const auto all = [=](Seconds s) { return s[forward] + s[dgrad] + s[wgrad]; };
  series.add_figure({"grouped_gemm_peak_fraction", 0.03}, [=](Seconds s) {
    return 3 * flops / all(s) * s[fma] / fma_flops;
  });
  series.add_figure(
      {"grouped_gemm_bf16_speedup", 0.03}, [=](Seconds s) { return all(s) / s[bf16]; });
  series.run();
  std::printf("%s", series.report().c_str());
}

// Fractions of the FMA peak at other loads, and the rate at which weights are read.
void profile() {
  std::printf(
      "%-5s %7s %5s %5s %5s %8s %8s %8s  weights GB/s\n",
      "type",
      "groups",
      "rows",
      "in",
      "out",
      "forward",
      "dgrad",
      "wgrad");
  for (const auto type : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t rows : {1, 2, 4, 8, 14, 32, 64, 128, 256, 1024}) {
      Work work(type, Sizes(16, rows), 1024, 512);
      std::vector<std::vector<double>> rates(3);
      for (int round = 0; round < 5; ++round) {
        const double peak = muster::bench::peak_flops_per_second();
        rates[0].push_back(work.flops() / seconds_of([&] { work.forward(); }) / peak);
        rates[1].push_back(work.flops() / seconds_of([&] { work.dgrad(); }) / peak);
        rates[2].push_back(work.flops() / seconds_of([&] { work.wgrad(); }) / peak);
        if (round == 0) {
          for (auto& rate : rates) {
            rate.clear();
          }
        }
      }
      const double peak = muster::bench::peak_flops_per_second();
      const double bytes_per_flop = work.weight_bytes() / work.flops();
      std::printf(
          "%-5s %7d %5d %5d %5d %8.3f %8.3f %8.3f  %.1f %.1f\n",
          type == DType::kFloat32 ? "fp32" : "bf16",
          16,
          static_cast<int>(rows),
          1024,
          512,
          median(rates[0]),
          median(rates[1]),
          median(rates[2]),
          median(rates[0]) * peak * bytes_per_flop / 1e9,
          median(rates[1]) * peak * bytes_per_flop / 1e9);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "profile") {
    profile();
    return 0;
  }
  claims();
  return 0;
}
