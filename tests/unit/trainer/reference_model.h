// SPDX-License-Identifier: Apache-2.0
// The same model and training step as trainer/moe_lm, one process, in double, by plain loops.
#pragma once

#include "tests/unit/optimizer/reference.h"
#include "tests/unit/trainer/reference_tape.h"
#include "trainer/moe_lm/src/options.h"
#include "trainer/moe_lm/src/text.h"

#include <muster/optimizer/optimizer.h>

#include <map>
#include <string>
#include <vector>

namespace muster::moe_lm::reference {

// Trains on whole global batches.
class Trainer {
 public:
  // Starts from the values of `initial`, an optimizer that holds all experts.
  Trainer(const TrainOptions& options, optimizer::Optimizer& initial, const std::string& text);

  // One step; the mean loss in nats per byte before its update.
  double step();

  // Smallest distance so far between the last chosen expert's score and the first one left out.
  // While it stays far above the rounding of float, both trainers must route alike.
  [[nodiscard]] double smallest_margin() const { return smallest_margin_; }

 private:
  using Var = Tape::Var;

  Var use(Tape& tape, const std::string& name);
  Var attention(Tape& tape, Var x, std::int64_t layer);
  Var mixture(Tape& tape, Var x, std::int64_t layer);
  Var expert(Tape& tape, Var token, std::int64_t layer, std::size_t index);
  std::vector<std::size_t> choose(const Matrix& scores, std::int64_t layer);
  double forward_backward(const Batch& batch);
  void update(double gradient_scale);
  void balance();
  [[nodiscard]] double learning_rate() const;
  [[nodiscard]] double gradient_norm() const;

  TrainOptions options_;
  BatchSource source_;
  std::int64_t steps_done_{0};
  std::map<std::string, Matrix> values_;  // experts one by one: "<name>/<expert>"
  std::map<std::string, Matrix> gradients_;
  std::map<std::string, optimizer::ReferenceAdamW> adamw_;
  std::map<std::string, optimizer::ReferenceMuon> muon_;
  std::vector<std::vector<double>> bias_;    // [layers][experts]
  std::vector<std::vector<double>> counts_;  // of the current step
  double smallest_margin_{1e300};
};

}  // namespace muster::moe_lm::reference
