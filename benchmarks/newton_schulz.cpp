// SPDX-License-Identifier: Apache-2.0
// Claims: Newton-Schulz, five Keller steps, against the standard quintic on plain products.
//   claim ns_speedup_1024x4096, ns_speedup_1024x1024, ns_speedup_2048x2048
//       muster in fp32 over three sgemm per step that also scale and add, of OpenBLAS with the
//       kernels that are fastest here or of oneDNN, the faster in each round
//   claim ns_peak_fraction
//       flops of the chosen form at 1024 x 4096 per second over the best plain product of the same
//       round, a library's or muster's
//   claim ns_bf16_speedup_1024x4096
//       muster with bf16 operands over three plain bf16 products per step, oneDNN's if the build
//       found it (the output names the peer)
//   claim ns_batched_small_speedup
//       64 matrices of 256 x 512 in one call over 64 calls, both with 2 threads
// Method: the variants take turns in one process (harness.h), by processor time of one thread
// except where said.
#include "benchmarks/harness.h"
#include "benchmarks/newton_schulz_peers.h"
#include "benchmarks/openblas_core.h"
#include "kernels/gemm/cpu/packed.h"

#include <muster/common/random.h>
#include <muster/kernels/newton_schulz.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace muster::bench {

namespace {

using kernels::NewtonSchulzOptions;
using kernels::NewtonSchulzStep;

const std::vector<NewtonSchulzStep> kKeller(
    kSteps, {kKellerStep[0], kKellerStep[1], kKellerStep[2]});

std::vector<float> random_matrix(std::int64_t elements) {
  Random random(1);
  std::vector<float> x(static_cast<std::size_t>(elements));
  std::generate(x.begin(), x.end(), [&] { return static_cast<float>(random.normal()); });
  return x;
}

using Seconds = std::span<const double>;

double least(Seconds s, const std::vector<std::size_t>& variants) {
  double seconds = s[variants.front()];
  for (const std::size_t at : variants) {
    seconds = std::min(seconds, s[at]);
  }
  return seconds;
}

// Plain fp32 products [m, k] [k, n] of muster and of the libraries, a bound for the chosen form.
class PlainProducts {
 public:
  static constexpr int kRows = 1024;
  static constexpr int kCols = 2048;
  static constexpr int kInner = 1024;
  static constexpr double kFlops = 2.0 * kRows * kCols * kInner;

  std::vector<std::size_t> add_to(Series& series) {
    std::vector<std::size_t> variants;
    for (const Float32Library& library : float32_libraries()) {
      variants.push_back(series.add(std::string("plain product, ") + library.name, [this, library] {
        library.multiply({kRows, kCols, kInner, 1, a_.data(), b_.data(), false, 0, c_.data()});
      }));
    }
    variants.push_back(series.add("plain product, muster", [this] {
      kernels::Product product;
      product.m = kRows;
      product.n = kCols;
      product.k = kInner;
      product.a = {a_.data(), kInner, false};
      product.b = {b_.data(), kCols, false};
      product.c = c_.data();
      product.stride = kCols;
      scratch_.multiply(product, alone_);
    }));
    return variants;
  }

