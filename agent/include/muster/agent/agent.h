// SPDX-License-Identifier: Apache-2.0
// The per-rank runtime that a training loop holds. README.md shows a complete loop.
//
// Thread-safety: one training thread calls everything here. The agent's I/O thread talks to the
// collector; it never blocks, throws into or exits the trainer, and the training thread makes no
// system call for telemetry: finished steps go through a lock-free ring.
//
// Errors: Status values for failures of training itself (a dead peer, no parameter route, a damaged
// checkpoint). Telemetry has no errors here: it detaches, counts and reports when it can.
#pragma once

#include <muster/agent/attention_schedule.h>
#include <muster/agent/verdict.h>
#include <muster/checkpoint/checkpoint.h>
#include <muster/comm/communicator.h>
#include <muster/common/clock.h>
#include <muster/common/expected.h>
#include <muster/kernels/attention.h>
#include <muster/optimizer/optimizer.h>
#include <muster/optimizer/qk_clip.h>
#include <muster/parallel/experts/event.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace muster::agent {

// Phases of a step; their times are streamed as train_phase_seconds{phase}.
enum class Phase : std::uint8_t {
  kData,
  kForward,
  kBackward,
  kExpertComm,
  kReduce,
  kVerdict,
  kOptimizer,
  kGather,
  kCheckpoint,
  kOther,
};
inline constexpr std::size_t kPhaseCount = 10;

[[nodiscard]] const char* to_string(Phase phase);

struct AgentOptions {
  // Identity and addresses; `from_environment` fills them from the MUSTER_* and torchrun variables.
  Identity identity;
  int world_size{1};
  std::string collector;  // "host:port"; if empty, no telemetry leaves the process
  std::string token;
  std::filesystem::path checkpoint_root;  // if empty, the run saves no checkpoints
  std::filesystem::path resume_from;      // checkpoint to restore; if empty, a fresh start
  std::filesystem::path spool_directory;  // for samples while the collector is down

  std::int64_t checkpoint_interval{0};  // steps
  int keep_last{3};
  std::int64_t total_steps{0};
  // Ends the run as failed once this many of the last `skip_window` steps were skipped; 0 disables.
  std::int64_t skips_max{100};
  std::int64_t skip_window{200};
  // Ends the run as failed after this many updates in a row in which a new parameter or state would
  // not have been finite and was withheld; 0 disables.
  std::int64_t withheld_max{20};
  // Accepts a checkpoint that was saved under another ModelInfo::attention_schedule.
  bool allow_attention_change{false};
  std::int64_t digest_interval{50};  // steps between parameter digests; 0 disables them
  double qk_clip_threshold{0};       // tau at start; 0 disables QK-clip until a command sets it
  bool telemetry{true};              // without it there is no ring and no I/O thread
  std::size_t ring_steps{256};       // capacity of the ring of finished steps
  std::size_t outbox_bytes_max{std::size_t{8} << 20};
  std::size_t spool_bytes_max{std::size_t{64} << 20};
  std::chrono::nanoseconds collective_timeout{std::chrono::seconds{60}};
  std::chrono::nanoseconds finish_timeout{std::chrono::minutes{10}};  // for the last checkpoint
  const Clock* clock{nullptr};  // the system's clock if null; must outlive the agent

  // RANK, WORLD_SIZE, MUSTER_RUN_ID, MUSTER_GENERATION, MUSTER_INCARNATION, MUSTER_RUN_UID,
  // MUSTER_COLLECTOR, MUSTER_TOKEN_FILE, MUSTER_RESUME_FROM, MUSTER_CHECKPOINT_ROOT, MUSTER_SPOOL,
  // MUSTER_COLLECTIVE_TIMEOUT (whole seconds), MUSTER_ALLOW_ATTENTION_CHANGE (0 or 1).
  // kInvalidArgument names a variable that does not parse. Without RANK, a world of one, run
  // "local".
  [[nodiscard]] static Expected<AgentOptions> from_environment();
};

// Properties of the model from which the agent names its metrics and runs QK-clip.
struct ModelInfo {
  // One per layer with attention. A layer that QK-clip cannot scale (qk_norm, see
  // optimizer::check_attention_layer) may be listed to have its logits recorded, as long as the
  // threshold is 0; a command that sets a threshold is then rejected with the reason.
  std::vector<optimizer::AttentionLayer> attention;
  std::vector<int> experts_per_layer;  // one per MoE layer, global expert count
  // Schedule of full and block attention, over positions in `attention`. Saved with every
  // checkpoint; restore() rejects any other (AgentOptions::allow_attention_change). Without one,
  // attention is always full and set_attention_modes is an error.
  std::optional<AttentionSchedule> attention_schedule{std::nullopt};
  int expert_ranks{0};  // ranks that share each MoE layer's experts; 0 disables their telemetry
};

