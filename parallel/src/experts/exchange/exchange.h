// SPDX-License-Identifier: Apache-2.0
// The exchange of one rank. Every rank's chunk of the heap holds:
//
//   rows, weights, values  [receive_rows]: received rows, their gates, and the values that return
//                          with them
//   row_chain              [receive_rows]: that of the plan being made, written by the ranks that
//                          own the tokens
//   counts                 [R, E]: row r is written by rank r
//   records                those of ValidatedBarrier
#pragma once

#include "parallel/src/experts/exchange/expert_transfer.h"
#include "parallel/src/experts/exchange/validated_barrier.h"

#include <muster/common/clock.h>
#include <muster/parallel/experts/exchange.h>

#include <array>

namespace muster::parallel::experts {

// Returns the n of an entry of EpPlan::row_chain: the row of the token's next choice plus 1, or 0.
[[nodiscard]] inline std::int64_t next_in_chain(std::int32_t entry) {
  return entry < 0 ? -std::int64_t{entry} - 1 : entry;
}

struct Layout {
  std::size_t rows{0};
  std::size_t weights{0};
  std::size_t values{0};
  std::size_t row_chain{0};
  std::size_t counts{0};
  std::size_t records{0};
};

// Adds the time from construction to destruction, without waits at barriers, to a total.
class Stopwatch {
 public:
  Stopwatch(const Clock& clock, const ValidatedBarrier& barrier, std::int64_t& total_ns);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  Stopwatch(Stopwatch&&) = delete;
  Stopwatch& operator=(Stopwatch&&) = delete;

 private:
  const Clock& clock_;
  const ValidatedBarrier& barrier_;
  std::int64_t& total_ns_;
  MonotonicTime start_;
  std::int64_t waited_before_ns_;
};

class Exchange final : public EpExchange {
 public:
  Exchange(
      comm::SymmetricHeap& heap, EpPool* pool, const EpExchangeOptions& options, Layout layout);

  // Compares the options of all ranks.
  [[nodiscard]] Status agree(Deadline deadline);

  [[nodiscard]] const EpExchangeOptions& options() const override { return options_; }

  [[nodiscard]] EpPlanner& planner() override { return planner_; }

  [[nodiscard]] Status make_plan(
      std::span<const std::int32_t> choices, EpPlan& plan, Deadline deadline) override;
  [[nodiscard]] Status dispatch(
      const EpPlan& plan,
      std::span<const std::byte> x,
      std::span<const float> gates,
      EpRows& received,
      Deadline deadline) override;
  [[nodiscard]] Status combine(
      const EpPlan& plan,
      std::span<std::byte> rows,
      std::span<const float> row_values,
      std::span<std::byte> y,
      std::span<float> values,
      Deadline deadline) override;
  [[nodiscard]] Status prefetch(
      const EpPlan& plan, const EpLayerMemory& layer, Deadline deadline) override;
  [[nodiscard]] Status reduce_gradients(
      const EpPlan& plan, const EpLayerMemory& layer, Deadline deadline) override;
  [[nodiscard]] EpEvent take_event(const EpPlan& plan) override;

 private:
  struct Place {
    int rank;
    std::int64_t row;
    bool is_first;  // the token's first row on that rank
  };

  template <typename T>
  [[nodiscard]] T* at(int peer, std::size_t offset) const {
    return heap_.at<T>(peer, offset);
  }

  [[nodiscard]] std::byte* row(int peer, std::int64_t index) const {
    return heap_.pointer(peer, layout_.rows) + static_cast<std::size_t>(index) * row_bytes_;
  }

  template <typename T>
  [[nodiscard]] T* typed_row(int peer, std::int64_t index) const {
    return reinterpret_cast<T*>(row(peer, index));  // NOLINT
  }

  [[nodiscard]] Place place(std::int64_t destination) const {
    const bool is_first = destination >= 0;
    const std::int64_t code = is_first ? destination : -destination - 1;
    return {static_cast<int>(code / receive_rows_), code % receive_rows_, is_first};
  }

  [[nodiscard]] Status check_plan(const EpPlan& plan) const;

  // --- make_plan ---
  [[nodiscard]] Status count(std::span<const std::int32_t> choices, const EpPlan& plan);
  void publish_counts();
  void publish_row_chain(const EpPlan& plan);

  // --- dispatch ---
  // Index 0 counts rows to this rank itself, 1 those to other ranks.
  struct Sent {
    std::array<std::int64_t, 2> rows{};
    std::array<std::int64_t, 2> choices{};
  };

  struct Received {
    std::int64_t rows{0};     // sent to this rank
    std::int64_t choices{0};  // the same with the copies made on this rank
  };

  [[nodiscard]] Status agree_on_gates(bool& with_gates) const;
  Sent push(const EpPlan& plan, std::span<const std::byte> x, std::span<const float> gates);
  void clear_padding(const EpPlan& plan, bool with_gates);
  Received expand(const EpPlan& plan);
  void count_received(const Received& received, const Sent& sent, bool with_gates);
  template <typename Visit>
  void for_own_rows(const EpPlan& plan, const Visit& visit) const;

  // --- combine ---
  [[nodiscard]] Status check_combine(
      const EpPlan& plan,
      std::span<const std::byte> rows,
      std::span<const float> row_values,
      std::span<const std::byte> y,
      std::span<const float> values) const;
  void stage(
      const EpPlan& plan, std::span<const std::byte> rows, std::span<const float> row_values);
  void sum_duplicates(const EpPlan& plan);
  template <typename T>
  void sum_chain(const EpPlan& plan, std::int64_t first, std::int64_t next);
  void pull(const EpPlan& plan, std::span<std::byte> y);
  template <typename T>
  void pull_firsts(const std::int64_t* destinations, T* y) const;
  void pull_separate(const std::int64_t* destinations, std::uint16_t* y);
  void pull_values(const EpPlan& plan, std::span<float> values) const;
  void count_combine(const EpPlan& plan, bool with_values);

  // Constant after construction.
  comm::SymmetricHeap& heap_;
  EpExchangeOptions options_;
  Layout layout_;
  const Clock& clock_;
  int rank_;
  int ranks_;
  std::int64_t receive_rows_;
  std::size_t row_bytes_;
  // Each row of a token is sent on its own, because a bf16 row cannot hold their sum without
  // rounding.
  bool separate_;

  EpPlanner planner_;
  EpEvent event_;
  ValidatedBarrier barrier_;
  ExpertTransfer transfer_;
  std::uint64_t pulled_after_{0};  // barrier_.count() when this rank last pulled peers' rows, or 0
  std::vector<std::int32_t> histogram_;  // [E]
  // [R] while the row chain is written: row of a token's later choice on a rank, and that token.
  std::vector<std::int64_t> next_row_;
  std::vector<std::int64_t> next_token_;
  std::vector<float> sum_;      // [H]
  std::vector<float> partial_;  // [H]
};

template <typename Visit>
void Exchange::for_own_rows(const EpPlan& plan, const Visit& visit) const {
  const auto groups = static_cast<std::size_t>(plan.shape.group_count());
  const std::size_t base = static_cast<std::size_t>(rank_) * groups;
  for (std::size_t g = base; g < base + groups; ++g) {
    for (std::int64_t i = plan.begins[g]; i < plan.begins[g] + plan.group_rows[g]; ++i) {
      visit(i, plan.row_chain[static_cast<std::size_t>(i)]);
    }
  }
}

}  // namespace muster::parallel::experts
