// SPDX-License-Identifier: Apache-2.0
// Claims: Newton-Schulz, five Keller steps, against the standard quintic on plain products.
//   claim ns_speedup_1024x4096, ns_speedup_1024x1024, ns_speedup_2048x2048
//       muster in fp32 over three OpenBLAS sgemm per step that also scale and add
//   claim ns_peak_fraction
//       flops of the chosen form at 1024 x 4096 per second over the best plain product of the same
//       round, OpenBLAS's or muster's
//   claim ns_bf16_speedup_1024x4096
//       muster with bf16 operands over three plain bf16 products per step, oneDNN's if the build
//       found it (the output names the peer)
//   claim ns_batched_small_speedup
//       64 matrices of 256 x 512 in one call over 64 calls, both with 2 threads
// Method: the variants take turns in one process; a claim is the median over rounds of the ratio
// within a round. One thread except where said.
#include "benchmarks/newton_schulz_peers.h"
#include "kernels/gemm/cpu/packed.h"

#include <muster/common/random.h>
#include <muster/kernels/newton_schulz.h>

#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

namespace muster::bench {

namespace {

using kernels::NewtonSchulzOptions;
using kernels::NewtonSchulzStep;

const std::vector<NewtonSchulzStep> kKeller(
    kSteps, {kKellerStep[0], kKellerStep[1], kKellerStep[2]});

double seconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<float> random_matrix(std::int64_t elements) {
  Random random(1);
  std::vector<float> x(static_cast<std::size_t>(elements));
  std::generate(x.begin(), x.end(), [&] { return static_cast<float>(random.normal()); });
  return x;
}

// Flops per second of one plain fp32 product [m, k] [k, n], the better of OpenBLAS and muster.
class Peak {
 public:
  Peak(int m, int n, int k)
      : m_(m),
        n_(n),
        k_(k),
        a_(random_matrix(std::int64_t{m} * k)),
        b_(random_matrix(std::int64_t{k} * n)),
        c_(static_cast<std::size_t>(m) * static_cast<std::size_t>(n)) {}

  double measure() {
    const double library = seconds_of([&] {
      cblas_sgemm(
          CblasRowMajor,
          CblasNoTrans,
          CblasNoTrans,
          m_,
          n_,
          k_,
          1,
          a_.data(),
          k_,
          b_.data(),
          n_,
          0,
          c_.data(),
          n_);
    });
    kernels::Product product;
    product.m = m_;
    product.n = n_;
    product.k = k_;
    product.a = {a_.data(), k_, false};
    product.b = {b_.data(), n_, false};
    product.c = c_.data();
    product.stride = n_;
    const double own = seconds_of([&] { scratch_.multiply(product, alone_); });
    return 2.0 * m_ * n_ * k_ / std::min(library, own);
  }

 private:
  int m_;
  int n_;
  int k_;
  std::vector<float> a_;
  std::vector<float> b_;
  std::vector<float> c_;
  kernels::ProductScratch scratch_;
  kernels::ThreadTeam alone_{1};
};

struct Speedup {
  std::int64_t rows;
  std::int64_t cols;
  DType precision;
  int rounds;
};

// Medians of a comparison.
struct Comparison {
  double ours{0};
  double peer{0};
  double ratio{0};
  double fraction{0};  // of the peak
};

Comparison compare(const Speedup& what) {
  const bool rounded = what.precision == DType::kBFloat16;
  const auto peer =
      rounded ? standard_bfloat16(what.rows, what.cols) : standard_float32(what.rows, what.cols);
  const auto input = random_matrix(what.rows * what.cols);
  const NewtonSchulzOptions options{.coefficients = kKeller, .precision = what.precision};
  const auto choice = kernels::choose_newton_schulz(what.rows, what.cols, options);
  kernels::NewtonSchulzWorkspace workspace;
  Peak peak(1024, 2048, 1024);
  std::vector<double> ours;
  std::vector<double> theirs;
  std::vector<double> ratios;
  std::vector<double> fractions;
  for (int round = -1; round < what.rounds; ++round) {
    auto x = input;
    const double own = seconds_of(
        [&] { kernels::newton_schulz_batch(x, 1, what.rows, what.cols, options, workspace, {}); });
    x = input;
    const double other = seconds_of([&] { peer->run(x); });
    const double rate = peak.measure();
    if (round >= 0) {  // the first one warms up
      ours.push_back(own);
      theirs.push_back(other);
      ratios.push_back(other / own);
      fractions.push_back(choice.flops / own / rate);
    }
  }
  const Comparison result{median(ours), median(theirs), median(ratios), median(fractions)};
  std::printf(
      "%ld x %ld %s: muster %.1f ms (%s, %zu restarts), standard with %s %.1f ms\n",
      static_cast<long>(what.rows),
      static_cast<long>(what.cols),
      rounded ? "bf16" : "fp32",
      1e3 * result.ours,
      to_string(choice.form),
      choice.restarts.size(),
      peer->products().c_str(),
      1e3 * result.peer);
  return result;
}

// One call for all over one call for each.
double batched_speedup(int threads) {
  constexpr std::int64_t kCount = 64;
  constexpr std::int64_t kRows = 256;
  constexpr std::int64_t kCols = 512;
  constexpr int kRounds = 9;
  const auto input = random_matrix(kCount * kRows * kCols);
  const NewtonSchulzOptions options{.coefficients = kKeller, .threads = threads};
  kernels::NewtonSchulzWorkspace batched;
  kernels::NewtonSchulzWorkspace looped;
  std::vector<double> ratios;
  std::vector<double> times;
  for (int round = -1; round < kRounds; ++round) {
    auto x = input;
    const double together = seconds_of(
        [&] { kernels::newton_schulz_batch(x, kCount, kRows, kCols, options, batched, {}); });
    x = input;
    const double apart = seconds_of([&] {
      constexpr auto kSize = static_cast<std::size_t>(kRows * kCols);
      for (std::size_t i = 0; i < static_cast<std::size_t>(kCount); ++i) {
        const std::span<float> matrix(x.data() + i * kSize, kSize);
        kernels::newton_schulz_batch(matrix, 1, kRows, kCols, options, looped, {});
      }
    });
    if (round >= 0) {
      ratios.push_back(apart / together);
      times.push_back(together);
    }
  }
  std::printf(
      "64 matrices 256 x 512, %d thread(s): batched %.1f ms, looped over batched %.3f\n",
      threads,
      1e3 * median(times),
      median(ratios));
  return median(ratios);
}

void run_all() {
  constexpr auto kFull = DType::kFloat32;
  const Comparison wide = compare({1024, 4096, kFull, 9});
  std::printf("claim ns_speedup_1024x4096 %.2f\n", wide.ratio);
  std::printf("claim ns_peak_fraction %.2f\n", wide.fraction);
  std::printf("claim ns_speedup_1024x1024 %.2f\n", compare({1024, 1024, kFull, 15}).ratio);
  std::printf("claim ns_speedup_2048x2048 %.2f\n", compare({2048, 2048, kFull, 5}).ratio);
  std::printf(
      "claim ns_bf16_speedup_1024x4096 %.2f\n", compare({1024, 4096, DType::kBFloat16, 9}).ratio);
  batched_speedup(1);
  std::printf("claim ns_batched_small_speedup %.2f\n", batched_speedup(2));
}

}  // namespace

}  // namespace muster::bench

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a run takes minutes: show each line when it is there
  muster::bench::run_all();
  return 0;
}