// Per-head statistics of one forward pass of a layer with block attention, as in
// kernels::MobaStatistics. Empty spans are skipped.
struct MobaRecord {
  std::span<const float> gate_bound;             // [heads]
  std::span<const float> norm_bound;             // [heads]
  std::span<const std::int64_t> nonfinite_rows;  // [heads]
  std::span<const std::int64_t> block_counts;    // [heads * blocks]
  std::int64_t blocks{0};                        // of the longest sequence
  std::span<const double> sink_share;            // [heads]
  std::span<const double> gate_margin;           // [heads]
};

using ReachRecord [[deprecated("use kernels::GradientCoverage")]] = kernels::GradientCoverage;

// State of the training loop that a restart restores: data cursor, RNG counters, router bias.
// Restoring writes into `tensors` and replaces `values`. From a checkpoint of a different number of
// ranks, rank r gets the tensors of old rank r modulo the old number, and all ranks get the values
// of rank 0: let a cursor count the job's batches, not the rank's.
struct TrainerState {
  std::map<std::string, std::string> values;

  struct Tensor {
    std::string name;
    std::span<float> data;
  };

  std::vector<Tensor> tensors;

  // Called inside end_step, after the update and before a checkpoint of the step is taken: the only
  // place to change `tensors` from reduced lanes (a router bias from expert counts), so that a
  // restart does not miss the change. May be empty.
  std::function<void(const Verdict& verdict, const ReducedLanes& lanes)> on_verdict;
};

class Agent {
 public:
  // Collective. All references must outlive the agent.
  [[nodiscard]] static Expected<std::unique_ptr<Agent>> join(
      AgentOptions options,
      comm::Communicator& world,
      optimizer::Optimizer& optimizer,
      ModelInfo model);

  Agent() = default;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  Agent(Agent&&) = delete;
  Agent& operator=(Agent&&) = delete;
  // Flushes telemetry for at most two seconds.
  virtual ~Agent() = default;

  // Restores from options.resume_from; does nothing if it is empty. Collective. On success
  // parameters, optimizer and `trainer` are as they were after the step that saved them.
  [[nodiscard]] virtual Status restore(TrainerState& trainer) = 0;

  // Index of the step to run next (0 at a fresh start). total_steps if the restored checkpoint is
  // the run's last, as after a crash between its commit and the end of the process: no step is left
  // to run, so loop while step() < total_steps and call finish().
  [[nodiscard]] virtual std::int64_t step() const = 0;

  // --- inside a step ---
  virtual void begin_step() = 0;

  // Adds the time until destruction to a phase. Phases may nest; inner time counts once.
  class [[nodiscard]] PhaseTimer {
   public:
    PhaseTimer(Agent& agent, Phase phase) : agent_(agent) { agent_.enter(phase); }

    ~PhaseTimer() { agent_.leave(); }

    PhaseTimer(const PhaseTimer&) = delete;
    PhaseTimer& operator=(const PhaseTimer&) = delete;
    PhaseTimer(PhaseTimer&&) = delete;
    PhaseTimer& operator=(PhaseTimer&&) = delete;

   private:
    Agent& agent_;
  };

  [[nodiscard]] PhaseTimer time(Phase phase) { return PhaseTimer{*this, phase}; }

  virtual void enter(Phase phase) = 0;
  virtual void leave() = 0;

  // Disables every record_* and set_attention_modes until destruction, because a forward pass of an
  // evaluation must neither clip heads nor move router biases. May nest.
  class [[nodiscard]] EvaluationScope {
   public:
    explicit EvaluationScope(Agent& agent) : agent_(agent) { agent_.pause(); }

    ~EvaluationScope() { agent_.resume(); }

    EvaluationScope(const EvaluationScope&) = delete;
    EvaluationScope& operator=(const EvaluationScope&) = delete;
    EvaluationScope(EvaluationScope&&) = delete;
    EvaluationScope& operator=(EvaluationScope&&) = delete;

   private:
    Agent& agent_;
  };

  [[nodiscard]] EvaluationScope pause_recording() { return EvaluationScope{*this}; }

  virtual void pause() = 0;
  virtual void resume() = 0;

