// Expert parallelism, the planner: which rank computes which rows of a mixture-of-experts layer, so
// that every rank has the same number of rows whatever the routing is. Experts that are needed away
// from home are copied there for the step ("slots").
//
// Planning is replicated: every rank sees the same counts [ranks, experts], runs the same integer
// code and gets the same tables; hash() is compared across ranks. Formulas, proof and tie-breaks:
// docs/concepts/experts.md.
//
// Notation: R ranks, E experts, m = E / R experts at home per rank (expert e lives on rank e / m),
// S tokens of a rank (ranks may differ), K choices per token, B slots per rank.
//
// Errors: kInvalidArgument with the numbers and the rule they break, before anything is written.
// Nothing allocates after construction. Thread-safety: objects belong to one call at a time.
#pragma once

#include <muster/common/expected.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace muster::parallel {

inline constexpr int kEpRanksMax = 128;
inline constexpr int kEpTopKMax = 32;

struct EpShape {
  int ranks{1};
  int experts{0};              // divides by ranks
  int top_k{0};                // at most experts and kEpTopKMax
  std::int64_t tokens_max{0};  // of one rank
  int slots{-1};               // B; -1: m, with which every plan fits; fewer: overflow, see EpPlan
  int padding{1};              // rows of a group are padded to a multiple of this
  // false: groups are [E + B]: all experts, then this rank's slots.
  // true: [m + B]: this rank's experts, then its slots; B = m only.
  bool compact{false};

  [[nodiscard]] int local_experts() const { return experts / ranks; }

  [[nodiscard]] int slot_count() const { return slots < 0 ? local_experts() : slots; }

  [[nodiscard]] int group_count() const {
    return (compact ? local_experts() : experts) + slot_count();
  }

  friend bool operator==(const EpShape&, const EpShape&) = default;
};

enum class EpBalanceMode : std::uint8_t {
  kNone,   // every row at its expert's home: ordinary expert parallelism
  kExact,  // every rank computes its capacity, to the row
  // Only ranks above (1 + tolerance) capacity export, receivers fill up to that; exact where that
  // gets stuck.
  kTolerant,
};

struct EpBalance {
  EpBalanceMode mode{EpBalanceMode::kExact};
  double tolerance{0};         // kTolerant
  std::vector<double> speeds;  // [ranks] relative capacities; empty: equal
  // The largest capacity relative to the mean that buffers have room for; 0: that of `speeds`.
  double capacity_max{0};
  // How many homes one rank may receive from where unequal capacities need more than one.
  int homes_max{1};
};

// kInvalidArgument that names the number and its rule.
[[nodiscard]] Status check(const EpShape& shape, const EpBalance& balance);

// Rows of a receive buffer in which every plan of this shape fits: capacity and padding, or for
// kNone all rows of all ranks.
[[nodiscard]] std::int64_t ep_receive_rows(const EpShape& shape, const EpBalance& balance);

// Of one plan, over all ranks.
struct EpPlanStatistics {
  std::int64_t rows{0};            // tokens * top_k of all ranks
  std::int64_t copies{0};          // experts in slots
  std::int64_t copies_in_max{0};   // of one rank
  std::int64_t copies_out_max{0};  // of one home, the same expert to two ranks counted twice
  std::int64_t rows_moved{0};      // computed away from their expert's home
  std::int64_t surplus{0};         // rows above capacity before balancing: the least that must move
  std::int64_t overflow_groups{0};  // experts without a slot, read from home
  std::int64_t pad_rows{0};
  std::int64_t quota_steps{0};  // of part A, at most ranks - 1
  double max_violation{0};      // max_e T_e / mean T - 1
  double rank_imbalance{1};     // max / mean rows of a rank before balancing
  double rank_imbalance_after{1};
};

// The tables of one step of one layer. Replicated ones are equal on all ranks; kept from forward to
// backward.
struct EpPlan {
  EpPlan() = default;
  EpPlan(const EpShape& shape, const EpBalance& balance);  // allocates; `check` must have passed

  EpShape shape;
  std::int64_t receive_rows{0};  // ep_receive_rows: the stride of `destinations`

  // --- replicated ---
  std::vector<std::int32_t> counts;  // [R, E] rows of rank r for expert e, as given
  std::vector<std::int64_t> rows;    // [R, E] rows of expert e that rank d computes
  // [R, E] which group of rank d holds expert e: its own id (at home, or overflow: weights are read
  // from home through the heap), or a slot's group. Valid where rows > 0 or d is the home; else -1.
  std::vector<std::int32_t> groups;
  std::vector<std::int32_t>
      slot_experts;                      // [R, B] ascending within a rank; -1: free, all at the end
  std::vector<std::int64_t> begins;      // [R, groups] first row of a group
  std::vector<std::int64_t> ends;        // [R, groups] one past its last row, padding included
                                         // (cu_seqlens without the leading 0)
  std::vector<std::int64_t> group_rows;  // [R, groups] real rows; the padding follows them
  std::uint64_t hash{0};                 // over the shape and all of the above
  EpPlanStatistics statistics;

  // --- of this rank ---
  int rank{0};
  std::int64_t tokens{0};
  // [tokens * top_k], place of choice k of token t: destination rank * receive_rows + row. A token
  // that a rank gets once already under an earlier choice has -(place) - 1: the row is not sent but
  // copied there.
  std::vector<std::int64_t> destinations;
  // [receive_rows] of this rank's own rows, which of them belong to one token, in the order of its
  // choices: n = row of the token's next choice on this rank plus 1, or 0 for its last; n for the
  // token's first row here (the one that was sent), -n - 1 for the others. Padding: unspecified.
  // Only EpExchange::make_plan fills it (peers know it, not the planner), and allocates it then.
  std::vector<std::int32_t> links;
};

// Rows of the plan's rank d: ends of its last group.
[[nodiscard]] std::int64_t ep_rows_of(const EpPlan& plan, int rank);

struct EpPlanWork;

class EpPlanner {
 public:
  // `check` must have passed.
  EpPlanner(const EpShape& shape, const EpBalance& balance);
  ~EpPlanner();
  EpPlanner(const EpPlanner&) = delete;
  EpPlanner& operator=(const EpPlanner&) = delete;
  EpPlanner(EpPlanner&&) noexcept;
  EpPlanner& operator=(EpPlanner&&) noexcept;

  // The replicated tables from counts [R, E].
  [[nodiscard]] Status plan(std::span<const std::int32_t> counts, EpPlan& plan);

  // Then this rank's destinations from its choices [tokens, top_k], which must agree with its row
  // of the counts: an expert out of range or a histogram that disagrees is kInvalidArgument naming
  // the token or the expert. The same expert twice in a token is legal.
  [[nodiscard]] Status place(int rank, std::span<const std::int32_t> choices, EpPlan& plan);

  // For straggler-aware capacities: takes effect with the next plan; the same on all ranks.
  // kInvalidArgument when one would exceed capacity_max.
  [[nodiscard]] Status set_speeds(std::span<const double> speeds);

 private:
  std::unique_ptr<EpPlanWork> work_;
};

// Recomputed from first principles, for tests and replay: violated invariant as text, or OK.
[[nodiscard]] Status check_plan(const EpPlan& plan, const EpBalance& balance);

}  // namespace muster::parallel
