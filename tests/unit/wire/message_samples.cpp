// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/wire/message_samples.h"

#include <bit>
#include <cstdint>
#include <limits>

namespace muster::wire {

namespace {

Hello sample_hello() {
  Hello hello;
  hello.version = 7;
  hello.version_min = 3;
  hello.role = PeerRole::kLauncher;
  hello.identity = {"run-1", Generation{4}, Rank{-1}, "0123abcd"};
  hello.world_size = 8;
  hello.token = std::string{"t\0k\xFF", 4};
  hello.last_applied_command = 12;
  hello.known_epoch = 5;
  return hello;
}

Event sample_event() {
  Event event;
  event.kind = event_kind::kFinding;
  event.severity = Severity::kWarning;
  event.step = -1;
  event.wall_unix_ns = 1'700'000'000'123'456'789;
  event.reason = "loss \xE2\x86\x91 three times";
  event.inputs = {
      {"loss", std::numeric_limits<double>::infinity()}, {"median", 2.5}, {"zero", -0.0}};
  event.labels = {{"rule", "spike"}, {"subject", "loss"}};
  return event;
}

Command sample_command() {
  return {CommandId{9}, 3, CommandKind::kSetQkClipThreshold, 100.5, 4096, "logit 120", "operator"};
}

}  // namespace

MetricSchema sample_schema() {
  return {{
      {0, "train_loss_nats", "nats", MetricKind::kInstant, MetricScope::kJob, -1, -1, ""},
      {1, "train_attn_logit_max", "1", MetricKind::kRatio, MetricScope::kRank, 3, 1, "attention"},
  }};
}

SampleBatch sample_batch() {
  const float quiet_nan_with_payload = std::bit_cast<float>(std::uint32_t{0x7FC1'2345});
  const float negative_nan = std::bit_cast<float>(std::uint32_t{0xFFC0'0001});
  SampleBatch batch;
  batch.first_seq = 1'000'000'007;
  batch.schema_hash = 0xFEDC'BA98'7654'3210;
  batch.frames = {
      {10, 1'700'000'000'000'000'001, 5'000'000'001, {1.5F, quiet_nan_with_payload, -0.0F}},
      {11,
       -2,
       std::numeric_limits<std::int64_t>::max(),
       {std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::denorm_min()}},
      {std::numeric_limits<std::int64_t>::max(), 3, 4, {negative_nan, -1e-40F, 3.4028235e38F}},
  };
  return batch;
}

std::vector<std::pair<std::string, Message>> all_messages() {
  const CommandReport report{
      CommandId{9}, CommandState::kRejected, 77, 0x8000'0000'0000'0001, "unknown command"};
  return {
      {"hello", sample_hello()},
      {"welcome", Welcome{2, 6, 41}},
      {"schema", SchemaMessage{sample_schema()}},
      {"sample_batch", sample_batch()},
      {"event", EventMessage{42, sample_event()}},
      {"command_report", CommandReportMessage{43, report}},
      {"heartbeat", Heartbeat{100, 9'000'000'000, {1, 2, 3}}},
      {"ack", Ack{std::numeric_limits<std::uint64_t>::max()}},
      {"command", CommandMessage{sample_command()}},
      {"command_request",
       CommandRequest{"run-1", CommandKind::kStop, 1.25, 50, "maintenance", "operator"}},
      {"command_accepted", CommandAccepted{CommandId{10}}},
      {"goodbye", Goodbye{"wrong token", true}},
  };
}

}  // namespace muster::wire
