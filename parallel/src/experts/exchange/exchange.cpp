// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/exchange/exchange.h"

#include <muster/common/hash.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

namespace muster::parallel {

namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct Sizes {
  explicit Sizes(const EpExchangeOptions& options)
      : Sizes(
            static_cast<std::size_t>(ep_receive_rows(options.shape, options.balance)),
            static_cast<std::size_t>(options.shape.ranks),
            options) {}

  Sizes(std::size_t receive_rows, std::size_t ranks, const EpExchangeOptions& options)
      : rows(
            receive_rows * static_cast<std::size_t>(options.hidden) *
            static_cast<std::size_t>(size_bytes(options.type))),
        per_row(receive_rows * sizeof(float)),
        counts(ranks * static_cast<std::size_t>(options.shape.experts) * sizeof(std::int32_t)),
        records(experts::ValidatedBarrier::heap_bytes(ranks)) {}

  [[nodiscard]] std::size_t total() const {
    // Earlier allocations may end at any address.
    return kAlignment + aligned(rows) + 3 * aligned(per_row) + aligned(counts) + aligned(records);
  }

  std::size_t rows;
  std::size_t per_row;  // weights, values and row_chain each
  std::size_t counts;
  std::size_t records;
};

Status check_options(
    const comm::SymmetricHeap& heap, const EpPool* pool, const EpExchangeOptions& options) {
  MUSTER_RETURN_IF_ERROR(check(options.shape, options.balance));
  const EpShape& shape = options.shape;
  if (shape.ranks != heap.size()) {
    return invalid_argument(
        "shape.ranks must be the size of the heap's group, ", heap.size(), ", got ", shape.ranks);
  }
  if (options.hidden < 1) {
    return invalid_argument("hidden must be at least 1, got ", options.hidden);
  }
  if (options.type != DType::kFloat32 && options.type != DType::kBFloat16) {
    return invalid_argument("type of rows must be float32 or bfloat16, got ", options.type);
  }
  if (options.numerics == EpNumerics::kWireExact && options.type != DType::kBFloat16) {
    return invalid_argument(
        "wire-exact numerics round sums to the type of bfloat16 rows; float32 rows take plain");
  }
  const std::int64_t rows = ep_receive_rows(shape, options.balance);
  if (rows > std::numeric_limits<std::int32_t>::max() - 1 ||
      options.hidden > std::numeric_limits<std::int64_t>::max() / 8 / rows) {
    return invalid_argument(
        "a receive buffer of ",
        rows,
        " rows of ",
        options.hidden,
        " is too large: fewer tokens_max per rank");
  }
  if (pool != nullptr && !(pool->shape() == shape)) {
    return invalid_argument(
        "the pool has another shape than the exchange: make both of one EpShape");
  }
  return {};
}

std::uint64_t fingerprint(const EpExchangeOptions& options) {
  const EpShape& shape = options.shape;
  const EpBalance& balance = options.balance;
  std::vector<std::int64_t> words{
      shape.ranks,
      shape.experts,
      shape.top_k,
      shape.tokens_max,
      shape.slot_count(),
      shape.padding,
      shape.compact ? 1 : 0,
      static_cast<std::int64_t>(balance.mode),
      std::bit_cast<std::int64_t>(balance.tolerance),
      std::bit_cast<std::int64_t>(balance.capacity_max),
      balance.homes_max,
      options.hidden,
      static_cast<std::int64_t>(options.type),
      static_cast<std::int64_t>(options.numerics),
      options.entry_barriers ? 1 : 0};
  for (const double speed : balance.speeds) {
    words.push_back(std::bit_cast<std::int64_t>(speed));
  }
  return hash64(std::as_bytes(std::span{words}));
}

}  // namespace

std::size_t EpExchange::heap_bytes(const EpExchangeOptions& options) {
  return Sizes{options}.total();
}

Expected<std::unique_ptr<EpExchange>> EpExchange::create(
    comm::SymmetricHeap& heap, EpPool* pool, const EpExchangeOptions& options, Deadline deadline) {
  MUSTER_RETURN_IF_ERROR(check_options(heap, pool, options).context("expert exchange"));
  const Sizes sizes{options};
  experts::Layout layout;
  const std::array<std::pair<std::size_t*, std::size_t>, 6> parts{{
      {&layout.rows, sizes.rows},
      {&layout.weights, sizes.per_row},
      {&layout.values, sizes.per_row},
      {&layout.row_chain, sizes.per_row},
      {&layout.counts, sizes.counts},
      {&layout.records, sizes.records},
  }};
  for (const auto& [offset, bytes] : parts) {
    auto place = heap.allocate(bytes, kAlignment);
    if (!place) {
      return place.status().context(concat(
          "expert exchange takes ",
          sizes.total(),
          " bytes of heap per rank (EpExchange::heap_bytes): make the heap larger or tokens_max "
          "smaller"));
    }
    *offset = *place;
  }
  MUSTER_RETURN_IF_ERROR(heap.seal(deadline).context("expert exchange"));
  auto exchange = std::make_unique<experts::Exchange>(heap, pool, options, layout);
  MUSTER_RETURN_IF_ERROR(exchange->agree(deadline));
  return std::unique_ptr<EpExchange>{std::move(exchange)};
}

