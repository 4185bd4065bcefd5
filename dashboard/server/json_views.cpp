// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/json_views.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace muster::dashboard {

namespace {

using nlohmann::json;

constexpr std::int64_t kNsPerMs = 1'000'000;
constexpr std::size_t kReasonBytesMax = 500;
constexpr std::array kCommandKinds{
    CommandKind::kCheckpointNow,
    CommandKind::kSkipStep,
    CommandKind::kSetQkClipThreshold,
    CommandKind::kStop};

std::string text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

json number(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "Infinity" : "-Infinity";
  }
  return value;
}

const char* access_name(CommandAccess access) {
  switch (access) {
    case CommandAccess::kOff:
      return "off";
    case CommandAccess::kOpen:
      return "open";
    case CommandAccess::kToken:
      return "token";
  }
  return "off";
}

const char* severity_name(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "info";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "info";
}

json view(const store::RunInfo& run) {
  return {
      {"run_id", run.run_id},
      {"world_size", run.world_size},
      {"generation", run.generation},
      {"first_step", run.first_step},
      {"last_step", run.last_step},
      {"started_unix_ms", run.started_unix_ns / kNsPerMs},
      {"last_seen_unix_ms", run.last_seen_unix_ns / kNsPerMs},
      {"last_loss", number(run.last_loss)},
      {"sample_count", run.sample_count},
      {"dropped_count", run.dropped_count}};
}

json view(const store::Query::GenerationInfo& generation) {
  return {
      {"generation", generation.generation},
      {"step_first", generation.step_first},
      {"step_last", generation.step_last},
      {"started_unix_ms", generation.started_unix_ns / kNsPerMs}};
}

json view(const store::SeriesInfo& series) {
  return {
      {"id", series.series_id},
      {"name", series.name},
      {"unit", series.unit},
      {"scope", series.scope == MetricScope::kJob ? "job" : "rank"},
      {"rank", series.rank},
      {"layer", series.layer},
      {"index", series.index},
      {"group", series.group}};
}

json view(const store::StoredEvent& stored) {
  json inputs = json::object();
  for (const auto& [name, value] : stored.event.inputs) {
    inputs[name] = number(value);
  }
  return {
      {"id", stored.event_id},
      {"generation", stored.generation},
      {"rank", stored.rank},
      {"kind", stored.event.kind},
      {"severity", severity_name(stored.event.severity)},
      {"step", stored.event.step},
      {"unix_ms", stored.event.wall_unix_ns / kNsPerMs},
      {"reason", stored.event.reason},
      {"inputs", std::move(inputs)},
      {"labels", stored.event.labels}};
}

json view(const store::RankStatus& rank) {
  return {
      {"rank", rank.rank},
      {"generation", rank.generation},
      {"incarnation", rank.incarnation},
      {"step", rank.step},
      {"last_seen_unix_ms", rank.last_seen_unix_ns / kNsPerMs},
      {"connected", rank.connected},
      {"compute_seconds", number(rank.compute_seconds)},
      {"dropped_count", rank.dropped_count}};
}

json view(const store::CommandStatus& status) {
  return {
      {"id", status.command.id.value()},
      {"kind", to_string(status.command.kind)},
      {"argument", number(status.command.argument)},
      {"reason", status.command.reason},
      {"issuer", status.command.issuer},
      {"state", to_string(status.state)},
      {"state_reason", status.reason},
      {"applied_step", status.applied_step},
      {"ranks_armed", status.ranks_armed},
      {"ranks_applied", status.ranks_applied}};
}

template <typename Item>
json list(const std::vector<Item>& items) {
  json array = json::array();
  for (const Item& item : items) {
    array.push_back(view(item));
  }
  return array;
}

}  // namespace

std::string runs_json(
    const std::vector<store::RunInfo>& runs, CommandAccess access, std::int64_t now_unix_ns) {
  return text(
      {{"runs", list(runs)},
       {"commands", access_name(access)},
       {"now_unix_ms", now_unix_ns / kNsPerMs}});
}

