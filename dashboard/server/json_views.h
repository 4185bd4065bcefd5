// SPDX-License-Identifier: Apache-2.0
// Answers of the API as JSON text. The only translation unit that sees the JSON library.
//
// Times are Unix milliseconds (exact in a double). Numbers that JSON cannot hold are the strings
// "NaN", "Infinity" and "-Infinity"; text that is not UTF-8 is repaired, never refused.
#pragma once

#include <muster/common/expected.h>
#include <muster/common/telemetry.h>
#include <muster/store/query.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::dashboard {

// Access to commands: kOff (they are refused), kOpen, or kToken.
enum class CommandAccess { kOff, kOpen, kToken };

[[nodiscard]] std::string runs_json(
    const std::vector<store::RunInfo>& runs, CommandAccess access, std::int64_t now_unix_ns);
[[nodiscard]] std::string run_json(
    const store::RunInfo& run,
    const std::vector<store::Query::GenerationInfo>& generations,
    CommandAccess access,
    std::int64_t now_unix_ns);
[[nodiscard]] std::string series_json(const std::vector<store::SeriesInfo>& series);
// Columns instead of objects: a matrix has thousands of values. Null: no sample of this step.
[[nodiscard]] std::string step_json(const std::string& metric, const store::StepValues& values);
[[nodiscard]] std::string events_json(const std::vector<store::StoredEvent>& events);
[[nodiscard]] std::string ranks_json(const std::vector<store::RankStatus>& ranks);
[[nodiscard]] std::string commands_json(const std::vector<store::CommandStatus>& commands);
[[nodiscard]] std::string command_id_json(CommandId id);
[[nodiscard]] std::string error_json(std::string_view message);

// Changes since the last message of a stream; an absent part is unchanged.
struct LiveUpdate {
  std::int64_t now_unix_ns{0};
  std::optional<store::RunInfo> run;
  std::vector<store::StoredEvent> events;
  std::vector<store::RankStatus> ranks;
  std::optional<std::vector<store::CommandStatus>> commands;
};

[[nodiscard]] std::string live_json(const LiveUpdate& update);

// {"kind": "checkpoint_now", "argument": 0, "reason": "why"}; argument is optional.
struct CommandRequest {
  CommandKind kind{CommandKind::kCheckpointNow};
  double argument{0};
  std::string reason;
};

// kInvalidArgument names the field.
[[nodiscard]] Expected<CommandRequest> parse_command_request(const std::string& body);

}  // namespace muster::dashboard
