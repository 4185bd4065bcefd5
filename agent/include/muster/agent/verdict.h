// The verdict: how every rank does the same thing at the same step.
//
// Each rank fills one SUM vector and one MAX vector of doubles; both are all-reduced once per step;
// `decide` turns the reduced lanes and the shared history into one decision. Everything that
// changes training (skip, clip factor, QK-clip, checkpoint, stop) comes from reduced lanes only, so
// the decision is identical on all ranks by construction.
//
// Sans-I/O: pure functions of their arguments, no clock, no communicator.
#pragma once

#include <muster/common/telemetry.h>
#include <muster/optimizer/guards.h>
#include <muster/optimizer/optimizer.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace muster::agent {

// Of a layer with block attention: one rank's step before reduction, the job's after it.
struct MobaLanes {
  // A sequence of at most this many blocks has a bin each; longer ones share them evenly.
  static constexpr std::size_t kBins = 64;
  static constexpr double kAbsent = -std::numeric_limits<double>::infinity();

  // MAX; -inf: no head had one, +inf: it was not finite
  std::vector<double> gate_bound;       // [heads]
  std::vector<double> norm_bound;       // [heads]
  double block_max_over_mean{kAbsent};  // of the head, pass and rank where it is largest
  double blocks{0};                     // of the longest sequence
  // SUM
  double nonfinite_rows{0};
  double sink_share_sum{0};  // over heads, passes and ranks; so is the margin
  double sink_share_count{0};
  double gate_margin_sum{0};
  double gate_margin_count{0};
  double queries_reached{0};
  double queries{0};
  double blocks_reached{0};
  double reachable_blocks{0};
  std::array<double, kBins> bin_counts{};  // times a block of the bin was chosen

  // As if nothing had been recorded; the storage stays.
  void clear();

  friend bool operator==(const MobaLanes&, const MobaLanes&) = default;
};

// Of an expert-parallel layer: one rank's step before reduction, the job's after it. What a plan
// says of its whole group of ranks is here once per rank of the group.
struct EpLanes {
  // MAX; -inf: no pass was recorded
  double rank_imbalance{-std::numeric_limits<double>::infinity()};
  // SUM, once per rank of the group
  double copies{0};
  double rows_moved{0};
  double pad_rows{0};
  double rows{0};
  // SUM
  double dedup_rows{0};
  double bytes_out{0};

  friend bool operator==(const EpLanes&, const EpLanes&) = default;
};

// What the model has, constant over a run; equal on all ranks.
struct LaneLayout {
  std::size_t groups{0};        // gradient norm groups
  std::vector<int> heads;       // attention heads per layer; empty: none
  std::vector<int> experts;     // experts per MoE layer; empty: none
  std::vector<int> moba_heads;  // heads per attention layer with MobaLanes, 0: has none; or empty
  std::size_t ep_layers{0};     // MoE layers with experts over ranks

  [[nodiscard]] std::size_t sum_size() const;
  [[nodiscard]] std::size_t max_size() const;
};

// One rank's contribution, before reduction.
struct LocalLanes {
  // SUM
  std::vector<double> squared_norm;  // [groups], raw gradients
  double loss_sum{0};                // sum of token losses, nats
  double token_count{0};
  std::vector<std::vector<double>> expert_counts;  // [moe layers][experts]
  double nonfinite_count{0};
  // SUM, MAX or MIN by field: statistics of the update that led to this step's parameters, so that
  // they ride this reduction instead of needing one of their own. What describes single matrices or
  // quotients of states is left out silently when it is not finite: it judges no step.
  std::vector<optimizer::GroupUpdateStatistics> update;  // [groups]
  // SUM and MAX by field
  std::vector<MobaLanes> moba;  // [layers]; those without lanes are not read
  std::vector<EpLanes> ep;      // [layers of experts over ranks]
  // MAX
  std::vector<std::vector<float>> max_logits;  // [layers][heads]; NaN becomes a flag
  bool preempt{false};                         // SIGTERM arrived
  std::int64_t generation{0};
  std::uint64_t armed_command{0};       // highest command id received so far
  std::uint64_t pending_digest{0};      // command_digest of what this rank would run
  std::int64_t prepared_checkpoint{0};  // highest sequence prepared here
  std::int64_t failed_checkpoint{0};    // highest sequence that failed here
  std::uint64_t replica_digest{0};      // 0: not computed this step
  double local_loss{0};                 // this rank's mean loss
};

// 52 bits (exact in a double lane) over the commands with after < id <= up_to of `pending`, so that
// ranks prove to each other that they are about to run the same list. 0 when there is none.
[[nodiscard]] std::uint64_t command_digest(
    std::span<const Command> pending, std::uint64_t after, std::uint64_t up_to);

// Writes every lane. A value that is not finite never enters a sum: it is left out and raises a
// flag. A non-finite logit becomes +infinity in its own MAX lane, so that the head can be named.
// `sum` [sum_size], `max` [max_size]; empty vectors in `lanes` count as zeros (logits: as absent).
void encode(
    const LaneLayout& layout,
    const LocalLanes& lanes,
    std::span<double> sum,
    std::span<double> max);

