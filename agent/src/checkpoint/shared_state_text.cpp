// SPDX-License-Identifier: Apache-2.0
#include "agent/src/checkpoint/shared_state_text.h"

#include <array>
#include <charconv>

namespace muster::agent {
namespace {

template <typename T>
Expected<T> parse(const TextValues& values, const std::string& key) {
  const auto entry = values.find(key);
  if (entry == values.end()) {
    return data_loss("the checkpoint has no value '", key, "'");
  }
  const std::string& text = entry->second;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return data_loss("the checkpoint's value '", key, "' is not a number: '", text, "'");
  }
  return value;
}

// Reads a value that the first version did not save. Its runs had no fp16 parameters and no ZClip,
// so the default is their state. A key that exists must parse.
template <typename T>
Status parse_if_present(const TextValues& values, const std::string& key, T& value) {
  if (values.contains(key)) {
    MUSTER_ASSIGN_OR_RETURN(value, parse<T>(values, key));
  }
  return {};
}

}  // namespace

std::string exact_text(double value) {
  std::array<char, 64> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  static_cast<void>(error);  // 64 characters hold every double.
  return {text.data(), end};
}

Expected<std::int64_t> integer_value(const TextValues& values, const std::string& key) {
  return parse<std::int64_t>(values, key);
}

Expected<double> real_value(const TextValues& values, const std::string& key) {
  return parse<double>(values, key);
}

void write_shared_state(const SharedState& state, TextValues& values) {
  values["agent.step"] = std::to_string(state.step);
  values["agent.qk_clip_threshold"] = exact_text(state.qk_clip_threshold);
  values["agent.last_applied_command"] = std::to_string(state.last_applied_command);
  values["agent.checkpoint_sequence"] = std::to_string(state.checkpoint_sequence);
  values["agent.skipped_steps"] = std::to_string(state.skipped_steps);
  values["agent.clipped_heads"] = std::to_string(state.clipped_heads);
  values["agent.zclip_mean"] = exact_text(state.guard.zclip_mean);
  values["agent.zclip_variance"] = exact_text(state.guard.zclip_variance);
  values["agent.zclip_steps"] = std::to_string(state.guard.zclip_steps);
  values["agent.loss_scale"] = exact_text(state.guard.loss_scale);
  values["agent.loss_scale_clean_steps"] = std::to_string(state.guard.clean_steps);
  values["agent.loss_scale_hysteresis_left"] = std::to_string(state.guard.hysteresis_left);
}

Expected<SharedState> read_shared_state(const TextValues& values) {
  SharedState state;
  MUSTER_ASSIGN_OR_RETURN(state.step, integer_value(values, "agent.step"));
  MUSTER_ASSIGN_OR_RETURN(state.qk_clip_threshold, real_value(values, "agent.qk_clip_threshold"));
  MUSTER_ASSIGN_OR_RETURN(
      state.last_applied_command, parse<std::uint64_t>(values, "agent.last_applied_command"));
  MUSTER_ASSIGN_OR_RETURN(
      state.checkpoint_sequence, integer_value(values, "agent.checkpoint_sequence"));
  MUSTER_ASSIGN_OR_RETURN(state.skipped_steps, integer_value(values, "agent.skipped_steps"));
  optimizer::GuardState& guard = state.guard;
  MUSTER_RETURN_IF_ERROR(parse_if_present(values, "agent.clipped_heads", state.clipped_heads));
  MUSTER_RETURN_IF_ERROR(parse_if_present(values, "agent.zclip_mean", guard.zclip_mean));
  MUSTER_RETURN_IF_ERROR(parse_if_present(values, "agent.zclip_variance", guard.zclip_variance));
  MUSTER_RETURN_IF_ERROR(parse_if_present(values, "agent.zclip_steps", guard.zclip_steps));
  MUSTER_RETURN_IF_ERROR(parse_if_present(values, "agent.loss_scale", guard.loss_scale));
  MUSTER_RETURN_IF_ERROR(
      parse_if_present(values, "agent.loss_scale_clean_steps", guard.clean_steps));
  MUSTER_RETURN_IF_ERROR(
      parse_if_present(values, "agent.loss_scale_hysteresis_left", guard.hysteresis_left));
  return state;
}

}  // namespace muster::agent
