// SPDX-License-Identifier: Apache-2.0
// The decision of a step: a pure function of reduced lanes, commands and shared history.
#include <muster/agent/agent.h>
#include <muster/agent/verdict.h>
#include <muster/common/text.h>
#include <muster/optimizer/guards.h>
#include <muster/optimizer/qk_clip.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace muster::agent {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void add_reason(Verdict& verdict, const std::string& reason) {
  verdict.reason += (verdict.reason.empty() ? "" : "; ") + reason;
}

void skip(Verdict& verdict, const std::string& reason) {
  verdict.skip = true;
  add_reason(verdict, reason);
}

std::string name_of(const Command& command) {
  return "command " + std::to_string(command.id.value()) +
         (command.issuer.empty() ? "" : " of " + command.issuer) +
         (command.reason.empty() ? "" : ": " + command.reason);
}

AppliedCommand rejected(const Command& command, std::string reason) {
  return {command, CommandState::kRejected, std::move(reason)};
}

AppliedCommand set_threshold(
    const Command& command,
    const ReducedLanes& lanes,
    const DecideOptions& options,
    SharedState& state) {
  if (lanes.max_logits.empty()) {
    return rejected(command, "this model has no attention layer to clip");
  }
  if (command.argument > 0.0 && !options.qk_clip_obstacle.empty()) {
    return rejected(command, options.qk_clip_obstacle);
  }
  if (!std::isfinite(command.argument) || command.argument < 0.0) {
    return rejected(
        command,
        "a QK-clip threshold must be finite and not negative, got " + fixed(command.argument, 6));
  }
  state.qk_clip_threshold = command.argument;
  return {command, CommandState::kApplied, {}};
}

AppliedCommand run_command(
    const Command& command,
    const ReducedLanes& lanes,
    const DecideOptions& options,
    SharedState& state,
    Verdict& verdict) {
  if (command.expires_step >= 0 && state.step > command.expires_step) {
    return {
        command,
        CommandState::kExpired,
        "valid until step " + std::to_string(command.expires_step) + ", now at step " +
            std::to_string(state.step)};
  }
  switch (command.kind) {
    case CommandKind::kCheckpointNow:
      if (!options.checkpoints_enabled) {
        return rejected(
            command, "this run saves no checkpoints: start it with MUSTER_CHECKPOINT_ROOT");
      }
      state.checkpoint_wanted = true;
      state.pin_wanted = state.pin_wanted || command.argument != 0.0;
      return {command, CommandState::kApplied, {}};
    case CommandKind::kSkipStep:
      skip(verdict, name_of(command));
      return {command, CommandState::kApplied, {}};
    case CommandKind::kSetQkClipThreshold:
      return set_threshold(command, lanes, options, state);
    case CommandKind::kStop:
      state.stopping = true;
      add_reason(verdict, name_of(command));
      return {command, CommandState::kApplied, {}};
  }
  return rejected(command, "unknown kind of command: upgrade the agent");
}

void run_commands(
    const ReducedLanes& lanes,
    std::span<const Command> pending,
    const DecideOptions& options,
    SharedState& state,
    Verdict& verdict) {
  // Equal highest ids are waited for, not only a common minimum: then the digests cover exactly
  // what is about to run. Commands are rare, so the wait ends when the slowest rank has armed.
  if (lanes.armed_command_min != lanes.armed_command_max ||
      lanes.armed_command_min <= state.last_applied_command) {
    return;
  }
  const bool same_lists = lanes.pending_digest_min == lanes.pending_digest_max;
  for (const Command& command : pending) {
    const std::uint64_t id = command.id.value();
    if (id <= state.last_applied_command || id > lanes.armed_command_min) {
      continue;
    }
    state.last_applied_command = id;
    verdict.commands.push_back(
        same_lists ? run_command(command, lanes, options, state, verdict)
                   : rejected(command, "the ranks hold different lists of commands"));
  }
  state.last_applied_command = lanes.armed_command_min;
}

void judge_update(const ReducedLanes& lanes, const SharedState& state, Verdict& verdict) {
  if (lanes.nonfinite_loss) {
    skip(verdict, "the loss of a rank is not finite");
  }
  if (lanes.nonfinite_count > 0.0) {
    skip(verdict, "gradients hold NaN or infinity");
  }
  if (lanes.nonfinite_logit) {
    skip(verdict, "an attention logit is not finite");
  }
  if (lanes.nonfinite && !verdict.skip) {
    skip(verdict, "a statistic of a rank is not finite");
  }
  if (!(lanes.token_count > 0.0)) {
    skip(verdict, "no rank counted a token in this step");
  }
  const bool has_tokens = lanes.token_count > 0.0;
  verdict.loss_scale = state.guard.loss_scale;
  verdict.gradient_scale = has_tokens ? 1.0 / (lanes.token_count * verdict.loss_scale) : 0.0;
  verdict.loss = lanes.nonfinite_loss || !has_tokens ? kNan : lanes.loss_sum / lanes.token_count;
  double squared_norm = 0.0;
  for (const double group : lanes.squared_norm) {
    squared_norm += group;
  }
  const bool norm_known = has_tokens && lanes.nonfinite_count <= 0.0;
  verdict.gradient_norm = norm_known ? std::sqrt(squared_norm) * verdict.gradient_scale : kNan;
}

