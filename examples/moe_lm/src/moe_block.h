// x += sum over the chosen experts e of gate_e * down_e(swiglu(gate_e n, up_e n)), n = norm(x),
// with the experts spread over the ranks of `ep`: forward and backward of one block.
#pragma once

#include "src/options.h"
#include "src/weights.h"

#include <muster/agent/agent.h>
#include <muster/comm/communicator.h>
#include <muster/kernels/moe.h>

#include <chrono>
#include <span>
#include <vector>

namespace muster::moe_lm {

// The ranks that share one set of experts, and how long to wait for them.
struct ExpertGroup {
  comm::Communicator* ranks{nullptr};
  std::chrono::nanoseconds timeout{std::chrono::seconds{60}};

  [[nodiscard]] Deadline deadline() const { return Deadline::after(timeout); }
};

// Not thread-safe. backward() belongs to the forward() before it. Both are collective over the
// group.
class MoeBlock {
 public:
  // `weights` must outlive it.
  MoeBlock(const ModelShape& shape, Weights& weights, std::int64_t layer, ExpertGroup group);

  // x [tokens, d_model] in place. The agent is told the time spent on moving tokens.
  [[nodiscard]] Status forward(std::span<float> x, agent::Agent& agent);
  // Gradient of the output in, of the input out; parameter gradients are added to.
  [[nodiscard]] Status backward(std::span<float> dx, agent::Agent& agent);

  // Rows this rank routed to each expert in the last forward.
  [[nodiscard]] std::span<const std::int64_t> expert_counts() const { return routing_.counts; }

  // Moves each expert's routing bias by `rate` towards the mean load, from the job's counts.
  void balance(std::span<const double> job_counts, double rate);

  // [experts], added to the scores when experts are chosen; training state that no gradient moves.
  [[nodiscard]] std::span<float> bias() { return bias_; }

 private:
  void resize(std::size_t values);
  void resize_rows();
  void run_experts();
  void run_experts_backward();

  ModelShape shape_;
  ExpertGroup group_;
  Weights* weights_;
  Weight* norm_;
  Weight* router_;
  Weight* gate_;
  Weight* up_;
  Weight* down_;
  std::vector<float> bias_;
  std::int64_t tokens_{0};
  kernels::Routing routing_;
  kernels::DispatchPlan plan_;
  std::vector<float> input_, normed_, inverse_rms_, logits_, scores_, gates_, output_, dnormed_;
  std::vector<float> dgates_, rows_, gate_out_, up_out_, hidden_, expert_out_, returned_;
  std::vector<float> drows_, dgate_out_, dup_out_, dhidden_, dinput_rows_;
};

}  // namespace muster::moe_lm