// The lanes after reduction over all ranks.
struct ReducedLanes {
  std::vector<double> squared_norm;
  double loss_sum{0};
  double token_count{0};
  std::vector<std::vector<double>> expert_counts;
  double nonfinite_count{0};
  std::vector<optimizer::GroupUpdateStatistics> update;
  std::vector<MobaLanes> moba;  // [layers]; without lanes: as constructed
  std::vector<EpLanes> ep;
  std::vector<std::vector<double>> max_logits;  // -inf: no rank saw the head; +inf: not finite
  bool nonfinite{false};  // any NaN or infinity in gradients, loss or logits of any rank
  bool nonfinite_loss{false};
  bool nonfinite_logit{false};
  bool preempt{false};
  std::int64_t generation_min{0};
  std::int64_t generation_max{0};
  std::uint64_t armed_command_min{0};
  std::uint64_t armed_command_max{0};
  std::uint64_t pending_digest_min{0};
  std::uint64_t pending_digest_max{0};
  std::int64_t prepared_checkpoint_min{0};
  std::int64_t failed_checkpoint_max{0};
  std::uint64_t replica_digest_min{0};
  std::uint64_t replica_digest_max{0};
  double local_loss_max{0};
};

[[nodiscard]] ReducedLanes decode(
    const LaneLayout& layout, std::span<const double> sum, std::span<const double> max);

// The same into the storage that `out` has from the last step: no allocation.
void decode(
    const LaneLayout& layout,
    std::span<const double> sum,
    std::span<const double> max,
    ReducedLanes& out);

// Settings that all ranks share.
struct DecideOptions {
  double clip_norm{1.0};                // 0: off
  optimizer::ClippingOptions clipping;  // per group, ZClip
  std::vector<std::string> group_names;
  std::optional<optimizer::LossScaleOptions> loss_scale;  // only with fp16 parameters
  std::string qk_clip_obstacle;         // why this model cannot be QK-clipped; empty: it can
  std::int64_t checkpoint_interval{0};  // steps; 0: only on command
  std::int64_t total_steps{0};          // after this many steps the run is done; 0: no end
  bool checkpoint_on_stop{true};        // save at the step that ends the run
  bool checkpoints_enabled{true};       // false: a checkpoint command is rejected with the reason
};

// What all ranks remember from step to step; saved with every checkpoint. Changed only by `decide`.
struct SharedState {
  std::int64_t step{0};         // index of the step being decided
  double qk_clip_threshold{0};  // tau; 0: off
  std::uint64_t last_applied_command{0};
  std::int64_t checkpoint_sequence{0};   // last sequence begun
  std::int64_t checkpoint_in_flight{0};  // 0: none
  bool checkpoint_pin_in_flight{false};
  bool checkpoint_wanted{false};  // asked for while one was in flight
  bool pin_wanted{false};
  bool stopping{false};
  bool stop_is_preemption{false};
  std::int64_t skipped_steps{0};
  std::int64_t clipped_heads{0};  // by QK-clip, over all steps
  optimizer::GuardState guard;    // ZClip's running values, the loss scale of the step to come

  friend bool operator==(const SharedState&, const SharedState&) = default;
};

enum class Ending : std::uint8_t { kContinue, kFinished, kStopped, kPreempted, kAbort };

struct AppliedCommand {
  Command command;
  CommandState state{CommandState::kApplied};
  std::string reason;
};

struct Verdict {
  bool skip{false};
  double gradient_scale{0};  // 1 / (tokens * loss scale)
  // Of the token-normalised gradient without the loss scale, before clipping; NaN if it is not
  // finite.
  double gradient_norm{0};
  double clip_factor{1};                   // of groups without a limit of their own
  std::vector<double> group_clip_factors;  // [groups]; empty: clip_factor for all
  bool gradient_spike{false};              // ZClip saw one; `reason` says how far out
  double loss_scale{1};                    // that this step's loss was multiplied by
  double loss{0};                          // nats per token; NaN when a rank's loss is not finite
  std::vector<std::vector<double>> head_gammas;  // [layers][heads]; empty: no QK-clip this step
  std::int64_t begin_checkpoint{0};              // sequence to begin after this step; 0: none
  std::int64_t commit_checkpoint{0};             // every rank prepared it
  bool commit_pinned{false};
  std::int64_t abandon_checkpoint{0};  // some rank failed it
  std::vector<AppliedCommand> commands;
  bool diverged{false};  // replica digests differ
  Ending ending{Ending::kContinue};
  std::string reason;  // why skip, abandon, stop or abort; empty on a plain step
};

// `pending` are the commands this rank holds, ascending by id. Those above last_applied_command run
// at the first step at which every rank has armed the same highest id (armed min = max); they are
// rejected together when the digests show that ranks hold different lists. A kCheckpointNow with an
// argument other than 0 pins its checkpoint.
//
// Endings: kFinished, kStopped and kPreempted are returned at the step at which they were agreed,
// and every rank leaves its loop there. The final checkpoint begins at that step, or, when an older
// one is still being written, in Agent::finish (state.checkpoint_wanted); finish then resolves it.
// Having run all steps wins over a stop. Advances `state` to the next step.
// A generation mismatch gives kAbort and leaves `state` alone; nothing else does.
[[nodiscard]] Verdict decide(
    const ReducedLanes& lanes,
    std::span<const Command> pending,
    const DecideOptions& options,
    SharedState& state);

// The checkpoint part of `decide` alone, for the rounds of Agent::finish after the last step:
// commits or abandons what is in flight, then begins what is still wanted.
[[nodiscard]] Verdict resolve_checkpoint(const ReducedLanes& lanes, SharedState& state);

[[deprecated("renamed to resolve_checkpoint")]] [[nodiscard]] inline Verdict settle_checkpoint(
    const ReducedLanes& lanes, SharedState& state) {
  return resolve_checkpoint(lanes, state);
}

}  // namespace muster::agent