// Only in a step that is applied: a skipped gradient must not enter the mean of ZClip.
void judge_clipping(
    const ReducedLanes& lanes, const DecideOptions& options, SharedState& state, Verdict& verdict) {
  std::vector<double> group_norms;
  for (const double squared : lanes.squared_norm) {
    group_norms.push_back(std::sqrt(squared) * verdict.gradient_scale);
  }
  const double usual = state.guard.zclip_mean;
  optimizer::ClipDecision decision = optimizer::decide_clipping(
      options.clipping, options.clip_norm, options.group_names, group_norms, state.guard);
  verdict.clip_factor = decision.clip_factor;
  verdict.group_clip_factors = std::move(decision.group_clip_factors);
  verdict.gradient_spike = decision.spike;
  if (decision.spike) {
    add_reason(
        verdict,
        "ZClip: the gradient norm " + fixed(verdict.gradient_norm, 6) +
            " is a spike over its mean " + fixed(usual, 6) + ", clipped to " +
            fixed(decision.clipped_norm, 6));
  }
}

// Only the gradients of a step are evidence about the scale.
void judge_loss_scale(
    const ReducedLanes& lanes, const DecideOptions& options, SharedState& state, Verdict& verdict) {
  const bool overflow = lanes.nonfinite_count > 0.0;
  if (!options.loss_scale || (verdict.skip && !overflow)) {
    return;
  }
  optimizer::update_loss_scale(*options.loss_scale, overflow, state.guard);
  if (overflow) {
    add_reason(
        verdict,
        "loss scale " + fixed(verdict.loss_scale, 6) + " -> " + fixed(state.guard.loss_scale, 6));
  }
}

void judge_heads(const ReducedLanes& lanes, SharedState& state, Verdict& verdict) {
  std::int64_t heads = 0;
  std::vector<std::vector<double>> gammas;
  for (const std::vector<double>& logits : lanes.max_logits) {
    gammas.push_back(optimizer::qk_clip_gammas(logits, state.qk_clip_threshold));
    heads += std::count_if(
        gammas.back().begin(), gammas.back().end(), [](double gamma) { return gamma < 1.0; });
  }
  if (heads > 0) {
    verdict.head_gammas = std::move(gammas);
    state.clipped_heads += heads;
  }
}

void resolve_in_flight(const ReducedLanes& lanes, SharedState& state, Verdict& verdict) {
  const std::int64_t sequence = state.checkpoint_in_flight;
  if (sequence == 0) {
    return;
  }
  if (lanes.failed_checkpoint_max >= sequence) {
    verdict.abandon_checkpoint = sequence;
    add_reason(
        verdict, "checkpoint " + std::to_string(sequence) + " could not be written on every rank");
  } else if (lanes.prepared_checkpoint_min >= sequence) {
    verdict.commit_checkpoint = sequence;
    verdict.commit_pinned = state.checkpoint_pin_in_flight;
  } else {
    return;
  }
  state.checkpoint_in_flight = 0;
  state.checkpoint_pin_in_flight = false;
}

void begin_wanted(SharedState& state, Verdict& verdict) {
  if (!state.checkpoint_wanted || state.checkpoint_in_flight != 0) {
    return;
  }
  verdict.begin_checkpoint = ++state.checkpoint_sequence;
  state.checkpoint_in_flight = state.checkpoint_sequence;
  state.checkpoint_pin_in_flight = state.pin_wanted;
  state.checkpoint_wanted = false;
  state.pin_wanted = false;
}

bool skips_too_often(const DecideOptions& options, SharedState& state, Verdict& verdict) {
  if (!verdict.skip || options.skips_max <= 0) {
    return false;
  }
  std::vector<std::int64_t>& skips = state.recent_skips;
  skips.push_back(state.step);
  if (std::ssize(skips) > options.skips_max) {
    skips.erase(skips.begin());
  }
  const std::int64_t span = state.step - skips.front() + 1;
  if (std::ssize(skips) < options.skips_max || span > options.skip_window) {
    return false;
  }
  add_reason(
      verdict,
      concat(
          options.skips_max,
          " of the last ",
          span,
          " steps were skipped, so the run ends: go back to a checkpoint from before step ",
          skips.front(),
          " with other settings or data"));
  return true;
}

// Names of the groups with a count, and their sum.
std::string describe_counts(
    const ReducedLanes& lanes,
    const DecideOptions& options,
    std::int64_t kernels::UpdateStatistics::*count) {
  std::string names;
  std::int64_t total = 0;
  for (std::size_t g = 0; g < lanes.update.size(); ++g) {
    if (const std::int64_t here = lanes.update[g].elements.*count; here > 0) {
      const std::string name =
          g < options.group_names.size() ? options.group_names[g] : std::to_string(g);
      names += concat(names.empty() ? "" : ", ", "'", name, "'");
      total += here;
    }
  }
  return names.empty() ? names : concat(total, " elements of ", names);
}

