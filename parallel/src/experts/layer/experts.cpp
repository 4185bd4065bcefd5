// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/layer/experts.h"

#include "parallel/src/experts/layer/weighted_swiglu.h"

#include <algorithm>
#include <array>
#include <functional>
#include <span>

namespace muster::parallel {
namespace {

std::int64_t rows_of(const kernels::RowGroups& groups) {
  return groups.ends.empty() ? 0 : groups.ends.back();
}

// to += from, [size], each sum rounded once.
void add_narrow(DType type, std::span<std::uint16_t> to, std::span<const std::uint16_t> from) {
  constexpr std::size_t kBlock = 512;
  std::array<float, kBlock> left{};
  std::array<float, kBlock> right{};
  for (std::size_t at = 0; at < to.size(); at += kBlock) {
    const std::size_t size = std::min(kBlock, to.size() - at);
    const std::span<float> sum{left.data(), size};
    kernels::widen(type, to.subspan(at, size), sum);
    kernels::widen(type, from.subspan(at, size), {right.data(), size});
    std::transform(sum.begin(), sum.end(), right.begin(), sum.begin(), std::plus<>{});
    kernels::narrow(type, sum, to.subspan(at, size));
  }
}

}  // namespace

ExpertCompute::ExpertCompute(DType type, std::int64_t hidden, std::int64_t ffn, int threads)
    : type_(type), hidden_(hidden), ffn_(ffn), threads_(threads) {}

std::int64_t ExpertCompute::room(std::int64_t columns) const {
  return (size_bytes(type_, rows_ * columns) + 3) / 4;
}

std::byte* ExpertCompute::tensor(AlignedBuffer& buffer, std::int64_t columns) const {
  return reinterpret_cast<std::byte*>(buffer.reserve(room(columns)));  // NOLINT
}

void ExpertCompute::reserve(std::int64_t rows) {
  rows_ = std::max(rows_, rows);
  static_cast<void>(inputs());
  for (AlignedBuffer* buffer : {&gate_, &up_, &activations_, &dup_}) {
    static_cast<void>(tensor(*buffer, ffn_));
  }
  if (type_ != DType::kFloat32) {
    static_cast<void>(tensor(second_, hidden_));
  }
}

kernels::GroupedProblem ExpertCompute::problem(
    const kernels::RowGroups& groups, std::int64_t in, std::int64_t out) const {
  return {groups, in, out, type_, threads_};
}

void ExpertCompute::forward(
    const kernels::RowGroups& groups,
    const ExpertTensors& tensors,
    const float* weights,
    void* out) {
  const kernels::GroupedProblem widening = problem(groups, hidden_, ffn_);
  void* gate = tensor(gate_, ffn_);
  void* up = tensor(up_, ffn_);
  void* activations = tensor(activations_, ffn_);
  kernels::grouped_forward(widening, inputs(), tensors.gate, gate);
  kernels::grouped_forward(widening, inputs(), tensors.up, up);
  weighted_swiglu({type_, rows_of(groups), ffn_}, gate, up, weights, activations);
  kernels::grouped_forward(problem(groups, ffn_, hidden_), activations, tensors.down, out);
}

void ExpertCompute::backward(
    const kernels::RowGroups& groups,
    const ExpertTensors& tensors,
    const float* weights,
    const void* dout,
    void* dinputs,
    float* dweights) {
  const ExpertRows rows{type_, rows_of(groups), ffn_};
  const kernels::GroupedProblem narrowing = problem(groups, ffn_, hidden_);
  const kernels::GroupedProblem widening = problem(groups, hidden_, ffn_);
  void* gate = tensor(gate_, ffn_);
  void* up = tensor(up_, ffn_);
  void* activations = tensor(activations_, ffn_);
  void* dup = tensor(dup_, ffn_);
  // The last use of the activations: from here their memory holds their gradient.
  kernels::grouped_wgrad(narrowing, activations, dout, tensors.down_gradient);
  kernels::grouped_dgrad(narrowing, dout, tensors.down, activations, false);
  void* dgate = activations;
  weighted_swiglu_backward(rows, gate, up, weights, activations, dgate, dup, dweights);
  kernels::grouped_wgrad(widening, inputs(), dgate, tensors.gate_gradient);
  kernels::grouped_wgrad(widening, inputs(), dup, tensors.up_gradient);
  kernels::grouped_dgrad(widening, dgate, tensors.gate, dinputs, false);
  if (type_ == DType::kFloat32) {
    kernels::grouped_dgrad(widening, dup, tensors.up, dinputs, true);
    return;
  }
  void* second = tensor(second_, hidden_);
  kernels::grouped_dgrad(widening, dup, tensors.up, second, false);
  const auto size = static_cast<std::size_t>(rows.count * hidden_);
  add_narrow(
      type_,
      {static_cast<std::uint16_t*>(dinputs), size},
      {static_cast<const std::uint16_t*>(second), size});
}

}  // namespace muster::parallel
