// The agent's one implementation: join.cpp builds it, step.cpp ends steps, record.cpp takes
// what the loop measured, finish.cpp restores and leaves.
#pragma once

#include "agent/src/checkpoint/saver.h"
#include "agent/src/checkpoint/shared_state_text.h"
#include "agent/src/metrics/catalog.h"
#include "agent/src/runtime/phase_stopwatch.h"
#include "agent/src/runtime/step_events.h"
#include "agent/src/uplink/telemetry.h"

#include <muster/agent/agent.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

namespace muster::agent {

class Runtime final : public Agent {
 public:
  struct Parts {
    AgentOptions options;
    comm::Communicator& world;
    optimizer::Optimizer& optimizer;
    ModelInfo model;
    const Clock& clock;
    MetricCatalog catalog;
    std::unique_ptr<Saver> saver;
    std::unique_ptr<Telemetry> telemetry;  // May be null.
    std::string qk_clip_obstacle;          // Empty: every attention layer can be scaled.
  };

  explicit Runtime(Parts parts);
  ~Runtime() override;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  Runtime(Runtime&&) = delete;
  Runtime& operator=(Runtime&&) = delete;

  [[nodiscard]] Status restore(TrainerState& trainer) override;

  [[nodiscard]] std::int64_t step() const override { return state_.step; }

  void begin_step() override;
  void enter(Phase phase) override;
  void leave() override;
  void record_max_logits(std::size_t layer_index, std::span<const float> max_logits) override;
  void record_expert_counts(std::size_t layer_index, std::span<const std::int64_t> counts) override;

  void set_attention_modes(std::span<const AttentionMode> modes) override;
  void record_moba(std::size_t layer_index, const MobaRecord& record) override;
  void record_reach(std::size_t layer_index, const ReachRecord& record) override;
  void record_ep(std::size_t moe_layer_index, const parallel::EpEvent& event) override;

  void pause() override { ++evaluations_; }

  void resume() override { --evaluations_; }

  [[nodiscard]] double loss_scale() const override { return state_.guard.loss_scale; }

  [[nodiscard]] Expected<Verdict> end_step(
      double loss_sum, std::int64_t token_count, const TrainerState& trainer) override;

  [[nodiscard]] const ReducedLanes& lanes() const override { return reduced_; }

  [[nodiscard]] Status finish() override;

  void request_preemption() override { preempt_.store(true, std::memory_order_relaxed); }

  void report(Event event) override;

  [[nodiscard]] std::int64_t last_telemetry_ns() const override { return last_telemetry_ns_; }

  // Collective: kInvalidArgument when ranks were started with different settings.
  [[nodiscard]] Status check_equal_settings();

 private:
  [[nodiscard]] Deadline deadline() const;

  [[nodiscard]] bool speaks_for_the_job() const { return parts_.options.identity.rank == Rank{0}; }

  // record.cpp
  [[nodiscard]] bool can_use_moba(std::size_t layer_index) const;
  void tell_attention_modes(std::int64_t step);

  // step.cpp
  [[nodiscard]] Expected<Verdict> agree(double loss_sum, std::int64_t token_count);
  void fill_local_lanes(double loss_sum, std::int64_t token_count);
  void drain_commands();
  [[nodiscard]] Status reduce_lanes();
  [[nodiscard]] Status update(const Verdict& verdict);
  [[nodiscard]] Status apply_qk_clip(const Verdict& verdict);
  [[nodiscard]] Status gather(const Verdict& verdict);
  [[nodiscard]] Status finish_gather();
  void apply_checkpoint(const Verdict& verdict, const TrainerState& trainer);
  void observe(const Verdict& verdict);
  void tell(const Verdict& verdict);
  void publish(const Verdict& verdict);
  void emit(Note note);
  void tell_save_outcomes();

  // finish.cpp
  [[nodiscard]] checkpoint::RankState collect(const TrainerState& trainer);
  [[nodiscard]] Status adopt_attention(const TextValues& values, std::int64_t step);
  [[nodiscard]] Status adopt(const SharedState& restored);
  [[nodiscard]] Status restore_here(TrainerState& trainer);
  [[nodiscard]] Status agree_on(const Status& mine, const std::string& what, Deadline limit);
  [[nodiscard]] Status resolve_last_checkpoint(Deadline limit);
  [[nodiscard]] Expected<bool> resolve_once(bool expired);

  // Constant after construction, apart from what they point to.
  Parts parts_;
  LaneLayout layout_;
  DecideOptions decide_options_;

  SharedState state_;
  LocalLanes local_;
  ReducedLanes reduced_;
  std::vector<double> sum_;
  std::vector<double> max_;
  std::vector<Command> pending_;
  std::uint64_t armed_command_{0};
  std::uint64_t digest_{0};          // Of this step; 0: not computed.
  double learning_rate_{0};          // Of this step's update.
  bool update_applied_{false};       // By the optimizer, in this step.
  double applied_learning_rate_{0};  // Of the update whose statistics ride in this step's lanes.

  // [attention layers] of this step and of the last one that was told; empty before the first.
  std::vector<AttentionMode> modes_;
  std::vector<AttentionMode> told_modes_;
  std::optional<Event> schedule_change_;  // Until the first step tells it.

  EpTimes ep_times_;

  bool gathering_{false};  // The last step's gather may still run (overlap).
  int evaluations_{0};     // Open scopes of pause_recording.

  PhaseStopwatch stopwatch_;
  StepEvents events_;
  bool announced_{false};  // run_started or run_resumed was told.
  std::optional<std::int64_t> resumed_from_;
  Ending ending_{Ending::kContinue};
  TrainerState last_trainer_;  // Kept when the run ends, for a checkpoint that finish begins.
  std::int64_t telemetry_ns_{0};
  std::int64_t last_telemetry_ns_{0};
  Status misuse_;  // A record_* call that does not fit the model.
  std::atomic<bool> preempt_{false};
};

// Clears the signal handlers' reference to an agent that is going away.
void forget_preemption_agent(const Agent& agent);

}  // namespace muster::agent
