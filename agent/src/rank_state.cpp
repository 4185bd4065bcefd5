#include "src/rank_state.h"

#include <muster/common/log.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace muster::agent {
namespace {

const std::string kTrainerPrefix = "trainer/";
const std::string kTrainerValuePrefix = "trainer.";

// One place in memory that a checkpoint tensor belongs to.
struct Destination {
  std::string name;
  std::span<float> data;
};

std::vector<Destination> destinations(optimizer::Optimizer& optimizer, TrainerState& trainer) {
  std::vector<Destination> places;
  for (optimizer::StateTensor& tensor : optimizer.state()) {
    places.push_back({tensor.name, tensor.data});
  }
  for (TrainerState::Tensor& tensor : trainer.tensors) {
    places.push_back({kTrainerPrefix + tensor.name, tensor.data});
  }
  return places;
}

Expected<std::vector<const checkpoint::LoadedTensor*>> match(
    const checkpoint::LoadedState& loaded, const std::vector<Destination>& places) {
  std::map<std::string, const checkpoint::LoadedTensor*> by_name;
  for (const checkpoint::LoadedTensor& tensor : loaded.tensors) {
    by_name[tensor.name] = &tensor;
  }
  std::vector<const checkpoint::LoadedTensor*> sources;
  for (const Destination& place : places) {
    const auto found = by_name.find(place.name);
    if (found == by_name.end()) {
      return failed_precondition(
          "the checkpoint has no tensor '" + place.name + "': it was saved by another model");
    }
    if (found->second->data.size() != place.data.size_bytes()) {
      return failed_precondition(
          "tensor '" + place.name + "' has " + std::to_string(place.data.size_bytes()) +
          " bytes in this model and " + std::to_string(found->second->data.size()) +
          " in the checkpoint: start with the settings it was saved with");
    }
    sources.push_back(found->second);
    by_name.erase(found);
  }
  if (!by_name.empty()) {
    return failed_precondition(
        "the checkpoint's tensor '" + by_name.begin()->first + "' has no place in this model");
  }
  return sources;
}

void warn_of_other_schedule(const TextValues& saved, const optimizer::ScheduleOptions& now) {
  const auto differs = [&saved](const char* key, const std::string& value) {
    const auto entry = saved.find(key);
    return entry != saved.end() && entry->second != value;
  };
  if (differs("schedule.learning_rate", exact_text(now.learning_rate)) ||
      differs("schedule.warmup_steps", std::to_string(now.warmup_steps)) ||
      differs("schedule.total_steps", std::to_string(now.total_steps)) ||
      differs("schedule.final_ratio", exact_text(now.final_ratio))) {
    log_warning(
        "event=schedule_changed reason=\"this run's learning-rate schedule is not the one the "
        "checkpoint was saved with; the new one is used\"");
  }
}

}  // namespace

checkpoint::RankState collect_state(
    optimizer::Optimizer& optimizer,
    const SharedState& state,
    const TrainerState& trainer,
    std::int64_t known_epoch) {
  checkpoint::RankState out;
  for (optimizer::StateTensor& tensor : optimizer.state()) {
    out.tensors.push_back(
        {tensor.name,
         "F32",
         tensor.shape,
         tensor.global_shape,
         tensor.offset,
         std::as_bytes(tensor.data)});
  }
  for (const TrainerState::Tensor& tensor : trainer.tensors) {
    const auto size = static_cast<std::int64_t>(tensor.data.size());
    out.tensors.push_back(
        {kTrainerPrefix + tensor.name, "F32", {size}, {size}, {0}, std::as_bytes(tensor.data)});
  }
  write_shared_state(state, out.values);
  const optimizer::ScheduleOptions& schedule = optimizer.options().schedule;
  out.values["agent.applied_steps"] = std::to_string(optimizer.applied_steps());
  out.values["agent.known_epoch"] = std::to_string(known_epoch);
  out.values["schedule.learning_rate"] = exact_text(schedule.learning_rate);
  out.values["schedule.warmup_steps"] = std::to_string(schedule.warmup_steps);
  out.values["schedule.total_steps"] = std::to_string(schedule.total_steps);
  out.values["schedule.final_ratio"] = exact_text(schedule.final_ratio);
  for (const auto& [key, value] : trainer.values) {
    out.values[kTrainerValuePrefix + key] = value;
  }
  return out;
}

Expected<RestoredState> distribute_state(
    const checkpoint::LoadedState& loaded, optimizer::Optimizer& optimizer, TrainerState& trainer) {
  RestoredState out;
  MUSTER_ASSIGN_OR_RETURN(out.shared, read_shared_state(loaded.values));
  MUSTER_ASSIGN_OR_RETURN(
      const std::int64_t applied, integer_value(loaded.values, "agent.applied_steps"));
  MUSTER_ASSIGN_OR_RETURN(out.known_epoch, integer_value(loaded.values, "agent.known_epoch"));
  if (out.shared.step != loaded.step.value()) {
    return data_loss(
        "the checkpoint of step " + std::to_string(loaded.step.value()) +
        " holds the history of step " + std::to_string(out.shared.step));
  }
  const std::vector<Destination> places = destinations(optimizer, trainer);
  MUSTER_ASSIGN_OR_RETURN(const auto sources, match(loaded, places));
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!places[i].data.empty()) {
      std::memcpy(places[i].data.data(), sources[i]->data.data(), sources[i]->data.size());
    }
  }
  optimizer.set_applied_steps(applied);
  trainer.values.clear();
  for (const auto& [key, value] : loaded.values) {
    if (key.starts_with(kTrainerValuePrefix)) {
      trainer.values[key.substr(kTrainerValuePrefix.size())] = value;
    }
  }
  warn_of_other_schedule(loaded.values, optimizer.options().schedule);
  return out;
}

}  // namespace muster::agent
