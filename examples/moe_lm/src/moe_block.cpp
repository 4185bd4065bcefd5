#include "src/moe_block.h"

#include "src/attention_block.h"
#include "src/parameters.h"

#include <muster/kernels/gemm.h>
#include <muster/kernels/layers.h>

#include <algorithm>
#include <numeric>

namespace muster::moe_lm {

using agent::Phase;

MoeBlock::MoeBlock(const ModelShape& shape, Weights& weights, std::int64_t layer, ExpertGroup group)
    : shape_(shape),
      group_(group),
      weights_(&weights),
      norm_(weights.find(layer_name(layer, "moe.norm"))),
      router_(weights.find(layer_name(layer, "moe.router"))),
      gate_(weights.find(layer_name(layer, "moe.experts.gate"))),
      up_(weights.find(layer_name(layer, "moe.experts.up"))),
      down_(weights.find(layer_name(layer, "moe.experts.down"))),
      bias_(static_cast<std::size_t>(shape.experts), 0.0F) {}

void MoeBlock::resize(std::size_t values) {
  tokens_ = static_cast<std::int64_t>(values) / shape_.d_model;
  for (auto* buffer : {&input_, &normed_, &output_, &dnormed_}) {
    buffer->resize(values);
  }
  const auto tokens = static_cast<std::size_t>(tokens_);
  inverse_rms_.resize(tokens);
  logits_.resize(tokens * static_cast<std::size_t>(shape_.experts));
  scores_.resize(logits_.size());
  gates_.resize(tokens * static_cast<std::size_t>(shape_.top_k));
  dgates_.resize(gates_.size());
}

void MoeBlock::resize_rows() {
  const auto rows = static_cast<std::size_t>(plan_.rows_received);
  for (auto* buffer : {&gate_out_, &up_out_, &hidden_, &dgate_out_, &dup_out_, &dhidden_}) {
    buffer->resize(rows * static_cast<std::size_t>(shape_.ffn));
  }
  for (auto* buffer : {&expert_out_, &dinput_rows_}) {
    buffer->resize(rows * static_cast<std::size_t>(shape_.d_model));
  }
}

void MoeBlock::run_experts() {
  const std::int64_t d = shape_.d_model;
  const std::int64_t f = shape_.ffn;
  const std::size_t experts = plan_.expert_offsets.size() - 1;
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const std::int64_t first = plan_.expert_offsets[expert];
    const std::int64_t count = plan_.expert_offsets[expert + 1] - first;
    const std::int64_t matrix = static_cast<std::int64_t>(expert) * d * f;
    const float* input = rows_.data() + first * d;
    kernels::linear_forward(
        input, gate_->value.data() + matrix, gate_out_.data() + first * f, count, d, f);
    kernels::linear_forward(
        input, up_->value.data() + matrix, up_out_.data() + first * f, count, d, f);
    kernels::swiglu_forward(
        gate_out_.data() + first * f,
        up_out_.data() + first * f,
        hidden_.data() + first * f,
        count * f);
    kernels::linear_forward(
        hidden_.data() + first * f,
        down_->value.data() + matrix,
        expert_out_.data() + first * d,
        count,
        f,
        d);
  }
}

void MoeBlock::run_experts_backward() {
  const std::int64_t d = shape_.d_model;
  const std::int64_t f = shape_.ffn;
  const std::size_t experts = plan_.expert_offsets.size() - 1;
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const std::int64_t first = plan_.expert_offsets[expert];
    const std::int64_t count = plan_.expert_offsets[expert + 1] - first;
    const std::int64_t matrix = static_cast<std::int64_t>(expert) * d * f;
    const float* input = rows_.data() + first * d;
    float* dinput = dinput_rows_.data() + first * d;
    kernels::linear_backward(
        hidden_.data() + first * f,
        down_->value.data() + matrix,
        drows_.data() + first * d,
        dhidden_.data() + first * f,
        false,
        down_->gradient.data() + matrix,
        count,
        f,
        d);
    kernels::swiglu_backward(
        gate_out_.data() + first * f,
        up_out_.data() + first * f,
        dhidden_.data() + first * f,
        dgate_out_.data() + first * f,
        dup_out_.data() + first * f,
        count * f);
    kernels::linear_backward(
        input,
        gate_->value.data() + matrix,
        dgate_out_.data() + first * f,
        dinput,
        false,
        gate_->gradient.data() + matrix,
        count,
        d,
        f);
    kernels::linear_backward(
        input,
        up_->value.data() + matrix,
        dup_out_.data() + first * f,
        dinput,
        true,
        up_->gradient.data() + matrix,
        count,
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
  kernels::router_forward(
      logits_.data(),
      bias_.data(),
      tokens_,
      shape_.experts,
      shape_.top_k,
      scores_.data(),
      gates_.data(),
      routing_);
  {
    const auto timer = agent.time(Phase::kExpertComm);
    MUSTER_RETURN_IF_ERROR(
        kernels::make_dispatch_plan(routing_, *group_.ranks, group_.deadline(), plan_));
    MUSTER_RETURN_IF_ERROR(kernels::dispatch(
        routing_, plan_, normed_.data(), d, rows_, *group_.ranks, group_.deadline()));
  }
  resize_rows();
  run_experts();
  const auto timer = agent.time(Phase::kExpertComm);
  MUSTER_RETURN_IF_ERROR(kernels::combine(
      routing_,
      plan_,
      expert_out_,
      gates_.data(),
      d,
      returned_,
      output_.data(),
      *group_.ranks,
      group_.deadline()));
  kernels::add_in_place(x.data(), output_.data(), tokens_ * d);
  return {};
}

Status MoeBlock::backward(std::span<float> dx, agent::Agent& agent) {
  const std::int64_t d = shape_.d_model;
  {
    const auto timer = agent.time(Phase::kExpertComm);
    MUSTER_RETURN_IF_ERROR(kernels::combine_backward(
        routing_,
        plan_,
        dx.data(),
        gates_.data(),
        returned_,
        d,
        dgates_.data(),
        drows_,
        *group_.ranks,
        group_.deadline()));
  }
  run_experts_backward();
  // logits_ is done with: its memory takes the router's gradient.
  kernels::router_backward(routing_, scores_.data(), gates_.data(), dgates_.data(), logits_.data());
  kernels::linear_backward(
      normed_.data(),
      router_->value.data(),
      logits_.data(),
      dnormed_.data(),
      false,
      router_->gradient.data(),
      tokens_,
      d,
      shape_.experts);
  {
    const auto timer = agent.time(Phase::kExpertComm);
    MUSTER_RETURN_IF_ERROR(kernels::dispatch_backward(
        routing_, plan_, dinput_rows_, d, dnormed_.data(), *group_.ranks, group_.deadline()));
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
  return {};
}

void MoeBlock::balance(std::span<const double> job_counts, double rate) {
  const double total = std::accumulate(job_counts.begin(), job_counts.end(), 0.0);
  const double mean = total / static_cast<double>(job_counts.size());
  for (std::size_t expert = 0; expert < job_counts.size(); ++expert) {
    const double lack = mean - job_counts[expert];
    const double direction = lack > 0 ? 1.0 : (lack < 0 ? -1.0 : 0.0);
    bias_[expert] += static_cast<float>(rate * direction);
  }
}

}  // namespace muster::moe_lm
