// SPDX-License-Identifier: Apache-2.0
// Expert layers over the symmetric heap: every rank computes the same number of rows.
#include "parallel/src/experts/layer/experts.h"

#include <muster/parallel/experts/layer.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace muster::parallel {
namespace {

// State of the slots that the layers of a process share.
struct SharedSlots {
  const void* owner{nullptr};  // the layer whose experts the slots hold
};

struct GroupParts {
  comm::SymmetricHeap& heap;
  EpPool& pool;
  EpExchange& exchange;
  SharedSlots& slots;
  ExpertLayerOptions options;
};

class BalancedLayer final : public ExpertLayer {
 public:
  BalancedLayer(const GroupParts& parts, EpLayerMemory memory)
      : parts_(parts),
        memory_(std::move(memory)),
        plan_(parts.options.exchange.shape, parts.options.exchange.balance),
        compute_(
            parts.options.exchange.type,
            parts.options.exchange.hidden,
            parts.options.ffn,
            parts.options.threads) {
    compute_.reserve(plan_.receive_rows);
    const auto rows = static_cast<std::size_t>(plan_.receive_rows);
    weights_.resize(rows);
    dweights_.resize(rows);
  }

  [[nodiscard]] Status forward(
      std::span<const std::byte> x,
      std::span<const std::int32_t> choices,
      std::span<const float> gates,
      std::span<std::byte> y,
      Deadline deadline) override {
    planned_ = false;
    if (parts_.slots.owner == this) {
      parts_.slots.owner = nullptr;  // the plan changes, and weights may have been updated
    }
    EpRows received;
    {
      const Movement movement{*this};
      static_cast<void>(event());  // drops the counters of an abandoned pass
      MUSTER_RETURN_IF_ERROR(named(parts_.exchange.make_plan(choices, plan_, deadline)));
      MUSTER_RETURN_IF_ERROR(named(check_slots()));
      MUSTER_RETURN_IF_ERROR(named(parts_.exchange.dispatch(plan_, x, gates, received, deadline)));
      MUSTER_RETURN_IF_ERROR(fetch_experts(deadline));
      keep(received);
    }
    compute_.forward(groups(), tensors(), weights_.data(), received.rows.data());
    planned_ = true;
    const Movement movement{*this};
    return named(parts_.exchange.combine(plan_, received.rows, {}, y, {}, deadline));
  }

  [[nodiscard]] Status backward(
      std::span<const std::byte> dy,
      std::span<std::byte> dx,
      std::span<float> dgates,
      Deadline deadline) override {
    if (!planned_) {
      return failed_precondition(memory_.name, ": backward without a forward before it");
    }
    EpRows received;
    {
      const Movement movement{*this};
      MUSTER_RETURN_IF_ERROR(named(parts_.exchange.dispatch(plan_, dy, {}, received, deadline)));
      MUSTER_RETURN_IF_ERROR(fetch_experts(deadline));
    }
    std::byte* rows = received.rows.data();
    compute_.backward(groups(), tensors(), weights_.data(), rows, rows, dweights_.data());
    const Movement movement{*this};
    MUSTER_RETURN_IF_ERROR(
        named(parts_.exchange.combine(plan_, received.rows, dweights_, dx, dgates, deadline)));
    return named(parts_.exchange.reduce_gradients(plan_, memory_, deadline));
  }

  [[nodiscard]] EpEvent event() override {
    EpEvent event = parts_.exchange.take_event(plan_);
    event.bytes_local += std::exchange(kept_bytes_, 0);
    return event;
  }

  [[nodiscard]] const EpPlan* plan() const override { return planned_ ? &plan_ : nullptr; }

 private:
  [[nodiscard]] Status named(const Status& status) const { return status.context(memory_.name); }

  // Gradients of an expert that is read from home have no slot to accumulate in. Every rank has the
  // same plan and returns the same Status.
  [[nodiscard]] Status check_slots() const {
    const std::int64_t without = plan_.statistics.overflow_groups;
    if (without == 0) {
      return {};
    }
    return failed_precondition(
        "the plan leaves ",
        without,
        " experts without one of the ",
        plan_.shape.slot_count(),
        " slots, and training needs one for each; give homes_max times ",
        plan_.shape.local_experts(),
        " slots, or homes_max 1");
  }

  // The slots hold the experts of one layer and one plan. A forward pass always fetches; a backward
  // pass fetches if another layer has done so in between. All ranks run the layers in the same
  // order and therefore agree.
  [[nodiscard]] Status fetch_experts(Deadline deadline) {
    if (plan_.statistics.copies == 0 || parts_.slots.owner == this) {
      return {};
    }
    parts_.slots.owner = nullptr;
    MUSTER_RETURN_IF_ERROR(named(parts_.exchange.prefetch(plan_, memory_, deadline)));
    parts_.slots.owner = this;
    return {};
  }

  // Copies the received rows, since the next dispatch of any layer overwrites the receive buffer.
  void keep(const EpRows& received) {
    const std::int64_t rows = ep_row_count(plan_, plan_.rank);
    const EpExchangeOptions& exchange = parts_.options.exchange;
    const auto bytes = static_cast<std::size_t>(size_bytes(exchange.type, rows * exchange.hidden));
    if (bytes != 0) {
      std::memcpy(compute_.inputs(), received.rows.data(), bytes);
    }
    std::copy_n(received.weights.begin(), rows, weights_.begin());
    kept_bytes_ += static_cast<std::int64_t>(bytes) + rows * std::int64_t{sizeof(float)};
  }

  [[nodiscard]] kernels::RowGroups groups() const {
    const auto count = static_cast<std::size_t>(plan_.shape.group_count());
    const std::size_t begin = static_cast<std::size_t>(plan_.rank) * count;
    const auto of = [&](const std::vector<std::int64_t>& table) {
      return std::span{table}.subspan(begin, count);
    };
    return {of(plan_.begins), of(plan_.group_rows), of(plan_.ends)};
  }

