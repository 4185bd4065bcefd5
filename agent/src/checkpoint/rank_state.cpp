// SPDX-License-Identifier: Apache-2.0
#include "agent/src/checkpoint/rank_state.h"

#include <muster/common/log.h>
#include <muster/common/text.h>

#include <algorithm>
#include <set>
#include <utility>

namespace muster::agent {
namespace {

const std::string kTrainerPrefix = "trainer/";
const std::string kTrainerValuePrefix = "trainer.";
const std::string kOldAppliedSteps = "agent.applied_steps";

// The optimizer's part of a checkpoint: every tensor that is not the trainer's.
class OptimizerSource final : public optimizer::StateSource {
 public:
  // `values` are those of one of the ranks that wrote the checkpoint; the optimizer's are the same
  // on all.
  OptimizerSource(checkpoint::Pieces& pieces, TextValues values)
      : pieces_(pieces), values_(std::move(values)) {
    for (const std::string& name : pieces_.names()) {
      if (!name.starts_with(kTrainerPrefix)) {
        const checkpoint::Pieces::Tensor* tensor = pieces_.find(name);
        tensors_[name] = {tensor->dtype, tensor->global_shape};
      }
    }
  }

  const Tensor* find(const std::string& name) override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }

  const std::string* value(const std::string& key) override {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }

  Status read(const std::string& name, std::int64_t begin, std::span<std::byte> out) override {
    return pieces_.read(name, begin, out);
  }

  std::vector<std::string> names() override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) {
      names.push_back(name);
    }
    return names;
  }

 private:
  checkpoint::Pieces& pieces_;
  const TextValues values_;
  std::map<std::string, Tensor> tensors_;
};

// The bytes of `trainer`'s tensors as rank `source` saved them. Fails unless the tensors of the
// checkpoint and of this loop are the same.
Expected<std::vector<std::vector<std::byte>>> read_trainer_tensors(
    checkpoint::Pieces& pieces, int source, const TrainerState& trainer) {
  std::vector<std::vector<std::byte>> tensors;
  std::set<std::string> wanted;
  for (const TrainerState::Tensor& tensor : trainer.tensors) {
    const std::string name = kTrainerPrefix + tensor.name;
    const checkpoint::Pieces::Part* part = pieces.find_part(name, source);
    if (part == nullptr) {
      return failed_precondition(
          "the checkpoint has no tensor '", name, "': it was saved by another training loop");
    }
    if (part->bytes != static_cast<std::int64_t>(tensor.data.size_bytes())) {
      return failed_precondition(
          "tensor '",
          name,
          "' has ",
          tensor.data.size_bytes(),
          " bytes in this training loop and ",
          part->bytes,
          " in the checkpoint: start with the settings it was saved with");
    }
    tensors.emplace_back(tensor.data.size_bytes());
    MUSTER_RETURN_IF_ERROR(pieces.read_part(name, source, tensors.back()));
    wanted.insert(name);
  }
  for (const std::string& name : pieces.names()) {
    if (name.starts_with(kTrainerPrefix) && wanted.count(name) == 0) {
      return failed_precondition(
          "the checkpoint's tensor '", name, "' has no place in this training loop");
    }
  }
  return tensors;
}

// Reads checkpoints in which the agent kept the count of applied steps for the optimizer, and
// Muon's momentum had one form.
Status take_old_values(const TextValues& saved, optimizer::Optimizer& optimizer) {
  if (saved.count(kOldAppliedSteps) == 0) {
    return {};
  }
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t applied, integer_value(saved, kOldAppliedSteps));
  optimizer.set_applied_steps(applied);
  log_info(
      "event=old_checkpoint reason=\"it does not name the form of Muon's momentum; using "
      "heavy_ball, the only form at the time\"");
  return {};
}

void take_trainer_values(const TextValues& saved, TextValues& values) {
  values.clear();
  for (const auto& [key, value] : saved) {
    if (key.starts_with(kTrainerValuePrefix)) {
      values[key.substr(kTrainerValuePrefix.size())] = value;
    }
  }
}

TextValues schedule_values(const optimizer::ScheduleOptions& schedule) {
  return {
      {"schedule.learning_rate", exact_text(schedule.learning_rate)},
      {"schedule.warmup_steps", std::to_string(schedule.warmup_steps)},
      {"schedule.total_steps", std::to_string(schedule.total_steps)},
      {"schedule.final_ratio", exact_text(schedule.final_ratio)},
      {"schedule.kind", optimizer::to_string(schedule.kind)},
      {"schedule.cooldown_steps", std::to_string(schedule.cooldown_steps)},
      {"schedule.cooldown", optimizer::to_string(schedule.cooldown)}};
}

// Keys that an older checkpoint lacks are not compared.
void warn_of_other_schedule(const TextValues& saved, const optimizer::ScheduleOptions& now) {
  for (const auto& [key, value] : schedule_values(now)) {
    const auto entry = saved.find(key);
    if (entry != saved.end() && entry->second != value) {
      log_warning(concat(
          "event=schedule_changed reason=\"the checkpoint was saved with ",
          key,
          " ",
          entry->second,
          "; this run's ",
          value,
          " is used\""));
    }
  }
}

}  // namespace

checkpoint::RankState collect_state(
    optimizer::Optimizer& optimizer,
    const SharedState& state,
    const AttentionState& attention,
    const TrainerState& trainer,
    std::int64_t known_epoch) {
  checkpoint::RankState out;
  out.tensors = optimizer.state();
  for (const TrainerState::Tensor& tensor : trainer.tensors) {
    const auto size = static_cast<std::int64_t>(tensor.data.size());
    out.tensors.push_back(
        {kTrainerPrefix + tensor.name,
         DType::kFloat32,
         {size},
         {size},
         {0},
         std::as_bytes(tensor.data)});
  }
  out.values = optimizer.state_values();
  write_shared_state(state, out.values);
  write_attention(attention, out.values);
  out.values["agent.known_epoch"] = std::to_string(known_epoch);
  out.values.merge(schedule_values(optimizer.options().schedule));
  for (const auto& [key, value] : trainer.values) {
    out.values[kTrainerValuePrefix + key] = value;
  }
  return out;
}

Expected<RestoredState> distribute_state(
    checkpoint::Pieces& pieces,
    int rank,
    int world_size,
    optimizer::Optimizer& optimizer,
    TrainerState& trainer) {
  const int source = rank % pieces.world_size();
  const TextValues& values = pieces.values(source);
  RestoredState out;
  MUSTER_ASSIGN_OR_RETURN(out.shared, read_shared_state(values));
  MUSTER_ASSIGN_OR_RETURN(out.known_epoch, integer_value(values, "agent.known_epoch"));
  if (out.shared.step != pieces.step().value()) {
    return data_loss(
        "the checkpoint of step ",
        pieces.step().value(),
        " holds the history of step ",
        out.shared.step);
  }
  MUSTER_ASSIGN_OR_RETURN(const auto tensors, read_trainer_tensors(pieces, source, trainer));
  OptimizerSource optimizer_source{pieces, values};
  MUSTER_RETURN_IF_ERROR(optimizer.load_state(optimizer_source));
  MUSTER_RETURN_IF_ERROR(take_old_values(values, optimizer));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::copy(
        tensors[i].begin(),
        tensors[i].end(),
        std::as_writable_bytes(trainer.tensors[i].data).begin());
  }
  const bool same_world = pieces.world_size() == world_size;
  take_trainer_values(same_world ? values : pieces.values(0), trainer.values);
  warn_of_other_schedule(values, optimizer.options().schedule);
  return out;
}

}  // namespace muster::agent