// The lanes describe the update of the step before. True if the run cannot go on with its states.
bool states_fail(
    const ReducedLanes& lanes, const DecideOptions& options, SharedState& state, Verdict& verdict) {
  const bool updated = std::any_of(lanes.update.begin(), lanes.update.end(), [](const auto& group) {
    return group.element_count > 0;
  });
  if (!updated) {
    return false;
  }
  const std::int64_t step = state.step - 1;
  const std::string lost = describe_counts(lanes, options, &kernels::UpdateStatistics::lost_count);
  if (!lost.empty()) {
    add_reason(
        verdict,
        concat(
            "parameters or optimizer states are lost: ",
            lost,
            " were not finite before the update of step ",
            step,
            ", so the run ends: go back to a checkpoint from before step ",
            step));
    return true;
  }
  const std::string withheld =
      describe_counts(lanes, options, &kernels::UpdateStatistics::withheld_count);
  if (withheld.empty()) {
    state.withheld_updates = 0;
    return false;
  }
  state.withheld_since = state.withheld_updates == 0 ? step : state.withheld_since;
  ++state.withheld_updates;
  if (options.withheld_max <= 0 || state.withheld_updates < options.withheld_max) {
    return false;
  }
  add_reason(
      verdict,
      concat(
          "new values would not have been finite in ",
          state.withheld_updates,
          " updates in a row, the last in ",
          withheld,
          ", so the run ends: go back to a checkpoint from before step ",
          state.withheld_since,
          " with other settings or data"));
  return true;
}

Ending judge_ending(
    const ReducedLanes& lanes, const DecideOptions& options, SharedState& state, Verdict& verdict) {
  const bool failing_states = states_fail(lanes, options, state, verdict);
  if (skips_too_often(options, state, verdict) || failing_states) {
    return Ending::kFailed;
  }
  if (lanes.preempt) {
    state.stopping = true;
    state.stop_is_preemption = true;
  }
  if (options.total_steps > 0 && state.step + 1 >= options.total_steps) {
    return Ending::kFinished;
  }
  if (!state.stopping) {
    return Ending::kContinue;
  }
  if (state.stop_is_preemption) {
    add_reason(verdict, "a rank was asked to end (preemption)");
    return Ending::kPreempted;
  }
  return Ending::kStopped;
}

Verdict abort_for_generation(const ReducedLanes& lanes) {
  Verdict verdict;
  verdict.ending = Ending::kAbort;
  skip(
      verdict,
      "ranks of generations " + std::to_string(lanes.generation_min) + " and " +
          std::to_string(lanes.generation_max) + " met: the older launch must end");
  return verdict;
}

}  // namespace

int exit_code(Ending ending) {
  switch (ending) {
    case Ending::kPreempted:
      return kExitPreempted;
    case Ending::kAbort:
    case Ending::kFailed:
    case Ending::kStopped:
      return kExitNeverRestart;
    case Ending::kContinue:
    case Ending::kFinished:
      break;
  }
  return kExitDone;
}

Verdict resolve_checkpoint(const ReducedLanes& lanes, SharedState& state) {
  if (lanes.generation_min != lanes.generation_max) {
    return abort_for_generation(lanes);
  }
  Verdict verdict;
  resolve_in_flight(lanes, state, verdict);
  begin_wanted(state, verdict);
  return verdict;
}

Verdict decide(
    const ReducedLanes& lanes,
    std::span<const Command> pending,
    const DecideOptions& options,
    SharedState& state) {
  if (lanes.generation_min != lanes.generation_max) {
    return abort_for_generation(lanes);
  }
  Verdict verdict;
  run_commands(lanes, pending, options, state, verdict);
  judge_update(lanes, state, verdict);
  if (!verdict.skip) {
    judge_clipping(lanes, options, state, verdict);
    if (state.qk_clip_threshold > 0.0) {
      judge_heads(lanes, state, verdict);
    }
  }
  judge_loss_scale(lanes, options, state, verdict);
  verdict.diverged = lanes.replica_digest_min != lanes.replica_digest_max;
  verdict.ending = judge_ending(lanes, options, state, verdict);

  const bool due =
      state.checkpoint_overdue ||
      (options.checkpoint_interval > 0 && (state.step + 1) % options.checkpoint_interval == 0);
  state.checkpoint_overdue = due && verdict.skip;
  const bool last = verdict.ending != Ending::kContinue && verdict.ending != Ending::kFailed &&
                    options.checkpoint_on_stop;
  state.checkpoint_wanted =
      state.checkpoint_wanted || (options.checkpoints_enabled && ((due && !verdict.skip) || last));
  resolve_in_flight(lanes, state, verdict);
  begin_wanted(state, verdict);

  state.skipped_steps += verdict.skip ? 1 : 0;
  ++state.step;
  return verdict;
}

}  // namespace muster::agent