  [[nodiscard]] ExpertTensors tensors() const {
    const auto& projections = memory_.projections;
    return {
        projections[0].weights.data(),
        projections[1].weights.data(),
        projections[2].weights.data(),
        projections[0].gradients.data(),
        projections[1].gradients.data(),
        projections[2].gradients.data()};
  }

  GroupParts parts_;
  EpLayerMemory memory_;
  EpPlan plan_;
  bool planned_{false};
  ExpertCompute compute_;
  std::int64_t kept_bytes_{0};   // copied by keep() since the last event
  std::vector<float> weights_;   // [receive rows] gates of the plan's rows
  std::vector<float> dweights_;  // [receive rows]
};

class BalancedGroup final : public ExpertGroup {
 public:
  BalancedGroup(
      ExpertLayerOptions options,
      std::unique_ptr<comm::SymmetricHeap> heap,
      std::unique_ptr<EpPool> pool,
      std::unique_ptr<EpExchange> exchange)
      : options_(std::move(options)),
        heap_(std::move(heap)),
        pool_(std::move(pool)),
        exchange_(std::move(exchange)) {}

  [[nodiscard]] Expected<std::span<std::byte>> allocate(std::size_t bytes) override {
    MUSTER_ASSIGN_OR_RETURN(
        const std::size_t offset, heap_->allocate(bytes, comm::kSymmetricGranularity));
    return std::span{heap_->pointer(heap_->rank(), offset), bytes};
  }

  [[nodiscard]] Status seal(Deadline deadline) override { return heap_->seal(deadline); }

  [[nodiscard]] Expected<std::unique_ptr<ExpertLayer>> make_layer(
      std::string name, Home gate, Home up, Home down) override {
    std::array<std::size_t, 3> weights{};
    std::array<std::size_t, 3> gradients{};
    const std::array homes{gate, up, down};
    for (std::size_t at = 0; at < homes.size(); ++at) {
      MUSTER_ASSIGN_OR_RETURN(weights[at], offset_of(name, homes[at].weights));
      MUSTER_ASSIGN_OR_RETURN(gradients[at], offset_of(name, homes[at].gradient));
    }
    MUSTER_ASSIGN_OR_RETURN(
        EpLayerMemory memory, pool_->map_layer(std::move(name), weights, gradients));
    return std::unique_ptr<ExpertLayer>{std::make_unique<BalancedLayer>(
        GroupParts{*heap_, *pool_, *exchange_, slots_, options_}, std::move(memory))};
  }

  [[nodiscard]] EpExchange& exchange() override { return *exchange_; }

  [[nodiscard]] comm::SymmetricHeap& heap() override { return *heap_; }

 private:
  [[nodiscard]] Expected<std::size_t> offset_of(
      const std::string& layer, const void* memory) const {
    const auto* address = static_cast<const std::byte*>(memory);
    const std::byte* chunk = heap_->pointer(heap_->rank(), 0);
    if (std::less<>{}(address, chunk) || !std::less<>{}(address, chunk + heap_->stride())) {
      return invalid_argument(
          layer, ": expert weights and gradients must be in memory of ExpertGroup::allocate");
    }
    const std::size_t offset = heap_->offset_of(memory);
    if (offset % comm::kSymmetricGranularity != 0) {
      return invalid_argument(
          layer,
          ": expert memory begins at byte ",
          offset,
          " of the heap, which is not a multiple of ",
          comm::kSymmetricGranularity,
          "; give every expert parameter a size that is");
    }
    return offset;
  }

  ExpertLayerOptions options_;
  std::unique_ptr<comm::SymmetricHeap> heap_;
  std::unique_ptr<EpPool> pool_;
  std::unique_ptr<EpExchange> exchange_;
  SharedSlots slots_;
};

}  // namespace

Expected<std::unique_ptr<ExpertGroup>> ExpertGroup::create(
    comm::Communicator& ranks,
    const ExpertLayerOptions& options,
    std::size_t home_bytes,
    Deadline deadline) {
  const EpExchangeOptions& exchange_options = options.exchange;
  MUSTER_RETURN_IF_ERROR(check(exchange_options.shape, exchange_options.balance));
  if (exchange_options.shape.slot_count() < exchange_options.shape.local_experts()) {
    return invalid_argument(
        "training needs a slot for every expert of a rank: slots ",
        exchange_options.shape.slot_count(),
        " < ",
        exchange_options.shape.local_experts(),
        " experts per rank; leave slots at its default");
  }
  std::vector<EpProjection> projections{
      {options.ffn, exchange_options.hidden},
      {options.ffn, exchange_options.hidden},
      {exchange_options.hidden, options.ffn}};
  const std::size_t bytes =
      home_bytes + EpPool::heap_bytes(exchange_options.shape, projections, exchange_options.type) +
      EpExchange::heap_bytes(exchange_options);
  MUSTER_ASSIGN_OR_RETURN(
      std::unique_ptr<comm::SymmetricHeap> heap,
      comm::SymmetricHeap::create(ranks, bytes, deadline));
  MUSTER_ASSIGN_OR_RETURN(
      std::unique_ptr<EpPool> pool,
      EpPool::create(*heap, exchange_options.shape, std::move(projections), exchange_options.type));
  MUSTER_ASSIGN_OR_RETURN(
      std::unique_ptr<EpExchange> exchange,
      EpExchange::create(*heap, pool.get(), exchange_options, deadline));
  return std::unique_ptr<ExpertGroup>{std::make_unique<BalancedGroup>(
      options, std::move(heap), std::move(pool), std::move(exchange))};
}

}  // namespace muster::parallel