 private:
  std::vector<float> a_{random_matrix(std::int64_t{kRows} * kInner)};
  std::vector<float> b_{random_matrix(std::int64_t{kInner} * kCols)};
  std::vector<float> c_ = std::vector<float>(std::size_t{kRows} * kCols);
  kernels::ProductScratch scratch_;
  kernels::ThreadTeam alone_{1};
};

std::vector<std::unique_ptr<StandardQuintic>> make_peers(
    std::int64_t rows, std::int64_t cols, DType precision) {
  std::vector<std::unique_ptr<StandardQuintic>> peers;
  if (precision == DType::kBFloat16) {
    peers.push_back(standard_bfloat16(rows, cols));
    return peers;
  }
  for (const Float32Library& library : float32_libraries()) {
    peers.push_back(standard_float32(library, rows, cols));
  }
  return peers;
}

// Claims the fastest peer's time over muster's, and with `fraction` the part of the peak.
void compare(
    std::int64_t rows,
    std::int64_t cols,
    DType precision,
    const char* speedup,
    const char* fraction = nullptr) {
  const auto peers = make_peers(rows, cols, precision);
  const auto input = random_matrix(rows * cols);
  const NewtonSchulzOptions options{.coefficients = kKeller, .precision = precision};
  const auto choice = kernels::choose_newton_schulz(rows, cols, options);
  kernels::NewtonSchulzWorkspace workspace;
  PlainProducts products;
  std::vector<float> x;
  const auto reset = [&] { x = input; };
  Series series(
      std::to_string(rows) + " x " + std::to_string(cols) + " by " + to_string(choice.form) +
          " with " + std::to_string(choice.restarts.size()) + " restarts",
      {.budget_s = 20},
      Series::Time::kThread);
  const auto own = series.add(
      "muster",
      [&] { kernels::newton_schulz_batch(x, 1, rows, cols, options, workspace, {}); },
      reset);
  std::vector<std::size_t> others;
  for (const auto& peer : peers) {
    others.push_back(series.add(
        "standard, " + peer->products(), [&, at = peer.get()] { at->run(x); }, reset));
  }
  series.add_figure({.name = speedup, .tolerance = 0.05, .digits = 2}, [=](Seconds s) {
    return least(s, others) / s[own];
  });
  if (fraction != nullptr) {
    const auto plain = products.add_to(series);
    series.add_figure({.name = fraction, .tolerance = 0.04, .digits = 2}, [=](Seconds s) {
      return choice.flops / s[own] * least(s, plain) / PlainProducts::kFlops;
    });
  }
  series.run();
  std::printf("%s", series.report().c_str());
}

// One call for all over one call for each.
void compare_batched(int threads, const char* claim) {
  constexpr std::int64_t kCount = 64;
  constexpr std::int64_t kRows = 256;
  constexpr std::int64_t kCols = 512;
  const auto input = random_matrix(kCount * kRows * kCols);
  const NewtonSchulzOptions options{.coefficients = kKeller, .threads = threads};
  kernels::NewtonSchulzWorkspace batched;
  kernels::NewtonSchulzWorkspace looped;
  std::vector<float> x;
  const auto reset = [&] { x = input; };
  Series series(
      "64 matrices of 256 x 512, threads: " + std::to_string(threads),
      {.budget_s = 10},
      Series::Time::kWall);
  const auto together = series.add(
      "one call",
      [&] { kernels::newton_schulz_batch(x, kCount, kRows, kCols, options, batched, {}); },
      reset);
  const auto apart = series.add(
      "64 calls",
      [&] {
        constexpr auto kSize = static_cast<std::size_t>(kRows * kCols);
        for (std::size_t i = 0; i < static_cast<std::size_t>(kCount); ++i) {
          const std::span<float> matrix(x.data() + i * kSize, kSize);
          kernels::newton_schulz_batch(matrix, 1, kRows, kCols, options, looped, {});
        }
      },
      reset);
  series.add_figure(
      {.name = claim == nullptr ? "64 calls over one" : claim,
       .tolerance = 0.05,
       .is_claim = claim != nullptr,
       .digits = 2},
      [=](Seconds s) { return s[apart] / s[together]; });
  series.run();
  std::printf("%s", series.report().c_str());
}

void run_all() {
  compare(1024, 4096, DType::kFloat32, "ns_speedup_1024x4096", "ns_peak_fraction");
  compare(1024, 1024, DType::kFloat32, "ns_speedup_1024x1024");
  compare(2048, 2048, DType::kFloat32, "ns_speedup_2048x2048");
  compare(1024, 4096, DType::kBFloat16, "ns_bf16_speedup_1024x4096");
  compare_batched(1, nullptr);
  compare_batched(2, "ns_batched_small_speedup");
}

}  // namespace

}  // namespace muster::bench

int main(int argc, char** argv) {
  muster::bench::use_fastest_openblas(argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a run takes minutes: show each line when it is there
  muster::bench::run_all();
  return 0;
}
