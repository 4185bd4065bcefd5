// SPDX-License-Identifier: Apache-2.0
// The verdict: one decision per step, identical on all ranks.
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

// Lanes of a layer with block attention: one rank's step before reduction, the job's after it.
struct MobaLanes {
  // A sequence of at most this many blocks has a bin each; longer ones share them evenly.
  static constexpr std::size_t kBins = 64;
  static constexpr double kAbsent = -std::numeric_limits<double>::infinity();

  // MAX; -inf if no head had a bound, +inf if a bound was not finite
  std::vector<double> gate_bound;       // [heads]
  std::vector<double> norm_bound;       // [heads]
  double block_max_over_mean{kAbsent};  // of the head, pass and rank with the largest
  double blocks{0};                     // of the longest sequence
  // SUM
  double nonfinite_rows{0};
  double sink_share_sum{0};  // over heads, passes and ranks, like the margin
  double sink_share_count{0};
  double gate_margin_sum{0};
  double gate_margin_count{0};
  double queries_reached{0};
  double queries{0};
  double blocks_reached{0};
  double reachable_blocks{0};
  std::array<double, kBins> bin_counts{};  // times a block of the bin was chosen

  // Forgets all records and keeps the storage.
  void clear();

  friend bool operator==(const MobaLanes&, const MobaLanes&) = default;
};

// Lanes of an expert-parallel layer: one rank's step before reduction, the job's after it. Figures
// of a plan, which cover a whole group of ranks, are counted once per rank of the group.
struct EpLanes {
  // MAX; -inf if no pass was recorded
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

// Numbers of groups, heads and experts of the model; constant over a run, equal on all ranks.
struct LaneLayout {
  std::size_t groups{0};     // gradient norm groups
  std::vector<int> heads;    // [attention layers] heads
  std::vector<int> experts;  // [MoE layers] experts
  // [attention layers] heads with MobaLanes, 0 for layers without; empty if there are none.
  std::vector<int> moba_heads;
  std::size_t ep_layers{0};  // MoE layers with experts over ranks

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
  // SUM, MAX or MIN by field: statistics of the update that led to this step's parameters, which
  // share this reduction with the rest. A value that is not finite is left out of a sum, and makes
  // a maximum or minimum NaN. No statistic decides about a step (kernels::Tolerance); the counts of
  // withheld and lost elements may end the run.
  std::vector<optimizer::GroupUpdateStatistics> update;  // [groups]
  // SUM and MAX by field
  std::vector<MobaLanes> moba;  // [layers]; layers without lanes are not read
  std::vector<EpLanes> ep;      // [layers of experts over ranks]
  // MAX
  std::vector<std::vector<float>> max_logits;  // [layers][heads]; NaN becomes a flag
  bool preempt{false};                         // SIGTERM arrived
  std::int64_t generation{0};
  std::uint64_t armed_command{0};       // highest command id received so far
  std::uint64_t pending_digest{0};      // command_digest of the commands this rank would run
  std::int64_t prepared_checkpoint{0};  // highest sequence prepared here
  std::int64_t failed_checkpoint{0};    // highest sequence that failed here
  std::uint64_t replica_digest{0};      // 0 if not computed in this step
  double local_loss{0};                 // this rank's mean loss
};

// Digest of the commands in `pending` with after < id <= up_to, by which ranks prove that they are
// about to run the same list. 52 bits, so that a double lane holds it exactly; 0 without commands.
[[nodiscard]] std::uint64_t command_digest(
    std::span<const Command> pending, std::uint64_t after, std::uint64_t up_to);

// Writes every lane. A value that is not finite never enters a sum: it is left out and raises a
// flag. A non-finite logit becomes +infinity in its MAX lane, which names the head.
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
  std::vector<MobaLanes> moba;  // [layers]; default for layers without lanes
  std::vector<EpLanes> ep;
  // -inf if no rank recorded the head, +inf if a logit was not finite.
  std::vector<std::vector<double>> max_logits;
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

// The same, reusing the storage that `out` has from the last step: no allocation.
void decode(
    const LaneLayout& layout,
    std::span<const double> sum,
    std::span<const double> max,
    ReducedLanes& out);

// Settings that all ranks share.
struct DecideOptions {
  double clip_norm{1.0};                // 0 disables clipping
  optimizer::ClippingOptions clipping;  // per group, ZClip
  std::vector<std::string> group_names;
  std::optional<optimizer::LossScaleOptions> loss_scale;  // only with fp16 parameters
  std::string qk_clip_obstacle;         // reason why this model cannot be QK-clipped, or empty
  std::int64_t checkpoint_interval{0};  // steps; 0 saves only on command
  std::int64_t total_steps{0};          // length of the run; 0 for a run without an end
  bool checkpoint_on_stop{true};        // save at the step that ends the run
  bool checkpoints_enabled{true};       // if not, checkpoint commands are rejected with the reason
  // The run ends as failed once this many of the last `skip_window` steps were skipped; 0 disables.
  std::int64_t skips_max{100};
  std::int64_t skip_window{200};
  // The run ends as failed after this many updates in a row that withheld a value which would not
  // have been finite (kernels::UpdateStatistics::withheld_count); 0 disables.
  std::int64_t withheld_max{20};
};

// History that all ranks share; saved with every checkpoint. Changed only by `decide`.
struct SharedState {
  std::int64_t step{0};         // index of the step being decided
  double qk_clip_threshold{0};  // tau; 0 disables QK-clip
  std::uint64_t last_applied_command{0};
  std::int64_t checkpoint_sequence{0};   // last sequence begun
  std::int64_t checkpoint_in_flight{0};  // its sequence, or 0
  bool checkpoint_pin_in_flight{false};
  bool checkpoint_wanted{false};  // requested while another one was in flight
  bool pin_wanted{false};
  bool stopping{false};
  bool stop_is_preemption{false};
  std::int64_t skipped_steps{0};
  std::int64_t clipped_heads{0};  // by QK-clip, over all steps
  optimizer::GuardState guard;    // ZClip's running values, the loss scale of the next step
  // Not saved, so that a restart counts afresh.
  std::vector<std::int64_t> recent_skips;  // the last skips_max skipped steps, ascending
  bool checkpoint_overdue{false};          // fell due at a skipped step
  std::int64_t withheld_updates{0};        // in a row
  std::int64_t withheld_since{0};          // step of the first of them

