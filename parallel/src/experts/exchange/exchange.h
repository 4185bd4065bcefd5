// The exchange of one rank: where things lie in every chunk, how ranks agree, what is counted.
//
// Every rank has in its chunk:
//   rows, weights, values  [receive_rows]: what it got, their gates, what goes home beside rows
//   links                  [receive_rows]: of the plan being made, written by the tokens' homes
//   counts                 [R, E]: row r written by rank r
//   records                [2, R]: what rank r brings to a meeting, two meetings in turn
#pragma once

#include <muster/parallel/experts/exchange.h>

#include <array>
#include <chrono>

namespace muster::parallel::experts {

// What a rank is about to do. Ranks that meet must do the same.
enum class Operation : std::uint32_t {
  kCreate,
  kPlanCounts,
  kPlanTables,
  kDispatch,
  kCombine,
  kCombineWithValues,
  kPrefetch,
  kReduce,
};

[[nodiscard]] const char* name_of(Operation operation);

// Whether gates travel with rows; a rank without tokens cannot tell and follows its peers.
enum class Gates : std::uint32_t { kNo, kYes, kEither };

struct Record {
  std::uint64_t hash;
  Operation operation;
  Gates gates;
  std::uint32_t code;  // of the Status with which this rank refuses, 0 otherwise
  std::array<char, 236> message;
};

// The n of EpPlan::links: the row of the token's next choice plus 1, or 0.
[[nodiscard]] inline std::int64_t next_of(std::int32_t link) {
  return link < 0 ? -std::int64_t{link} - 1 : link;
}

struct Layout {
  std::size_t rows{0};
  std::size_t weights{0};
  std::size_t values{0};
  std::size_t links{0};
  std::size_t counts{0};
  std::size_t records{0};
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
    bool is_first;  // of its token on that rank
  };

  // Adds the time of its life without waits at barriers.
  class Stopwatch {
   public:
    Stopwatch(Exchange& exchange, std::int64_t& total);
    ~Stopwatch();
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;
    Stopwatch(Stopwatch&&) = delete;
    Stopwatch& operator=(Stopwatch&&) = delete;

   private:
    Exchange& exchange_;
    std::int64_t& total_;
    std::chrono::steady_clock::time_point start_;
    std::int64_t waited_before_ns_;
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

  // --- agreement ---
  [[nodiscard]] Status barrier(std::string_view phase, Deadline deadline);
  // A barrier at which every rank says what it brings; all ranks return the same refusal.
  [[nodiscard]] Status meet(
      std::string_view phase, const Record& mine, const Status& refusal, Deadline deadline);
  [[nodiscard]] Status compare(const Record* records) const;
  [[nodiscard]] const Record* last_records() const;
  [[nodiscard]] Record record(Operation operation, std::uint64_t hash) const;
  [[nodiscard]] Status check_plan_argument(const EpPlan& plan) const;

  // --- make_plan ---
  [[nodiscard]] Status count(std::span<const std::int32_t> choices, const EpPlan& plan);
  void publish_counts();
  void publish_links(const EpPlan& plan);

  // --- dispatch ---
  // [0] to this rank itself, [1] to others.
  struct Sent {
    std::array<std::int64_t, 2> rows{};
    std::array<std::int64_t, 2> choices{};
  };

  // Rows that were sent to this rank, and those with their copies here.
  struct Got {
    std::int64_t rows{0};
    std::int64_t choices{0};
  };

  [[nodiscard]] Status agree_on_gates(bool& with_gates) const;
  Sent push(const EpPlan& plan, std::span<const std::byte> x, std::span<const float> gates);
  void clear_padding(const EpPlan& plan, bool with_gates);
  Got expand(const EpPlan& plan);
  void count_received(const Got& got, const Sent& sent, bool with_gates);
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

  // --- experts ---
  [[nodiscard]] Status check_layer(const EpPlan& plan, const EpLayerMemory& layer) const;
  template <typename Visit>
  void for_slots(const EpPlan& plan, const Visit& visit) const;
  void push_expert(const EpLayerMemory& layer, int expert, int peer, int slot);
  void add_slot_gradients(const EpLayerMemory& layer, int expert, int peer, int slot);
  void clear_used_slots(const EpPlan& plan);
  void count_experts(const EpPlan& plan, std::int64_t element_bytes, bool away);

  // Constant after construction.
  comm::SymmetricHeap& heap_;
  EpPool* pool_;
  EpExchangeOptions options_;
  Layout layout_;
  int rank_;
  int ranks_;
  std::int64_t receive_rows_;
  std::size_t row_bytes_;
  // Rows with a token's others on the same rank cross the wire one by one: their sum has no place
  // in a bf16 row without rounding.
  bool separate_;

  EpPlanner planner_;
  std::uint64_t meetings_{0};
  bool pulled_{false};  // from peers' rows since the last barrier
  EpEvent event_;
  std::int64_t waited_ns_{0};
  std::vector<std::int32_t> histogram_;  // [E]
  std::vector<std::int64_t> next_;      // [R] row of the token's later choice, while links are made
  std::vector<std::int64_t> token_of_;  // [R] whose `next_` it is
  std::vector<float> sum_;              // [H]
  std::vector<float> partial_;          // [H]
};

template <typename Visit>
void Exchange::for_own_rows(const EpPlan& plan, const Visit& visit) const {
  const auto groups = static_cast<std::size_t>(plan.shape.group_count());
  const std::size_t base = static_cast<std::size_t>(rank_) * groups;
  for (std::size_t g = base; g < base + groups; ++g) {
    for (std::int64_t i = plan.begins[g]; i < plan.begins[g] + plan.group_rows[g]; ++i) {
      visit(i, plan.links[static_cast<std::size_t>(i)]);
    }
  }
}

}  // namespace muster::parallel::experts
