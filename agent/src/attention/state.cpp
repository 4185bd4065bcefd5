// SPDX-License-Identifier: Apache-2.0
#include "agent/src/attention/state.h"

#include <algorithm>
#include <utility>

namespace muster::agent {
namespace {

const std::string kSchedule = "agent.attention_schedule";
const std::string kModes = "agent.attention_modes";

// One rule per line, in the schedule's syntax.
std::string modes_text(const std::vector<AttentionMode>& modes) {
  std::string text;
  for (const AttentionMode& mode : modes) {
    AttentionRule rule;
    rule.moba = mode.moba;
    text += to_string(rule) + "\n";
  }
  return text;
}

Expected<AttentionSchedule> parse_value(const std::string& key, const std::string& text) {
  auto schedule = AttentionSchedule::parse(text);
  if (!schedule) {
    return data_loss(
        "the checkpoint's value '", key, "' does not parse: ", schedule.status().message());
  }
  return schedule;
}

Expected<std::vector<AttentionMode>> parse_modes(const std::string& text) {
  std::vector<AttentionMode> modes;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    MUSTER_ASSIGN_OR_RETURN(
        const AttentionSchedule line, parse_value(kModes, text.substr(begin, end - begin)));
    AttentionMode& mode = modes.emplace_back();
    if (!line.rules.empty()) {
      mode = {line.rules.front().moba, AttentionReason::kRule};
    }
    begin = end + 1;
  }
  return modes;
}

std::string in_one_line(const AttentionSchedule& schedule) {
  std::string text = schedule.to_string();
  while (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at)) {
    text.replace(at, 1, "; ");
  }
  return text;
}

}  // namespace

void write_attention(const AttentionState& state, TextValues& values) {
  if (state.schedule) {
    values[kSchedule] = state.schedule->to_string();
  }
  if (!state.modes.empty()) {
    values[kModes] = modes_text(state.modes);
  }
}

Expected<AttentionState> read_attention(const TextValues& values) {
  AttentionState state;
  if (const auto text = values.find(kSchedule); text != values.end()) {
    MUSTER_ASSIGN_OR_RETURN(state.schedule, parse_value(kSchedule, text->second));
  }
  if (const auto text = values.find(kModes); text != values.end()) {
    MUSTER_ASSIGN_OR_RETURN(state.modes, parse_modes(text->second));
  }
  return state;
}

std::string ScheduleChange::describe() const {
  return "the checkpoint was saved under the attention schedule '" + before + "', this run has '" +
         now + "': at step " + std::to_string(first.step) + " attention layer " +
         std::to_string(first.layer) + " changes from " + label_of(first.before) + " to " +
         label_of(first.now);
}

std::optional<ScheduleChange> schedule_change(
    const std::optional<AttentionSchedule>& before,
    const std::optional<AttentionSchedule>& now,
    std::int64_t layers,
    std::int64_t step) {
  const AttentionSchedule saved = before.value_or(AttentionSchedule{});
  const AttentionSchedule current = now.value_or(AttentionSchedule{});
  const auto first = difference_from(saved, current, layers, step);
  if (!first) {
    return std::nullopt;
  }
  return ScheduleChange{*first, in_one_line(saved), in_one_line(current)};
}

}  // namespace muster::agent