  friend bool operator==(const SharedState&, const SharedState&) = default;
};

// kFailed: too many steps were skipped or withheld values, or a state is lost; the run must not be
// restarted as it is.
enum class Ending : std::uint8_t { kContinue, kFinished, kStopped, kPreempted, kAbort, kFailed };

// Exit code of a rank that ended so, understood by `muster run`: 0, 75 or 93.
[[nodiscard]] int exit_code(Ending ending);

struct AppliedCommand {
  Command command;
  CommandState state{CommandState::kApplied};
  std::string reason;
};

// The optimizer obeys the base. `decide` leaves learning_rate at 0: the agent sets it before the
// update, from the optimizer's schedule. clip_factor applies to groups without a separate limit.
struct Verdict : optimizer::StepDecision {
  // Norm of the token-normalised gradient without the loss scale, before clipping; NaN if it is not
  // finite.
  double gradient_norm{0};
  bool gradient_spike{false};  // ZClip detected a spike; `reason` has its size
  double loss_scale{1};        // factor of this step's loss
  double loss{0};              // nats per token; NaN when a rank's loss is not finite
  std::vector<std::vector<double>> head_gammas;  // [layers][heads]; empty without QK-clip
  std::int64_t begin_checkpoint{0};              // sequence to begin after this step, or 0
  std::int64_t commit_checkpoint{0};             // sequence that every rank prepared, or 0
  bool commit_pinned{false};
  std::int64_t abandon_checkpoint{0};  // sequence that some rank failed to write, or 0
  std::vector<AppliedCommand> commands;
  bool diverged{false};  // replica digests differ
  Ending ending{Ending::kContinue};
  std::string reason;  // of a skip, an abandoned checkpoint, a stop or an abort; else empty
};

// `pending` are the commands this rank holds, ascending by id. Those above last_applied_command run
// at the first step at which every rank has armed the same highest id (armed min = max); they are
// rejected together when the digests show that ranks hold different lists. A kCheckpointNow with an
// argument other than 0 pins its checkpoint.
//
// Endings: kFinished, kStopped and kPreempted are returned at the step at which they were agreed,
// and every rank leaves its loop there. The final checkpoint begins at that step, or, if an older
// one is still being written, in Agent::finish (state.checkpoint_wanted), which then resolves it.
// kFailed takes precedence over kFinished, that over a stop. kFailed saves no checkpoint, and none
// begins by interval at a skipped step, so that a streak of skips does not push out the checkpoints
// from before it. Advances `state` to the next step. Only a generation mismatch gives kAbort; it
// leaves `state` unchanged.
[[nodiscard]] Verdict decide(
    const ReducedLanes& lanes,
    std::span<const Command> pending,
    const DecideOptions& options,
    SharedState& state);

// The checkpoint part of `decide` alone, for the rounds of Agent::finish after the last step:
// commits or abandons the checkpoint in flight, then begins the one that is still wanted.
[[nodiscard]] Verdict resolve_checkpoint(const ReducedLanes& lanes, SharedState& state);

[[deprecated("renamed to resolve_checkpoint")]] [[nodiscard]] inline Verdict settle_checkpoint(
    const ReducedLanes& lanes, SharedState& state) {
  return resolve_checkpoint(lanes, state);
}

}  // namespace muster::agent
