// AdamW and Muon in double, as plain as the papers write them: the oracle of the update tests.
#pragma once

#include <muster/optimizer/options.h>

#include <cstddef>
#include <span>
#include <vector>

namespace muster::optimizer {

struct ReferenceAdamW {
  std::vector<double> value;
  std::vector<double> m;
  std::vector<double> v;
  int step{0};

  void update(
      std::span<const double> gradient,
      const AdamWOptions& options,
      double learning_rate,
      double weight_decay);
};

// [rows, cols], row-major.
struct ReferenceMuon {
  std::size_t rows{0};
  std::size_t cols{0};
  std::vector<double> value;
  std::vector<double> momentum;

  void update(
      std::span<const double> gradient,
      const MuonOptions& options,
      double learning_rate,
      double weight_decay);
};

// The matrix after Newton-Schulz with the options' coefficients.
[[nodiscard]] std::vector<double> reference_newton_schulz(
    std::vector<double> x, std::size_t rows, std::size_t cols, const MuonOptions& options);

}  // namespace muster::optimizer