  // Factor for the gradient of the loss in this step's backward passes, so that small fp16
  // gradients survive; the update divides by it. The same on all ranks, constant within a step. 1
  // without fp16 parameters. Losses passed to end_step are not scaled.
  [[nodiscard]] virtual double loss_scale() const = 0;

  // Folds one forward pass of attention layer `layer_index` (position in ModelInfo::attention) into
  // the step: max per head, [heads], scaled logits over visible pairs. NaN becomes a flag.
  virtual void record_max_logits(std::size_t layer_index, std::span<const float> max_logits) = 0;

  // Tokens this rank routed to each expert, [experts], of MoE layer `layer_index`; added up.
  virtual void record_expert_counts(
      std::size_t layer_index, std::span<const std::int64_t> counts) = 0;

  // Sets the mode of each layer of ModelInfo::attention from this step until the next call; call it
  // after begin_step. Needs ModelInfo::attention_schedule. Published as train_attn_mode; rank 0
  // reports the switch of a layer as an event of the step at which it switches.
  virtual void set_attention_modes(std::span<const AttentionMode> modes) = 0;

  // Folds one forward pass of an attention layer under block attention into the step. The schedule
  // must put the layer under block attention at some step. Rows that are not finite are a NaN
  // event, like a max logit that is not finite: the update is skipped and the head's logit is
  // +infinity. Keeps no reference to the spans.
  virtual void record_moba(std::size_t layer_index, const MobaRecord& record) = 0;

  // Folds one backward pass of an attention layer into the step. Ignores layers that are never
  // under block attention: their gradients reach everything.
  virtual void record_reach(std::size_t layer_index, const kernels::GradientCoverage& coverage) = 0;

  // Folds one pass of an MoE layer over ModelInfo::expert_ranks ranks into the step. All ranks of
  // the group record the same passes. Does nothing if expert_ranks is 0.
  virtual void record_ep(std::size_t moe_layer_index, const parallel::EpEvent& event) = 0;

  // Ends the step: reduces gradients, agrees on the verdict, updates, clips, gathers, commits or
  // begins checkpoints, hands the sample to the I/O thread. `loss_sum` in nats over `token_count`
  // tokens of this rank's micro-batches. `trainer` is read when a checkpoint begins.
  // With the optimizer's options.overlap the gather of the new parameters may still run afterwards:
  // wait_gathered before a parameter is read. A step that ends the run or begins a checkpoint
  // waits. A Status means a peer is lost or the generation is fenced: leave the loop, exit
  // non-zero.
  [[nodiscard]] virtual Expected<Verdict> end_step(
      double loss_sum, std::int64_t token_count, const TrainerState& trainer) = 0;

  // The reduced lanes of the last end_step: global expert counts for a bias update, max logits.
  [[nodiscard]] virtual const ReducedLanes& lanes() const = 0;

  // Call it after the loop when the verdict ended with kFinished, kStopped or kPreempted. Begins
  // the final checkpoint if an older one was still being written when the run ended (the tensors of
  // the last TrainerState must be alive and unchanged), then waits until it is committed on disk.
  // Collective; every rank returns the same success or failure, at the latest after finish_timeout.
  [[nodiscard]] virtual Status finish() = 0;

  // Async-signal-safe: asks all ranks to save at one agreed step and end as preempted.
  virtual void request_preemption() = 0;

  // Publishes an event of the training loop.
  virtual void report(Event event) = 0;

  // Nanoseconds that telemetry took on the training thread in the last step.
  [[nodiscard]] virtual std::int64_t last_telemetry_ns() const = 0;
};

// Exit codes of a rank, understood by `muster run` (architecture: launcher).
inline constexpr int kExitDone = 0;
inline constexpr int kExitPreempted = 75;
inline constexpr int kExitRollback = 85;
inline constexpr int kExitNeverRestart = 93;

// Holds back a first SIGTERM or SIGINT until install_preemption_handlers, so that a rank that is
// still starting leaves together with the others; call it first in main. Further SIGTERMs are the
// same request; a SIGINT after the first signal exits at once with 128 + signal. Ignores SIGPIPE.
void hold_preemption_signals();

// Installs SIGTERM and SIGINT handlers that call request_preemption, at once if a signal was held
// back. Further SIGTERMs are the same request; a SIGINT after the first signal, or a first signal
// after the agent was destroyed, exits at once with 128 + signal. Ignores SIGPIPE.
void install_preemption_handlers(Agent& agent);

}  // namespace muster::agent
