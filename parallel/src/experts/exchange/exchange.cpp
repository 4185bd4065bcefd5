#include "parallel/src/experts/exchange/exchange.h"

#include <muster/common/hash.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

namespace muster::parallel {

namespace {

constexpr std::size_t kAlignment = 64;

std::size_t round_up(std::size_t bytes) {
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
        records(2 * ranks * sizeof(experts::Record)) {}

  [[nodiscard]] std::size_t total() const {
    // What was allocated before may end anywhere.
    return kAlignment + round_up(rows) + 3 * round_up(per_row) + round_up(counts) +
           round_up(records);
  }

  std::size_t rows;
  std::size_t per_row;  // weights, values and links each
  std::size_t counts;
  std::size_t records;
};

Status check_options(
    const comm::SymmetricHeap& heap, const EpPool* pool, const EpExchangeOptions& options) {
  MUSTER_RETURN_IF_ERROR(check(options.shape, options.balance));
  const EpShape& shape = options.shape;
  if (shape.ranks != heap.size()) {
    return invalid_argument(
        "the shape is of " + std::to_string(shape.ranks) + " ranks, the heap of " +
        std::to_string(heap.size()) + ": give the size of the expert group");
  }
  if (options.hidden < 1) {
    return invalid_argument("hidden is " + std::to_string(options.hidden) + ": at least 1");
  }
  if (options.type != kernels::FloatType::kFloat32 &&
      options.type != kernels::FloatType::kBFloat16) {
    return invalid_argument(
        std::string{"rows are float32 or bfloat16, not "} + to_string(options.type));
  }
  if (options.numerics == EpNumerics::kWireExact && options.type != kernels::FloatType::kBFloat16) {
    return invalid_argument(
        "wire-exact numerics round sums to the type of bfloat16 rows; float32 rows take plain");
  }
  const std::int64_t rows = ep_receive_rows(shape, options.balance);
  if (rows > std::numeric_limits<std::int32_t>::max() - 1 ||
      options.hidden > std::numeric_limits<std::int64_t>::max() / 8 / rows) {
    return invalid_argument(
        "a receive buffer of " + std::to_string(rows) + " rows of " +
        std::to_string(options.hidden) + " is too large: fewer tokens_max per rank");
  }
  if (pool != nullptr && !(pool->shape() == shape)) {
    return invalid_argument(
        "the pool has another shape than the exchange: make both of one EpShape");
  }
  return {};
}

std::uint64_t hash_of(const EpExchangeOptions& options) {
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
      {&layout.links, sizes.per_row},
      {&layout.counts, sizes.counts},
      {&layout.records, sizes.records},
  }};
  for (const auto& [offset, bytes] : parts) {
    auto place = heap.allocate(bytes, kAlignment);
    if (!place) {
      return place.status().context(
          "expert exchange takes " + std::to_string(sizes.total()) +
          " bytes of heap per rank (EpExchange::heap_bytes): make the heap larger or tokens_max "
          "smaller");
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
      pool_(pool),
      options_(options),
      layout_(layout),
      rank_(heap.rank()),
      ranks_(heap.size()),
      receive_rows_(ep_receive_rows(options.shape, options.balance)),
      row_bytes_(static_cast<std::size_t>(options.hidden * size_bytes(options.type))),
      separate_(
          options.type == kernels::FloatType::kBFloat16 && options.numerics == EpNumerics::kPlain),
      planner_(options.shape, options.balance),
      histogram_(static_cast<std::size_t>(options.shape.experts)),
      next_(static_cast<std::size_t>(ranks_)),
      token_of_(static_cast<std::size_t>(ranks_)),
      sum_(static_cast<std::size_t>(options.hidden)),
      partial_(static_cast<std::size_t>(options.hidden)) {}

Status Exchange::agree(Deadline deadline) {
  return meet(
      "creation of the expert exchange",
      record(Operation::kCreate, hash_of(options_)),
      {},
      deadline);
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

Exchange::Stopwatch::Stopwatch(Exchange& exchange, std::int64_t& total)
    : exchange_(exchange),
      total_(total),
      start_(std::chrono::steady_clock::now()),
      waited_before_ns_(exchange.waited_ns_) {}

Exchange::Stopwatch::~Stopwatch() {
  const auto lived = std::chrono::steady_clock::now() - start_;
  total_ += std::chrono::nanoseconds{lived}.count() - (exchange_.waited_ns_ - waited_before_ns_);
}

}  // namespace experts

}  // namespace muster::parallel
