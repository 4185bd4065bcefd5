// SPDX-License-Identifier: Apache-2.0
// x += sum over the chosen experts e of gate_e * down_e(swiglu(gate_e n, up_e n)), n = norm(x), and
// the shared expert, if any, with the experts distributed over the ranks of an expert group:
// forward and backward of one block.
#pragma once

#include "trainer/moe_lm/src/expert_runtime.h"
#include "trainer/moe_lm/src/options.h"
#include "trainer/moe_lm/src/weights.h"

#include <muster/agent/agent.h>
#include <muster/parallel/experts/layer.h>
#include <muster/parallel/experts/router.h>
#include <muster/parallel/experts/synthetic_routing.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace muster::moe_lm {

// Not thread-safe. backward() belongs to the forward() before it. Both are collective over the
// expert group.
class MoeBlock {
 public:
  // `weights` and `runtime` must outlive it. `options` have passed validate().
  MoeBlock(
      const TrainOptions& options,
      Weights& weights,
      ExpertRuntime& runtime,
      std::unique_ptr<parallel::ExpertLayer> experts,
      std::int64_t layer);

  // Updates x [tokens, d_model] in place. Reports the time spent on moving tokens to the agent.
  [[nodiscard]] Status forward(std::span<float> x, agent::Agent& agent);
  // Takes the gradient of the output and replaces it by that of the input; adds to parameter
  // gradients. Reports the pass's EpEvent to the agent.
  [[nodiscard]] Status backward(std::span<float> dx, agent::Agent& agent);

  // Number of rows that this rank routed to each expert in the last forward.
  [[nodiscard]] std::span<const std::int64_t> expert_counts() const { return counts_; }

  // Moves each expert's routing bias by `rate` towards the mean load, from the job's counts.
  void balance(std::span<const double> job_counts, double rate);

  // Bias [experts] added to the scores for the choice of experts; training state without a
  // gradient.
  [[nodiscard]] std::span<float> bias() { return bias_; }

  // Selects the draw of --skew for the next forward: equal numbers draw equal experts.
  void set_draw(std::uint64_t rank, std::uint64_t index);

  // Adds the last forward's plan to --ep-trace, if given.
  [[nodiscard]] Status trace(std::int64_t step);

  // Weighted auxiliary losses of the last backward on this rank.
  [[nodiscard]] double auxiliary_loss() const { return auxiliary_loss_; }

 private:
  void resize(std::size_t values);
  void choose();
  void add_auxiliary_gradients(double loss_scale);
  void run_shared_expert();
  void run_shared_expert_backward(std::span<const float> dy);
  [[nodiscard]] std::span<std::byte> as_rows(std::vector<float>& values, std::size_t room);
  void from_rows(std::vector<float>& values, std::size_t room);

  ModelShape shape_;
  ExpertOptions options_;
  double loss_share_;  // tokens with loss over all tokens
  std::int64_t layer_;
  Weights* weights_;
  ExpertRuntime* runtime_;
  std::unique_ptr<parallel::ExpertLayer> experts_;
  parallel::RouterOptions router_options_;
  Weight* norm_;
  Weight* router_;
  Weight* gate_;
  Weight* up_;
  Weight* down_;
  Weight* shared_gate_{nullptr};
  Weight* shared_up_{nullptr};
  Weight* shared_down_{nullptr};
  std::optional<parallel::SyntheticRouting> skew_;
  std::uint64_t draw_stream_{0};
  std::uint64_t draw_index_{0};
  std::vector<float> bias_;
  double auxiliary_loss_{0};
  std::int64_t tokens_{0};
  std::vector<std::int32_t> choices_, pass_counts_;
  std::vector<std::int64_t> counts_;
  std::vector<float> input_, normed_, inverse_rms_, logits_, dlogits_, scores_, gates_, dgates_;
  std::vector<float> output_, dnormed_;
  std::vector<float> shared_gate_out_, shared_up_out_, shared_hidden_, shared_out_;
  std::vector<float> dshared_hidden_, dshared_gate_, dshared_up_;
  std::vector<std::uint16_t> narrow_[2];  // rows of a 16-bit exchange, in and out
};

}  // namespace muster::moe_lm
