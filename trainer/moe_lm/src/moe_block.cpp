// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/moe_block.h"

#include "trainer/moe_lm/src/attention_block.h"
#include "trainer/moe_lm/src/parameters.h"

#include <muster/kernels/gemm.h>
#include <muster/kernels/layers.h>
#include <muster/kernels/low_precision.h>

#include <algorithm>

namespace muster::moe_lm {
namespace {

using agent::Phase;

// Times an expert layer's movement as the agent's phase.
class TimedMovement final : public parallel::MovementObserver {
 public:
  explicit TimedMovement(agent::Agent& agent) : agent_(agent) {}

  void begin() override { agent_.enter(Phase::kExpertComm); }

  void end() override { agent_.leave(); }

 private:
  agent::Agent& agent_;
};

}  // namespace

MoeBlock::MoeBlock(
    const TrainOptions& options,
    Weights& weights,
    ExpertRuntime& runtime,
    std::unique_ptr<parallel::ExpertLayer> experts,
    std::int64_t layer)
    : shape_(options.model),
      options_(options.experts),
      loss_share_(
          static_cast<double>(tokens_with_loss(options)) /
          static_cast<double>(options.model.sequence)),
      layer_(layer),
      weights_(&weights),
      runtime_(&runtime),
      experts_(std::move(experts)),
      norm_(weights.find(layer_name(layer, "moe.norm"))),
      router_(weights.find(layer_name(layer, "moe.router"))),
      gate_(weights.find(layer_name(layer, "moe.experts.gate"))),
      up_(weights.find(layer_name(layer, "moe.experts.up"))),
      down_(weights.find(layer_name(layer, "moe.experts.down"))),
      bias_(static_cast<std::size_t>(shape_.experts), 0.0F) {
  router_options_.experts = shape_.experts;
  router_options_.top_k = shape_.top_k;
  router_options_.score = options_.score;
  if (shape_.shared_experts > 0) {
    shared_gate_ = weights.find(layer_name(layer, "moe.shared.gate"));
    shared_up_ = weights.find(layer_name(layer, "moe.shared.up"));
    shared_down_ = weights.find(layer_name(layer, "moe.shared.down"));
  }
  if (options_.skew) {
    skew_ = *parallel::SyntheticRouting::create(
        static_cast<int>(shape_.experts),
        static_cast<int>(shape_.top_k),
        *options_.skew,
        options.seed + static_cast<std::uint64_t>(layer));
  }
}

void MoeBlock::set_draw(std::uint64_t rank, std::uint64_t index) {
  draw_stream_ = rank;
  draw_index_ = index;
}

void MoeBlock::resize(std::size_t values) {
  tokens_ = static_cast<std::int64_t>(values) / shape_.d_model;
  for (auto* buffer : {&input_, &normed_, &output_, &dnormed_}) {
    buffer->resize(values);
  }
  const auto tokens = static_cast<std::size_t>(tokens_);
  inverse_rms_.resize(tokens);
  logits_.resize(tokens * static_cast<std::size_t>(shape_.experts));
  dlogits_.resize(logits_.size());
  scores_.resize(logits_.size());
  gates_.resize(tokens * static_cast<std::size_t>(shape_.top_k));
  dgates_.resize(gates_.size());
  choices_.resize(gates_.size());
}

void MoeBlock::choose() {
  pass_counts_.assign(static_cast<std::size_t>(shape_.experts), 0);
  parallel::route<float>(
      router_options_, tokens_, logits_, bias_, scores_, choices_, gates_, pass_counts_);
  if (skew_) {
    skew_->draw(draw_stream_, draw_index_, choices_);
    parallel::synthetic_gates(static_cast<int>(shape_.top_k), scores_, choices_, gates_);
    std::fill(pass_counts_.begin(), pass_counts_.end(), 0);
    for (const std::int32_t expert : choices_) {
      ++pass_counts_[static_cast<std::size_t>(expert)];
    }
  }
  counts_.assign(pass_counts_.begin(), pass_counts_.end());
}

// Values as the exchange's rows: themselves, or narrowed into the room of that number.
std::span<std::byte> MoeBlock::as_rows(std::vector<float>& values, std::size_t room) {
  if (runtime_->row_type() == DType::kFloat32) {
    return std::as_writable_bytes(std::span{values});
  }
  std::vector<std::uint16_t>& rows = narrow_[room];
  rows.resize(values.size());
  kernels::narrow(runtime_->row_type(), values, rows);
  return std::as_writable_bytes(std::span{rows});
}

void MoeBlock::from_rows(std::vector<float>& values, std::size_t room) {
  if (runtime_->row_type() != DType::kFloat32) {
    kernels::widen(runtime_->row_type(), narrow_[room], values);
  }
}

void MoeBlock::run_shared_expert() {
  const std::int64_t d = shape_.d_model;
  const std::int64_t f = shape_.shared_experts * shape_.ffn;
  for (auto* buffer :
       {&shared_gate_out_,
        &shared_up_out_,
        &shared_hidden_,
        &dshared_hidden_,
        &dshared_gate_,
        &dshared_up_}) {
    buffer->resize(static_cast<std::size_t>(tokens_ * f));
  }
  shared_out_.resize(static_cast<std::size_t>(tokens_ * d));
  kernels::linear_forward(
      normed_.data(), shared_gate_->value.data(), shared_gate_out_.data(), tokens_, d, f);
  kernels::linear_forward(
      normed_.data(), shared_up_->value.data(), shared_up_out_.data(), tokens_, d, f);
  kernels::swiglu_forward(
      shared_gate_out_.data(), shared_up_out_.data(), shared_hidden_.data(), tokens_ * f);
  kernels::linear_forward(
      shared_hidden_.data(), shared_down_->value.data(), shared_out_.data(), tokens_, f, d);
}

void MoeBlock::run_shared_expert_backward(std::span<const float> dy) {
  const std::int64_t d = shape_.d_model;
  const std::int64_t f = shape_.shared_experts * shape_.ffn;
  kernels::linear_backward(
      shared_hidden_.data(),
      shared_down_->value.data(),
      dy.data(),
      dshared_hidden_.data(),
      false,
      shared_down_->gradient.data(),
      tokens_,
      f,
      d);
  kernels::swiglu_backward(
      shared_gate_out_.data(),
      shared_up_out_.data(),
      dshared_hidden_.data(),
      dshared_gate_.data(),
      dshared_up_.data(),
      tokens_ * f);
  for (auto [weight, gradient] :
       {std::pair{shared_gate_, &dshared_gate_}, std::pair{shared_up_, &dshared_up_}}) {
    kernels::linear_backward(
        normed_.data(),
        weight->value.data(),
        gradient->data(),
        dnormed_.data(),
        true,
        weight->gradient.data(),
        tokens_,
        d,
        f);
  }
}

Status MoeBlock::forward(std::span<float> x, agent::Agent& agent) {
  MUSTER_RETURN_IF_ERROR(weights_->await({norm_, router_, gate_, up_, down_}));
  resize(x.size());
  const std::int64_t d = shape_.d_model;
  std::copy(x.begin(), x.end(), input_.begin());
  kernels::rms_norm_forward(
      input_.data(),
      norm_->value.data(),
      normed_.data(),
      inverse_rms_.data(),
      tokens_,
      d,
      kNormEpsilon);
  kernels::linear_forward(
      normed_.data(), router_->value.data(), logits_.data(), tokens_, d, shape_.experts);
  choose();
  TimedMovement timer{agent};
  experts_->observe(&timer);
  const Status done = experts_->forward(
      as_rows(normed_, 0), choices_, gates_, as_rows(output_, 1), runtime_->deadline());
  experts_->observe(nullptr);
  MUSTER_RETURN_IF_ERROR(done);
  from_rows(output_, 1);
  if (shared_gate_ != nullptr) {
    MUSTER_RETURN_IF_ERROR(weights_->await({shared_gate_, shared_up_, shared_down_}));
    run_shared_expert();
    kernels::add_in_place(x.data(), shared_out_.data(), tokens_ * d);
  }
  kernels::add_in_place(x.data(), output_.data(), tokens_ * d);
  return {};
}

// Losses are means over all tokens of the pass. The step divides gradients by the job's tokens with
// loss, so they are multiplied by this pass's share of those.
void MoeBlock::add_auxiliary_gradients(double loss_scale) {
  auxiliary_loss_ = 0;
  const double per_token = static_cast<double>(tokens_) * loss_share_ * loss_scale;
  if (options_.switch_loss > 0) {
    const std::vector<double> counts(counts_.begin(), counts_.end());
    auxiliary_loss_ += options_.switch_loss * parallel::switch_loss<float>(
                                                  router_options_,
                                                  tokens_,
                                                  scores_,
                                                  counts,
                                                  static_cast<double>(tokens_),
                                                  options_.switch_loss * per_token,
                                                  dlogits_);
  }
  if (options_.sequence_loss > 0) {
    auxiliary_loss_ += options_.sequence_loss * parallel::sequence_loss<float>(
                                                    router_options_,
                                                    tokens_,
                                                    shape_.sequence,
                                                    scores_,
                                                    choices_,
                                                    options_.sequence_loss * per_token,
                                                    dlogits_);
  }
  if (options_.z_loss > 0) {
    auxiliary_loss_ += options_.z_loss *
                       parallel::router_z_loss<float>(
                           tokens_, shape_.experts, logits_, options_.z_loss * per_token, dlogits_);
  }
}

Status MoeBlock::backward(std::span<float> dx, agent::Agent& agent) {
  const std::int64_t d = shape_.d_model;
  std::copy(dx.begin(), dx.end(), output_.begin());
  TimedMovement timer{agent};
  experts_->observe(&timer);
  const Status done =
      experts_->backward(as_rows(output_, 0), as_rows(dnormed_, 1), dgates_, runtime_->deadline());
  experts_->observe(nullptr);
  MUSTER_RETURN_IF_ERROR(done);
  from_rows(dnormed_, 1);
  parallel::route_backward<float>(
      router_options_, tokens_, scores_, choices_, gates_, dgates_, dlogits_);
  add_auxiliary_gradients(agent.loss_scale());
  kernels::linear_backward(
      normed_.data(),
      router_->value.data(),
      dlogits_.data(),
      dnormed_.data(),
      true,
      router_->gradient.data(),
      tokens_,
      d,
      shape_.experts);
  if (shared_gate_ != nullptr) {
    run_shared_expert_backward(dx);
    weights_->gradients_done({shared_down_, shared_up_, shared_gate_});
  }
  kernels::rms_norm_backward(
      input_.data(),
      norm_->value.data(),
      inverse_rms_.data(),
      dnormed_.data(),
      output_.data(),
      norm_->gradient.data(),
      tokens_,
      d);
  kernels::add_in_place(dx.data(), output_.data(), tokens_ * d);
  weights_->gradients_done({down_, up_, gate_, router_, norm_});
  if (runtime_->balanced()) {
    agent.record_ep(static_cast<std::size_t>(layer_), experts_->event());
  }
  return {};
}

Status MoeBlock::trace(std::int64_t step) {
  const parallel::EpPlan* plan = experts_->plan();
  return plan == nullptr ? Status{} : runtime_->trace(layer_, step, *plan, choices_);
}

void MoeBlock::balance(std::span<const double> job_counts, double rate) {
  parallel::update_router_bias(bias_, job_counts, rate, false);
}

}  // namespace muster::moe_lm
