// SPDX-License-Identifier: Apache-2.0
// The implementation of Agent: the step loop over a StepRecorder (lanes of this rank), a
// StepReporter (telemetry) and a SaveCoordinator (checkpoints). join.cpp creates it.
#pragma once

#include "agent/src/attention/state.h"
#include "agent/src/checkpoint/save_coordinator.h"
#include "agent/src/runtime/phase_stopwatch.h"
#include "agent/src/runtime/step_recorder.h"
#include "agent/src/runtime/step_reporter.h"

#include <muster/agent/agent.h>

#include <atomic>
#include <memory>
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
    std::unique_ptr<SaveCoordinator> saves;
    std::unique_ptr<StepReporter> reporter;
    LaneLayout layout;
    DecideOptions decide_options;
    SharedState state;  // of a fresh start
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

  void record_max_logits(std::size_t layer_index, std::span<const float> max_logits) override {
    recorder_.record_max_logits(layer_index, max_logits);
  }

  void record_expert_counts(
      std::size_t layer_index, std::span<const std::int64_t> counts) override {
    recorder_.record_expert_counts(layer_index, counts);
  }

  void set_attention_modes(std::span<const AttentionMode> modes) override {
    recorder_.set_attention_modes(modes);
  }

  void record_moba(std::size_t layer_index, const MobaRecord& record) override {
    recorder_.record_moba(layer_index, record);
  }

  void record_reach(std::size_t layer_index, const kernels::GradientCoverage& coverage) override {
    recorder_.record_reach(layer_index, coverage);
  }

  void record_ep(std::size_t moe_layer_index, const parallel::EpEvent& event) override {
    recorder_.record_ep(moe_layer_index, event);
  }

  void pause() override { recorder_.pause(); }

  void resume() override { recorder_.resume(); }

  [[nodiscard]] double loss_scale() const override { return state_.guard.loss_scale; }

  [[nodiscard]] Expected<Verdict> end_step(
      double loss_sum, std::int64_t token_count, const TrainerState& trainer) override;

  [[nodiscard]] const ReducedLanes& lanes() const override { return reduced_; }

  [[nodiscard]] Status finish() override;

  void request_preemption() override { preempt_.store(true, std::memory_order_relaxed); }

  void report(Event event) override;

  [[nodiscard]] std::int64_t last_telemetry_ns() const override {
    return parts_.reporter->last_telemetry_ns();
  }

 private:
  [[nodiscard]] Deadline deadline() const;

  [[nodiscard]] Expected<Verdict> agree(double loss_sum, std::int64_t token_count);
  void drain_commands();
  void fill_local_lanes(double loss_sum, std::int64_t token_count);
  [[nodiscard]] Status reduce_lanes();
  [[nodiscard]] Status update(Verdict& verdict);
  [[nodiscard]] Status apply_qk_clip(const Verdict& verdict);
  [[nodiscard]] Status gather(const Verdict& verdict);
  [[nodiscard]] Status finish_gather();
  void apply_checkpoint(const Verdict& verdict, const TrainerState& trainer);
  [[nodiscard]] StepOutcome outcome_of(const Verdict& verdict);

  [[nodiscard]] checkpoint::RankState collect(const TrainerState& trainer);
  [[nodiscard]] SaveCoordinator::Report outcome_reporter();
  [[nodiscard]] Status restore_rank(TrainerState& trainer);
  [[nodiscard]] Expected<std::optional<ScheduleChange>> check_attention_change(
      const AttentionState& saved, std::int64_t step) const;
  [[nodiscard]] Status restore_shared_state(const SharedState& restored);

  Parts parts_;
  StepRecorder recorder_;

  SharedState state_;
  ReducedLanes reduced_;
  std::vector<double> sum_;
  std::vector<double> max_;
  std::vector<Command> pending_;
  std::uint64_t armed_command_{0};
  std::uint64_t digest_{0};     // of the parameters in this step; 0 if not computed
  bool update_applied_{false};  // by the optimizer, in this step
  bool gathering_{false};       // the last step's gather may still be running (overlap)

  PhaseStopwatch stopwatch_;
  Ending ending_{Ending::kContinue};
  TrainerState last_trainer_;  // kept when the run ends, for a checkpoint that finish begins
  std::atomic<bool> preempt_{false};
};

// Clears the signal handlers' reference to an agent that is being destroyed.
void forget_preemption_agent(const Agent& agent);

}  // namespace muster::agent
