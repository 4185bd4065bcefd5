#include "src/shared_state_text.h"

#include <array>
#include <charconv>

namespace muster::agent {
namespace {

template <typename T>
Expected<T> parse(const TextValues& values, const std::string& key) {
  const auto entry = values.find(key);
  if (entry == values.end()) {
    return data_loss("the checkpoint has no value '" + key + "'");
  }
  const std::string& text = entry->second;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return data_loss("the checkpoint's value '" + key + "' is not a number: '" + text + "'");
  }
  return value;
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
  return state;
}

}  // namespace muster::agent
