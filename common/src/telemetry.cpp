// SPDX-License-Identifier: Apache-2.0
#include <muster/common/hash.h>
#include <muster/common/telemetry.h>

#include <cstring>

namespace muster {

namespace {

template <typename T>
void append_bytes(std::string& text, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  text.append(bytes, sizeof(T));
}

void append_string(std::string& text, const std::string& value) {
  append_bytes(text, static_cast<std::uint64_t>(value.size()));
  text += value;
}

}  // namespace

std::uint64_t MetricSchema::hash() const {
  std::string text;
  for (const MetricDescriptor& metric : metrics) {
    append_bytes(text, metric.id);
    append_string(text, metric.name);
    append_string(text, metric.unit);
    append_bytes(text, metric.kind);
    append_bytes(text, metric.scope);
    append_bytes(text, metric.layer);
    append_bytes(text, metric.index);
    append_string(text, metric.group);
  }
  return hash64(std::as_bytes(std::span{text.data(), text.size()}));
}

const char* to_string(CommandKind kind) {
  switch (kind) {
    case CommandKind::kCheckpointNow:
      return "checkpoint_now";
    case CommandKind::kSkipStep:
      return "skip_step";
    case CommandKind::kSetQkClipThreshold:
      return "set_qk_clip_threshold";
    case CommandKind::kStop:
      return "stop";
  }
  return "unknown";
}

const char* to_string(CommandState state) {
  switch (state) {
    case CommandState::kIssued:
      return "issued";
    case CommandState::kArmed:
      return "armed";
    case CommandState::kApplied:
      return "applied";
    case CommandState::kRejected:
      return "rejected";
    case CommandState::kExpired:
      return "expired";
  }
  return "unknown";
}

}  // namespace muster
