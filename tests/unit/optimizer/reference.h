// SPDX-License-Identifier: Apache-2.0
// The update rules in double, as plain as the papers and torch write them: the oracle of the update
// tests. Each updates `value` by one step and keeps its own states.
#pragma once

#include <muster/optimizer/options.h>

#include <cstddef>
#include <span>
#include <vector>

namespace muster::optimizer {

struct ReferenceSgd {
  std::vector<double> value;

  void update(std::span<const double> gradient, double learning_rate, double weight_decay);
};

struct ReferenceMomentum {
  std::vector<double> value;
  std::vector<double> buffer;

  void update(
      std::span<const double> gradient,
      const MomentumOptions& options,
      double learning_rate,
      double weight_decay);
};

struct ReferenceRmsProp {
  std::vector<double> value;
  std::vector<double> v;

  void update(
      std::span<const double> gradient,
      const RmsPropOptions& options,
      double learning_rate,
      double weight_decay);
};

// Adam couples the decay with the gradient, AdamW decays the value before the step.
struct ReferenceAdam {
  std::vector<double> value;
  std::vector<double> m;
  std::vector<double> v;
  int step{0};

  void update(
      std::span<const double> gradient,
      const AdamOptions& options,
      double learning_rate,
      double weight_decay);
};

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

  // Advances the momentum alone and returns what is to be orthogonalised.
  std::vector<double> direct(std::span<const double> gradient, const MuonOptions& options);

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
