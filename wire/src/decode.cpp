// SPDX-License-Identifier: Apache-2.0
#include <muster/v1/session.pb.h>
#include <muster/wire/codec.h>

#include <algorithm>
#include <string>
#include <utility>

namespace muster::wire {

namespace {

// The zero value means that the sender left the field out; one above the last is of a newer peer.
template <typename Enum>
Expected<Enum> enumerator(int number, Enum last, const char* name) {
  if (number <= 0) {
    return data_loss(std::string{name} + " is unspecified");
  }
  if (number > static_cast<int>(last)) {
    return unimplemented(name, " ", number, " is not known here");
  }
  return static_cast<Enum>(number);
}

Expected<Message> get(const v1::Hello& from) {
  Hello to;
  to.version = from.version();
  to.version_min = from.version_min();
  MUSTER_ASSIGN_OR_RETURN(to.role, enumerator(from.role(), PeerRole::kOperator, "peer role"));
  to.identity.run_id = from.identity().run_id();
  to.identity.generation = Generation{from.identity().generation()};
  to.identity.rank = Rank{from.identity().rank()};
  to.identity.incarnation = from.identity().incarnation();
  to.identity.run_uid = from.identity().run_uid();
  to.world_size = from.world_size();
  to.token = from.token();
  to.last_applied_command = from.last_applied_command_id();
  to.known_epoch = from.known_epoch();
  return Message{std::move(to)};
}

Expected<Message> get(const v1::Welcome& from) {
  return Message{Welcome{from.version(), from.collector_epoch(), from.acked_seq()}};
}

Expected<Message> get(const v1::MetricSchema& from) {
  SchemaMessage to;
  to.schema.metrics.reserve(static_cast<std::size_t>(from.metrics_size()));
  for (const v1::MetricDescriptor& column : from.metrics()) {
    if (column.id() != to.schema.metrics.size()) {
      return data_loss(
          "metric '",
          column.name(),
          "' at position ",
          to.schema.metrics.size(),
          " has id ",
          column.id());
    }
    MetricDescriptor metric;
    metric.id = column.id();
    metric.name = column.name();
    metric.unit = column.unit();
    MUSTER_ASSIGN_OR_RETURN(
        metric.kind, enumerator(column.kind(), MetricKind::kRate, "metric kind"));
    MUSTER_ASSIGN_OR_RETURN(
        metric.scope, enumerator(column.scope(), MetricScope::kRank, "metric scope"));
    metric.layer = column.layer();
    metric.index = column.index();
    metric.group = column.group();
    to.schema.metrics.push_back(std::move(metric));
  }
  return Message{std::move(to)};
}

Expected<Message> get(const v1::SampleBatch& from) {
  const auto frames = static_cast<std::size_t>(from.step_size());
  const std::size_t width = from.width();
  if (from.wall_unix_ns_size() != from.step_size() ||
      from.monotonic_ns_size() != from.step_size() ||
      static_cast<std::size_t>(from.values_size()) != frames * width) {
    return data_loss(
        "a batch of ",
        frames,
        " frames of width ",
        width,
        " has ",
        from.wall_unix_ns_size(),
        " wall times, ",
        from.monotonic_ns_size(),
        " monotonic times and ",
        from.values_size(),
        " values");
  }
  SampleBatch to;
  to.first_seq = from.first_seq();
  to.schema_hash = from.schema_hash();
  to.frames.resize(frames);
  const float* row = from.values().data();
  for (std::size_t i = 0; i < frames; ++i, row += width) {
    const int at = static_cast<int>(i);
    SampleFrame& frame = to.frames[i];
    frame.step = from.step(at);
    frame.wall_unix_ns = from.wall_unix_ns(at);
    frame.monotonic_ns = from.monotonic_ns(at);
    frame.values.assign(row, row + width);
  }
  return Message{std::move(to)};
}

Expected<Message> get(const v1::Event& from) {
  EventMessage to;
  to.seq = from.seq();
  Event& event = to.event;
  event.kind = from.kind();
  MUSTER_ASSIGN_OR_RETURN(
      event.severity, enumerator(from.severity(), Severity::kError, "event severity"));
  event.step = from.step();
  event.wall_unix_ns = from.wall_unix_ns();
  event.reason = from.reason();
  for (const v1::EventInput& input : from.inputs()) {
    if (!event.inputs.emplace(input.name(), input.value()).second) {
      return data_loss("event input '" + input.name() + "' appears twice");
    }
  }
  for (const v1::EventLabel& label : from.labels()) {
    if (!event.labels.emplace(label.name(), label.value()).second) {
      return data_loss("event label '" + label.name() + "' appears twice");
    }
  }
  return Message{std::move(to)};
}

Expected<Message> get(const v1::CommandReport& from) {
  CommandReportMessage to;
  to.seq = from.seq();
  to.report.id = CommandId{from.id()};
  MUSTER_ASSIGN_OR_RETURN(
      to.report.state, enumerator(from.state(), CommandState::kExpired, "command state"));
  to.report.step = from.step();
  to.report.parameter_digest = from.parameter_digest();
  to.report.reason = from.reason();
  return Message{std::move(to)};
}

Expected<Message> get(const v1::Heartbeat& from) {
  Heartbeat to;
  to.step = from.step();
  to.monotonic_ns = from.monotonic_ns();
  to.drops.ring_full = from.drops().ring_full_count();
  to.drops.outbox_full = from.drops().outbox_full_count();
  to.drops.spool_full = from.drops().spool_full_count();
  return Message{to};
}

Expected<Message> get(const v1::Command& from) {
  CommandMessage to;
  to.command.id = CommandId{from.id()};
  to.command.collector_epoch = from.collector_epoch();
  MUSTER_ASSIGN_OR_RETURN(
      to.command.kind, enumerator(from.kind(), CommandKind::kStop, "command kind"));
  to.command.argument = from.argument();
  to.command.expires_step = from.expires_step();
  to.command.reason = from.reason();
  to.command.issuer = from.issuer();
  return Message{std::move(to)};
}

Expected<Message> get(const v1::CommandRequest& from) {
  CommandRequest to;
  to.run_id = from.run_id();
  MUSTER_ASSIGN_OR_RETURN(to.kind, enumerator(from.kind(), CommandKind::kStop, "command kind"));
  to.argument = from.argument();
  to.expires_steps = from.expires_after_steps();
  to.reason = from.reason();
  to.issuer = from.issuer();
  return Message{std::move(to)};
}

Expected<Message> get(const v1::Envelope& envelope) {
  switch (envelope.message_case()) {
    case v1::Envelope::kHello:
      return get(envelope.hello());
    case v1::Envelope::kWelcome:
      return get(envelope.welcome());
    case v1::Envelope::kSchema:
      return get(envelope.schema());
    case v1::Envelope::kSamples:
      return get(envelope.samples());
    case v1::Envelope::kEvent:
      return get(envelope.event());
    case v1::Envelope::kCommandReport:
      return get(envelope.command_report());
    case v1::Envelope::kHeartbeat:
      return get(envelope.heartbeat());
    case v1::Envelope::kAck:
      return Message{Ack{envelope.ack().seq()}};
    case v1::Envelope::kCommand:
      return get(envelope.command());
    case v1::Envelope::kCommandRequest:
      return get(envelope.command_request());
    case v1::Envelope::kCommandAccepted:
      return Message{CommandAccepted{CommandId{envelope.command_accepted().id()}}};
    case v1::Envelope::kGoodbye:
      return Message{Goodbye{envelope.goodbye().reason(), envelope.goodbye().retry()}};
    case v1::Envelope::MESSAGE_NOT_SET:
      break;
  }
  // Every byte of a payload belongs to some field, so there is one that we do not know.
  return unimplemented("a message of a newer protocol");
}

}  // namespace

Expected<Message> decode(std::span<const std::byte> payload) {
  if (payload.size() > kFrameBytesMax) {
    return invalid_argument(
        "a frame must have at most ", kFrameBytesMax, " bytes, got ", payload.size());
  }
  if (payload.empty()) {
    return data_loss("an empty frame");
  }
  v1::Envelope envelope;
  if (!envelope.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return data_loss("a frame of ", payload.size(), " bytes is not a muster.v1.Envelope");
  }
  return get(envelope);
}

}  // namespace muster::wire
