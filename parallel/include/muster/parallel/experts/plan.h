// SPDX-License-Identifier: Apache-2.0
// Expert parallelism, planner: assigns the rows of a mixture-of-experts layer to ranks so that
// every rank computes the same number of rows for any routing. Experts that are needed on a rank
// other than their home are copied there for the step, into "slots".
//
// Planning is replicated: every rank has the same counts [ranks, experts], runs the same integer
// code and produces the same tables; their hash is compared across ranks. Formulas, proof and
// tie-breaks: docs/concepts/experts.md.
//
// Notation: R ranks, E experts, m = E / R experts at home per rank (the home of expert e is rank
// e / m), S tokens of a rank (ranks may differ), K choices per token, B slots per rank.
//
// Errors: kInvalidArgument with the numbers and the rule they break, before any table is written.
// Allocates only on construction. Thread-safety: an object may be used by one call at a time.
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
  int experts{0};              // a multiple of ranks
  int top_k{0};                // at most experts and kEpTopKMax
  std::int64_t tokens_max{0};  // per rank
  // B. -1 selects m, with which every plan fits; with fewer, experts may overflow (EpPlan::groups).
  int slots{-1};
  int padding{1};  // rows of a group are padded to a multiple of this
  // If false, groups are [E + B]: all experts, then this rank's slots. If true, they are [m + B]:
  // this rank's experts, then its slots; B must be m.
  bool compact{false};

  [[nodiscard]] int local_experts() const { return experts / ranks; }

  [[nodiscard]] int slot_count() const { return slots < 0 ? local_experts() : slots; }

  [[nodiscard]] int group_count() const {
    return (compact ? local_experts() : experts) + slot_count();
  }

  friend bool operator==(const EpShape&, const EpShape&) = default;
};

enum class EpBalanceMode : std::uint8_t {
  kNone,   // every row at its expert's home: expert parallelism without balancing
  kExact,  // every rank computes its capacity, to the row
  // Only ranks above (1 + tolerance) capacity export rows, and receivers fill up to that limit;
  // exact if that cannot be met.
  kTolerant,
};

struct EpBalance {
  EpBalanceMode mode{EpBalanceMode::kExact};
  double tolerance{0};         // for kTolerant
  std::vector<double> speeds;  // [ranks] relative capacities, or empty for equal ones
  // Largest capacity relative to the mean that fits the buffers. Zero selects that of `speeds`.
  double capacity_max{0};
  // Largest number of home ranks that one rank receives experts from; unequal capacities may need
  // more than one.
  int homes_max{1};
};

// Returns kInvalidArgument naming the number and its rule.
[[nodiscard]] Status check(const EpShape& shape, const EpBalance& balance);

// Returns the rows of a receive buffer that fits every plan of this shape: capacity and padding, or
// for kNone all rows of all ranks.
[[nodiscard]] std::int64_t ep_receive_rows(const EpShape& shape, const EpBalance& balance);

// Statistics of one plan over all ranks.
struct EpPlanStatistics {
  std::int64_t rows{0};            // tokens * top_k, summed over ranks
  std::int64_t copies{0};          // experts in slots
  std::int64_t copies_in_max{0};   // into one rank
  std::int64_t copies_out_max{0};  // of one home; an expert copied to two ranks counts twice
  std::int64_t rows_moved{0};      // computed away from their expert's home
  std::int64_t surplus{0};  // rows above capacity before balancing, the fewest that must move
  std::int64_t overflow_groups{0};  // experts without a slot, read from home
  std::int64_t pad_rows{0};
  std::int64_t quota_steps{0};  // steps of part A, at most ranks - 1
  double max_violation{0};      // max_e T_e / mean T - 1
  double rank_imbalance{1};     // max / mean rows of a rank before balancing
  double rank_imbalance_after{1};
};

// The tables of one step of one layer, kept from forward to backward. Replicated tables are equal
// on all ranks.
struct EpPlan {
  EpPlan() = default;
  // Allocates. check() must have passed.
  EpPlan(const EpShape& shape, const EpBalance& balance);

  EpShape shape;
  std::int64_t receive_rows{0};  // ep_receive_rows: the stride of `destinations`

  // --- replicated ---
  std::vector<std::int32_t> counts;  // [R, E] rows of rank r for expert e, as given
  std::vector<std::int64_t> rows;    // [R, E] rows of expert e that rank d computes
  // [R, E] group of rank d that holds expert e: a slot's group, or the expert's id if it is at home
  // or has overflowed (its weights are then read from home through the heap). -1 unless rows > 0 or
  // d is the home.
  std::vector<std::int32_t> groups;
  // [R, B] ascending within a rank, then -1 for each free slot.
  std::vector<std::int32_t> slot_experts;
  std::vector<std::int64_t> begins;      // [R, groups] first row of a group
  std::vector<std::int64_t> ends;        // [R, groups] one past its last row, padding included
                                         // (cu_seqlens without the leading 0)
  std::vector<std::int64_t> group_rows;  // [R, groups] real rows; the padding follows them
  std::uint64_t hash{0};                 // hash of the shape and all tables above
  EpPlanStatistics statistics;

  // --- of this rank alone ---
  int rank{0};
  std::int64_t tokens{0};
  // [tokens * top_k] place of choice k of token t: destination rank * receive_rows + row. If an
  // earlier choice already sends the token to that rank, -place - 1: the row is copied there.
  std::vector<std::int64_t> destinations;
  // [receive_rows] links this rank's rows of one token in the order of its choices: n is the row of
  // the token's next choice on this rank plus 1, or 0 for its last. The entry is n for the token's
  // first row here (the one that was sent) and -n - 1 for the others; unspecified on padding.
  // Only EpExchange::make_plan allocates and fills it, since only the peers know its contents.
  std::vector<std::int32_t> row_chain;
};

// Returns the end of the last group of `rank`: its rows with padding.
[[nodiscard]] std::int64_t ep_row_count(const EpPlan& plan, int rank);

[[deprecated("use ep_row_count")]] [[nodiscard]] inline std::int64_t ep_rows_of(
    const EpPlan& plan, int rank) {
  return ep_row_count(plan, rank);
}

struct EpPlanWork;

class EpPlanner {
 public:
  // check() must have passed.
  EpPlanner(const EpShape& shape, const EpBalance& balance);
  ~EpPlanner();
  EpPlanner(const EpPlanner&) = delete;
  EpPlanner& operator=(const EpPlanner&) = delete;
  EpPlanner(EpPlanner&&) noexcept;
  EpPlanner& operator=(EpPlanner&&) noexcept;

  // Fills the replicated tables from counts [R, E].
  [[nodiscard]] Status plan(std::span<const std::int32_t> counts, EpPlan& plan);

  // Then fills this rank's destinations from its choices [tokens, top_k]. A token may choose the
  // same expert twice. kInvalidArgument naming the token or the expert if an expert is out of range
  // or the histogram differs from this rank's row of the counts.
  [[nodiscard]] Status place(int rank, std::span<const std::int32_t> choices, EpPlan& plan);

  // Sets the relative capacities of the next plan, the same on all ranks, so that stragglers get
  // fewer rows. kInvalidArgument if one would exceed capacity_max.
  [[nodiscard]] Status set_speeds(std::span<const double> speeds);

 private:
  std::unique_ptr<EpPlanWork> work_;
};

// Recomputes the plan from first principles, for tests and replay. Returns the first invariant that
// does not hold.
[[nodiscard]] Status check_plan(const EpPlan& plan, const EpBalance& balance);

}  // namespace muster::parallel