std::string run_json(
    const store::RunInfo& run,
    const std::vector<store::Query::GenerationInfo>& generations,
    CommandAccess access,
    std::int64_t now_unix_ns) {
  return text(
      {{"run", view(run)},
       {"generations", list(generations)},
       {"commands", access_name(access)},
       {"now_unix_ms", now_unix_ns / kNsPerMs}});
}

std::string series_json(const std::vector<store::SeriesInfo>& series) {
  return text({{"series", list(series)}});
}

std::string step_json(const std::string& metric, const store::StepValues& values) {
  json ranks = json::array();
  json layers = json::array();
  json indices = json::array();
  json groups = json::array();
  json numbers = json::array();
  for (const store::StepValue& value : values.values) {
    ranks.push_back(value.rank);
    layers.push_back(value.layer);
    indices.push_back(value.index);
    groups.push_back(value.group);
    numbers.push_back(value.present ? number(static_cast<double>(value.value)) : json(nullptr));
  }
  return text(
      {{"metric", metric},
       {"unit", values.unit},
       {"generation", values.generation},
       {"step", values.step},
       {"step_first", values.step_first},
       {"step_last", values.step_last},
       {"rank", std::move(ranks)},
       {"layer", std::move(layers)},
       {"index", std::move(indices)},
       {"group", std::move(groups)},
       {"value", std::move(numbers)}});
}

std::string events_json(const std::vector<store::StoredEvent>& events) {
  return text({{"events", list(events)}});
}

std::string ranks_json(const std::vector<store::RankStatus>& ranks) {
  return text({{"ranks", list(ranks)}});
}

std::string commands_json(const std::vector<store::CommandStatus>& commands) {
  return text({{"commands", list(commands)}});
}

std::string command_id_json(CommandId id) {
  return text({{"id", id.value()}});
}

std::string error_json(std::string_view message) {
  return text({{"error", message}});
}

std::string live_json(const LiveUpdate& update) {
  json message = {{"now_unix_ms", update.now_unix_ns / kNsPerMs}};
  if (update.run) {
    message["run"] = view(*update.run);
  }
  if (!update.events.empty()) {
    message["events"] = list(update.events);
  }
  if (!update.ranks.empty()) {
    message["ranks"] = list(update.ranks);
  }
  if (update.commands) {
    message["commands"] = list(*update.commands);
  }
  return text(message);
}

Expected<CommandRequest> parse_command_request(const std::string& body) {
  const json value = json::parse(body, nullptr, false);
  if (!value.is_object()) {
    return invalid_argument("a command is a JSON object: {\"kind\", \"argument\", \"reason\"}");
  }
  CommandRequest request;
  const std::string kind = value.contains("kind") && value["kind"].is_string()
                               ? value["kind"].get<std::string>()
                               : std::string{};
  bool known = false;
  for (const CommandKind candidate : kCommandKinds) {
    if (kind == to_string(candidate)) {
      request.kind = candidate;
      known = true;
    }
  }
  if (!known) {
    return invalid_argument(
        "\"kind\" is \"" + kind +
        "\"; expected checkpoint_now, skip_step, set_qk_clip_threshold or stop");
  }
  if (value.contains("argument")) {
    if (!value["argument"].is_number()) {
      return invalid_argument("\"argument\" must be a number");
    }
    request.argument = value["argument"].get<double>();
  }
  if (request.kind == CommandKind::kSetQkClipThreshold && request.argument < 0) {
    return invalid_argument("\"argument\" is the clip threshold and must be 0 (off) or more");
  }
  if (!value.contains("reason") || !value["reason"].is_string() ||
      value["reason"].get<std::string>().size() > kReasonBytesMax) {
    return invalid_argument("\"reason\" must say why, in at most ", kReasonBytesMax, " bytes");
  }
  request.reason = value["reason"].get<std::string>();
  return request;
}

}  // namespace muster::dashboard