namespace experts {

Exchange::Exchange(
    comm::SymmetricHeap& heap, EpPool* pool, const EpExchangeOptions& options, Layout layout)
    : heap_(heap),
      options_(options),
      layout_(layout),
      clock_(options.clock != nullptr ? *options.clock : Clock::system()),
      rank_(heap.rank()),
      ranks_(heap.size()),
      receive_rows_(ep_receive_rows(options.shape, options.balance)),
      row_bytes_(static_cast<std::size_t>(size_bytes(options.type, options.hidden))),
      separate_(options.type == DType::kBFloat16 && options.numerics == EpNumerics::kPlain),
      planner_(options.shape, options.balance),
      barrier_(
          heap,
          layout.records,
          std::span{event_.wait_ns}.first(static_cast<std::size_t>(ranks_)),
          clock_),
      transfer_(heap, pool, options_, barrier_, event_),
      histogram_(static_cast<std::size_t>(options.shape.experts)),
      next_row_(static_cast<std::size_t>(ranks_)),
      next_token_(static_cast<std::size_t>(ranks_)),
      sum_(static_cast<std::size_t>(options.hidden)),
      partial_(static_cast<std::size_t>(options.hidden)) {}

Status Exchange::agree(Deadline deadline) {
  return barrier_.validate(
      "creation of the expert exchange",
      make_record(Operation::kCreate, fingerprint(options_)),
      {},
      deadline);
}

Status Exchange::prefetch(const EpPlan& plan, const EpLayerMemory& layer, Deadline deadline) {
  const Stopwatch watch{clock_, barrier_, event_.move_ns};
  return transfer_.prefetch(plan, layer, check_plan(plan), deadline);
}

Status Exchange::reduce_gradients(
    const EpPlan& plan, const EpLayerMemory& layer, Deadline deadline) {
  const Stopwatch watch{clock_, barrier_, event_.move_ns};
  return transfer_.reduce_gradients(plan, layer, check_plan(plan), deadline);
}

Status Exchange::check_plan(const EpPlan& plan) const {
  if (!(plan.shape == options_.shape)) {
    return invalid_argument(
        "the plan is of another shape (",
        plan.shape.ranks,
        " ranks, ",
        plan.shape.experts,
        " experts, top ",
        plan.shape.top_k,
        ") than the exchange (",
        ranks_,
        ", ",
        options_.shape.experts,
        ", ",
        options_.shape.top_k,
        "): make it with this exchange");
  }
  if (plan.receive_rows != receive_rows_) {
    return invalid_argument(
        "the plan is for buffers of ",
        plan.receive_rows,
        " rows, the exchange has ",
        receive_rows_,
        ": their balance differs; make it with this exchange");
  }
  if (std::cmp_not_equal(plan.row_chain.size(), receive_rows_)) {
    return invalid_argument(
        "the plan has a row_chain of ",
        plan.row_chain.size(),
        " entries for ",
        receive_rows_,
        " rows: a planner's plan cannot move rows, one of make_plan can");
  }
  if (plan.rank != rank_) {
    return invalid_argument(
        "the plan is of rank ", plan.rank, ", this is rank ", rank_, ": each rank keeps its own");
  }
  const std::int64_t choices = plan.tokens * options_.shape.top_k;
  if (plan.tokens < 0 || plan.tokens > options_.shape.tokens_max ||
      std::cmp_less(plan.destinations.size(), choices)) {
    return invalid_argument(
        "the plan has ",
        plan.destinations.size(),
        " destinations for ",
        plan.tokens,
        " tokens: it was changed after make_plan");
  }
  return {};
}

EpEvent Exchange::take_event(const EpPlan& plan) {
  const EpPlanStatistics& statistics = plan.statistics;
  EpEvent event = event_;
  event.ranks = ranks_;
  event.max_violation = statistics.max_violation;
  event.rank_imbalance = statistics.rank_imbalance;
  event.rows = statistics.rows;
  event.copies = statistics.copies;
  event.copies_in_max = statistics.copies_in_max;
  event.copies_out_max = statistics.copies_out_max;
  event.rows_moved = statistics.rows_moved;
  event.pad_rows = statistics.pad_rows;
  event.plan_hash = plan.hash;
  event_ = {};
  return event;
}

Stopwatch::Stopwatch(const Clock& clock, const ValidatedBarrier& barrier, std::int64_t& total_ns)
    : clock_(clock),
      barrier_(barrier),
      total_ns_(total_ns),
      start_(clock.now()),
      waited_before_ns_(barrier.waited_ns()) {}

Stopwatch::~Stopwatch() {
  const std::chrono::nanoseconds elapsed = clock_.now() - start_;
  total_ns_ += elapsed.count() - (barrier_.waited_ns() - waited_before_ns_);
}

}  // namespace experts

}  // namespace muster::parallel
