// SPDX-License-Identifier: Apache-2.0
// Expert layers by an ordinary all-to-all: a rank computes whatever its own experts get.
#include "parallel/src/experts/all_to_all/all_to_all.h"

#include "parallel/src/experts/layer/experts.h"

#include <muster/parallel/experts/layer.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace muster::parallel {
namespace {

std::span<const float> floats(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};  // NOLINT
}

std::span<float> floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};  // NOLINT
}

class AllToAllLayer final : public ExpertLayer {
 public:
  AllToAllLayer(
      comm::Communicator& ranks, const ExpertLayerOptions& options, const ExpertWeights& weights)
      : ranks_(ranks),
        options_(options),
        weights_(weights),
        compute_(DType::kFloat32, options.exchange.hidden, options.ffn, options.threads) {}

  [[nodiscard]] Status forward(
      std::span<const std::byte> x,
      std::span<const std::int32_t> choices,
      std::span<const float> gates,
      std::span<std::byte> y,
      Deadline deadline) override {
    const EpShape& shape = options_.exchange.shape;
    routing_.tokens = static_cast<std::int64_t>(choices.size()) / shape.top_k;
    routing_.experts = shape.experts;
    routing_.top_k = shape.top_k;
    MUSTER_RETURN_IF_ERROR(count(choices));
    gates_.assign(gates.begin(), gates.end());
    {
      const Movement movement{*this};
      MUSTER_RETURN_IF_ERROR(make_dispatch_plan(routing_, ranks_, deadline, plan_));
      MUSTER_RETURN_IF_ERROR(
          dispatch(routing_, plan_, floats(x).data(), hidden(), rows_, ranks_, deadline));
    }
    make_groups();
    compute_.reserve(plan_.rows_received);
    std::copy(rows_.begin(), rows_.end(), floats(inputs()).begin());
    row_weights_.assign(static_cast<std::size_t>(plan_.rows_received), 1.0F);
    compute_.forward(groups(), tensors(), row_weights_.data(), rows_.data());
    const Movement movement{*this};
    return combine(
        routing_,
        plan_,
        rows_,
        gates_.data(),
        hidden(),
        returned_,
        floats(y).data(),
        ranks_,
        deadline);
  }

  [[nodiscard]] Status backward(
      std::span<const std::byte> dy,
      std::span<std::byte> dx,
      std::span<float> dgates,
      Deadline deadline) override {
    {
      const Movement movement{*this};
      MUSTER_RETURN_IF_ERROR(combine_backward(
          routing_,
          plan_,
          floats(dy).data(),
          gates_.data(),
          returned_,
          hidden(),
          dgates.data(),
          rows_,
          ranks_,
          deadline));
    }
    dweights_.resize(row_weights_.size());
    compute_.backward(
        groups(), tensors(), row_weights_.data(), rows_.data(), rows_.data(), dweights_.data());
    const Movement movement{*this};
    const std::span<float> out = floats(dx);
    std::fill(out.begin(), out.end(), 0.0F);
    return dispatch_backward(routing_, plan_, rows_, hidden(), out.data(), ranks_, deadline);
  }

  [[nodiscard]] EpEvent event() override { return {}; }

  [[nodiscard]] const EpPlan* plan() const override { return nullptr; }

 private:
  [[nodiscard]] std::int64_t hidden() const { return options_.exchange.hidden; }

  [[nodiscard]] Status count(std::span<const std::int32_t> choices) {
    const auto experts = static_cast<std::size_t>(routing_.experts);
    routing_.counts.assign(experts, 0);
    routing_.expert.assign(choices.begin(), choices.end());
    for (std::size_t at = 0; at < choices.size(); ++at) {
      if (choices[at] < 0 || static_cast<std::size_t>(choices[at]) >= experts) {
        return invalid_argument(
            "choice ", at, " is expert ", choices[at], "; experts are 0 to ", experts - 1);
      }
      ++routing_.counts[static_cast<std::size_t>(choices[at])];
    }
    return {};
  }

  void make_groups() {
    const auto& offsets = plan_.expert_offsets;
    begins_.assign(offsets.begin(), offsets.end() - 1);
    ends_.assign(offsets.begin() + 1, offsets.end());
    group_rows_.resize(begins_.size());
    for (std::size_t group = 0; group < begins_.size(); ++group) {
      group_rows_[group] = ends_[group] - begins_[group];
    }
  }

  [[nodiscard]] kernels::RowGroups groups() const { return {begins_, group_rows_, ends_}; }

  [[nodiscard]] std::span<std::byte> inputs() {
    return {compute_.inputs(), rows_.size() * sizeof(float)};
  }

  [[nodiscard]] ExpertTensors tensors() const {
    return {
        weights_.gate.data(),
        weights_.up.data(),
        weights_.down.data(),
        weights_.gate_gradient.data(),
        weights_.up_gradient.data(),
        weights_.down_gradient.data()};
  }

  comm::Communicator& ranks_;
  ExpertLayerOptions options_;
  ExpertWeights weights_;
  ExpertCompute compute_;
  Routing routing_;
  DispatchPlan plan_;
  std::vector<float> gates_, rows_, returned_, row_weights_, dweights_;
  std::vector<std::int64_t> begins_, ends_, group_rows_;
};

}  // namespace

Expected<std::unique_ptr<ExpertLayer>> make_all_to_all_layer(
    comm::Communicator& ranks, const ExpertLayerOptions& options, ExpertWeights weights) {
  const EpExchangeOptions& exchange = options.exchange;
  MUSTER_RETURN_IF_ERROR(check(exchange.shape, exchange.balance));
  if (exchange.type != DType::kFloat32) {
    return invalid_argument(
        "the ordinary all-to-all carries fp32 rows, not ",
        exchange.type,
        "; use the balanced exchange, with balance none if need be");
  }
  return std::unique_ptr<ExpertLayer>{std::make_unique<AllToAllLayer>(ranks, options, weights)};
}

}  // namespace muster::parallel
