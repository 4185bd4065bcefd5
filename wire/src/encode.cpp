// SPDX-License-Identifier: Apache-2.0
#include "wire/src/text.h"

#include <muster/v1/session.pb.h>
#include <muster/wire/codec.h>

#include <string>
#include <utility>

namespace muster::wire {

namespace {

// The structs' enumerators have the numbers of the schema.
template <typename Proto, typename Enum>
Proto number_of(Enum value) {
  return static_cast<Proto>(static_cast<int>(value));
}

Status put(const Hello& from, v1::Envelope& envelope) {
  v1::Hello& to = *envelope.mutable_hello();
  to.set_version(from.version);
  to.set_version_min(from.version_min);
  to.set_role(number_of<v1::PeerRole>(from.role));
  v1::Identity& identity = *to.mutable_identity();
  identity.set_run_id(to_utf8(from.identity.run_id));
  identity.set_generation(from.identity.generation.value());
  identity.set_rank(from.identity.rank.value());
  identity.set_incarnation(to_utf8(from.identity.incarnation));
  identity.set_run_uid(to_utf8(from.identity.run_uid));
  to.set_world_size(from.world_size);
  to.set_token(from.token);
  to.set_last_applied_command_id(from.last_applied_command);
  to.set_known_epoch(from.known_epoch);
  return {};
}

Status put(const Welcome& from, v1::Envelope& envelope) {
  v1::Welcome& to = *envelope.mutable_welcome();
  to.set_version(from.version);
  to.set_collector_epoch(from.collector_epoch);
  to.set_acked_seq(from.acked_seq);
  return {};
}

Status put(const SchemaMessage& from, v1::Envelope& envelope) {
  v1::MetricSchema& to = *envelope.mutable_schema();
  std::uint32_t position = 0;
  for (const MetricDescriptor& metric : from.schema.metrics) {
    if (metric.id != position) {
      return invalid_argument(
          "metric '",
          metric.name,
          "' at position ",
          position,
          " has id ",
          metric.id,
          "; ids are positions");
    }
    ++position;
    v1::MetricDescriptor& column = *to.add_metrics();
    column.set_id(metric.id);
    column.set_name(to_utf8(metric.name));
    column.set_unit(to_utf8(metric.unit));
    column.set_kind(number_of<v1::MetricKind>(metric.kind));
    column.set_scope(number_of<v1::MetricScope>(metric.scope));
    column.set_layer(metric.layer);
    column.set_index(metric.index);
    column.set_group(to_utf8(metric.group));
  }
  return {};
}

Status put(const SampleBatch& from, v1::Envelope& envelope) {
  const std::size_t width = from.frames.empty() ? 0 : from.frames.front().values.size();
  v1::SampleBatch& to = *envelope.mutable_samples();
  to.set_first_seq(from.first_seq);
  to.set_schema_hash(from.schema_hash);
  to.set_width(static_cast<std::uint32_t>(width));
  to.mutable_values()->Reserve(static_cast<int>(width * from.frames.size()));
  for (const SampleFrame& frame : from.frames) {
    if (frame.values.size() != width) {
      return invalid_argument(
          "step ", frame.step, " has ", frame.values.size(), " values in a batch of width ", width);
    }
    to.add_step(frame.step);
    to.add_wall_unix_ns(frame.wall_unix_ns);
    to.add_monotonic_ns(frame.monotonic_ns);
    to.mutable_values()->Add(frame.values.begin(), frame.values.end());
  }
  return {};
}

Status put(const EventMessage& from, v1::Envelope& envelope) {
  v1::Event& to = *envelope.mutable_event();
  to.set_seq(from.seq);
  to.set_kind(to_utf8(from.event.kind));
  to.set_severity(number_of<v1::Severity>(from.event.severity));
  to.set_step(from.event.step);
  to.set_wall_unix_ns(from.event.wall_unix_ns);
  to.set_reason(to_utf8(from.event.reason));
  for (const auto& [name, value] : from.event.inputs) {
    v1::EventInput& input = *to.add_inputs();
    input.set_name(to_utf8(name));
    input.set_value(value);
  }
  for (const auto& [name, value] : from.event.labels) {
    v1::EventLabel& label = *to.add_labels();
    label.set_name(to_utf8(name));
    label.set_value(to_utf8(value));
  }
  return {};
}

Status put(const CommandReportMessage& from, v1::Envelope& envelope) {
  v1::CommandReport& to = *envelope.mutable_command_report();
  to.set_seq(from.seq);
  to.set_id(from.report.id.value());
  to.set_state(number_of<v1::CommandState>(from.report.state));
  to.set_step(from.report.step);
  to.set_parameter_digest(from.report.parameter_digest);
  to.set_reason(to_utf8(from.report.reason));
  return {};
}

Status put(const Heartbeat& from, v1::Envelope& envelope) {
  v1::Heartbeat& to = *envelope.mutable_heartbeat();
  to.set_step(from.step);
  to.set_monotonic_ns(from.monotonic_ns);
  to.mutable_drops()->set_ring_full_count(from.drops.ring_full);
  to.mutable_drops()->set_outbox_full_count(from.drops.outbox_full);
  to.mutable_drops()->set_spool_full_count(from.drops.spool_full);
  return {};
}

Status put(const Ack& from, v1::Envelope& envelope) {
  envelope.mutable_ack()->set_seq(from.seq);
  return {};
}

Status put(const CommandMessage& from, v1::Envelope& envelope) {
  v1::Command& to = *envelope.mutable_command();
  to.set_id(from.command.id.value());
  to.set_collector_epoch(from.command.collector_epoch);
  to.set_kind(number_of<v1::CommandKind>(from.command.kind));
  to.set_argument(from.command.argument);
  to.set_expires_step(from.command.expires_step);
  to.set_reason(to_utf8(from.command.reason));
  to.set_issuer(to_utf8(from.command.issuer));
  return {};
}

Status put(const CommandRequest& from, v1::Envelope& envelope) {
  v1::CommandRequest& to = *envelope.mutable_command_request();
  to.set_run_id(to_utf8(from.run_id));
  to.set_kind(number_of<v1::CommandKind>(from.kind));
  to.set_argument(from.argument);
  to.set_expires_after_steps(from.expires_steps);
  to.set_reason(to_utf8(from.reason));
  to.set_issuer(to_utf8(from.issuer));
  return {};
}

Status put(const CommandAccepted& from, v1::Envelope& envelope) {
  envelope.mutable_command_accepted()->set_id(from.id.value());
  return {};
}

Status put(const Goodbye& from, v1::Envelope& envelope) {
  v1::Goodbye& to = *envelope.mutable_goodbye();
  to.set_reason(to_utf8(from.reason));
  to.set_retry(from.retry);
  return {};
}

}  // namespace

Status append_frame(const Message& message, std::vector<std::byte>& out) {
  v1::Envelope envelope;
  MUSTER_RETURN_IF_ERROR(
      std::visit([&](const auto& content) { return put(content, envelope); }, message));
  const std::size_t size = envelope.ByteSizeLong();
  if (size > kFrameBytesMax) {
    return invalid_argument("a frame must have at most ", kFrameBytesMax, " bytes, got ", size);
  }
  const std::size_t begin = out.size();
  out.resize(begin + kFrameHeaderBytes + size);
  for (std::size_t i = 0; i < kFrameHeaderBytes; ++i) {
    out[begin + i] = static_cast<std::byte>((size >> (8 * i)) & 0xFFU);
  }
  void* payload = out.data() + begin + kFrameHeaderBytes;
  envelope.SerializeWithCachedSizesToArray(static_cast<std::uint8_t*>(payload));
  return {};
}

}  // namespace muster::wire
