// SPDX-License-Identifier: Apache-2.0
// The uplink against a fake collector, without a trainer.
#include "agent/src/uplink/uplink.h"

#include "agent/src/uplink/telemetry.h"
#include "tests/support/eventually.h"
#include "tests/unit/agent/fake_collector.h"
#include "tests/unit/agent/train_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace muster::agent {
namespace {

using namespace std::chrono_literals;
using test::eventually;

MetricSchema two_metrics() {
  MetricSchema schema;
  schema.metrics.resize(2);
  schema.metrics[0].name = "a";
  schema.metrics[1].id = 1;
  schema.metrics[1].name = "b";
  return schema;
}

class UplinkTest : public testing::Test {
 protected:
  void start_uplink() {
    options_.host = "127.0.0.1";
    options_.port = collector_.port();
    options_.identity = {"unit", Generation{1}, Rank{0}, "incarnation"};
    options_.schema = two_metrics();
    options_.fill = [](const StepSample& sample, std::span<float> values) {
      values[0] = static_cast<float>(sample.step);
      values[1] = 0.5F;
    };
    auto channel = std::make_unique<Channel>(ring_steps_, StepSample{});
    channel_ = channel.get();
    auto uplink = std::make_unique<Uplink>(options_, *channel, clock_);
    telemetry_ = std::make_unique<Telemetry>(std::move(channel), std::move(uplink));
    telemetry_->start();
  }

  bool publish(std::int64_t step) {
    StepSample* slot = telemetry_->claim();
    if (slot == nullptr) {
      return false;
    }
    slot->step = step;
    telemetry_->publish();
    telemetry_->finished(step, 0);
    return true;
  }

  // Publishes without losing a step: waits for the I/O thread when the ring is full.
  void publish_all(std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from; step < to; ++step) {
      while (channel_->samples.size() == channel_->samples.capacity()) {
        std::this_thread::yield();
      }
      ASSERT_TRUE(publish(step));
    }
  }

  bool wait_for_seq(std::uint64_t seq) {
    return collector_.wait([seq](const FakeCollector::State& state) {
      return state.contains(0) && state.at(0).contiguous() >= seq;
    });
  }

  void expect_each_step_once(std::int64_t steps) {
    const auto state = collector_.state();
    const std::vector<SampleFrame> frames = state.at(0).frames();
    ASSERT_EQ(frames.size(), static_cast<std::size_t>(steps));
    for (std::int64_t step = 0; step < steps; ++step) {
      const SampleFrame& frame = frames[static_cast<std::size_t>(step)];
      EXPECT_EQ(frame.step, step);
      EXPECT_EQ(frame.values[0], static_cast<float>(step));
    }
  }

  SystemClock clock_;
  FakeCollector collector_;
  UplinkOptions options_;
  std::size_t ring_steps_{64};
  Channel* channel_{nullptr};
  std::unique_ptr<Telemetry> telemetry_;
};

using Uplinks = UplinkTest;

TEST_F(Uplinks, DeliversEveryStepOnceAndSaysGoodbye) {
  collector_.start({});
  start_uplink();
  publish_all(0, 300);
  telemetry_.reset();
  expect_each_step_once(300);
  const auto state = collector_.state();
  EXPECT_TRUE(state.at(0).said_goodbye);
  EXPECT_EQ(state.at(0).schemas, 1U);
  EXPECT_EQ(state.at(0).schema, two_metrics());
  EXPECT_EQ(state.at(0).contiguous(), 300U);
}

TEST_F(Uplinks, UnackedFramesAreSentAgainAfterARestartOfTheCollector) {
  FakeCollector::Behaviour forgetful;
  forgetful.acks = false;
  forgetful.stores = false;
  collector_.start(forgetful);
  start_uplink();
  publish_all(0, 50);
  ASSERT_TRUE(collector_.wait(
      [](const auto& state) { return state.contains(0) && state.at(0).forgotten == 50; }));
  collector_.stop();
  publish_all(50, 80);
  FakeCollector::Behaviour next;
  next.epoch = 2;
  collector_.start(next);
  publish_all(80, 120);
  telemetry_.reset();
  expect_each_step_once(120);
  EXPECT_GE(collector_.state().at(0).hellos, 2U);
}

TEST_F(Uplinks, FramesStoredButNotAckedAreNotDoubled) {
  FakeCollector::Behaviour silent;
  silent.acks = false;
  collector_.start(silent);
  start_uplink();
  publish_all(0, 50);
  ASSERT_TRUE(wait_for_seq(50));
  collector_.stop();
  collector_.start({});
  publish_all(50, 60);
  telemetry_.reset();
  expect_each_step_once(60);
  EXPECT_EQ(collector_.state().at(0).duplicates, 0U);
}

TEST_F(Uplinks, NothingIsDoubledOverManyRestarts) {
  collector_.start({});
  start_uplink();
  for (int round = 0; round < 5; ++round) {
    publish_all(round * 40, round * 40 + 40);
    if (round < 4) {
      collector_.stop();
      collector_.start({});
    }
  }
  telemetry_.reset();
  expect_each_step_once(200);
}

TEST_F(Uplinks, AbsentCollectorLetsTheOutboxFillAndDropsAreCounted) {
  collector_.start({});
  collector_.stop();  // The port refuses connections now.
  options_.outbox_bytes_max = 4096;
  start_uplink();
  publish_all(0, 500);
  EXPECT_TRUE(eventually([&] { return channel_->samples.size() == 0; }));
  EXPECT_TRUE(eventually([&] { return channel_->dropped_outbox_full.load() > 400; }));
  const auto begun = std::chrono::steady_clock::now();
  telemetry_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, options_.flush_timeout + 20s);
}

TEST_F(Uplinks, SpoolKeepsWhatMemoryCannotUntilTheCollectorIsBack) {
  const ScratchFolder folder;
  collector_.start({});
  collector_.stop();
  options_.outbox_bytes_max = 4096;
  options_.spool_directory = folder.path();
  start_uplink();
  publish_all(0, 400);
  ASSERT_TRUE(eventually([&] { return channel_->samples.size() == 0; }));
  collector_.start({});
  ASSERT_TRUE(wait_for_seq(400));
  telemetry_.reset();
  expect_each_step_once(400);
}

TEST_F(Uplinks, CollectorThatDoesNotReadNeverBlocksTheTrainingThread) {
  FakeCollector::Behaviour deaf;
  deaf.reads = false;
  collector_.start(deaf);
  options_.outbox_bytes_max = 64 << 10;
  options_.io_timeout = 60s;
  start_uplink();
  std::int64_t slowest_ns = 0;
  // On until the I/O thread has fallen behind by a ring.
  for (std::int64_t step = 0; step < 20'000 || channel_->dropped_ring_full.load() == 0; ++step) {
    ASSERT_LT(step, 20'000'000);
    const auto begun = std::chrono::steady_clock::now();
    static_cast<void>(publish(step));
    slowest_ns =
        std::max<std::int64_t>(slowest_ns, (std::chrono::steady_clock::now() - begun).count());
  }
  // A blocked publish would take io_timeout; a thread that is not scheduled takes far less.
  EXPECT_LT(slowest_ns, 30'000'000'000);
  telemetry_.reset();
}

TEST_F(Uplinks, RefusalForGoodDetachesAndTrainingGoesOn) {
  FakeCollector::Behaviour newer;
  newer.refusal = "this collector speaks protocol 7 to 9, upgrade the agent";
  collector_.start(newer);
  start_uplink();
  ASSERT_TRUE(eventually([&] { return channel_->detached.load(); }));
  EXPECT_FALSE(publish(0));
  telemetry_->emit(Event{});
  telemetry_.reset();
  EXPECT_EQ(collector_.state().at(0).hellos, 1U);
}

TEST_F(Uplinks, WelcomeOfAnotherVersionDetaches) {
  FakeCollector::Behaviour future;
  future.version = wire::kProtocolVersion + 1;
  collector_.start(future);
  start_uplink();
  EXPECT_TRUE(eventually([&] { return channel_->detached.load(); }));
}

TEST_F(Uplinks, CollectorOfAnOlderEpochIsLeft) {
  FakeCollector::Behaviour current;
  current.epoch = 5;
  collector_.start(current);
  start_uplink();
  publish_all(0, 1);
  ASSERT_TRUE(wait_for_seq(1));
  collector_.stop();
  FakeCollector::Behaviour stale;
  stale.epoch = 4;
  collector_.start(stale);
  ASSERT_TRUE(collector_.wait([](const auto& state) { return state.at(0).hellos >= 3; }));
  publish_all(1, 2);
  collector_.stop();
  EXPECT_EQ(collector_.state().at(0).contiguous(), 1U);
  collector_.start(current);
  EXPECT_TRUE(wait_for_seq(2));
}

TEST_F(Uplinks, AcknowledgementOfWhatWasNeverSentEndsTheConnection) {
  FakeCollector::Behaviour broken;
  broken.acks_nonsense = true;
  collector_.start(broken);
  start_uplink();
  publish_all(0, 1);
  EXPECT_TRUE(collector_.wait(
      [](const auto& state) { return state.contains(0) && state.at(0).hellos >= 2; }));
}

TEST_F(Uplinks, CommandsReachTheMailboxOnceAndAreReportedArmed) {
  collector_.start({});
  start_uplink();
  ASSERT_TRUE(collector_.wait(
      [](const auto& state) { return state.contains(0) && state.at(0).schemas == 1; }));
  Command command;
  command.id = CommandId{7};
  command.kind = CommandKind::kStop;
  command.collector_epoch = 1;
  collector_.send(0, wire::CommandMessage{command});
  collector_.send(0, wire::CommandMessage{command});
  std::optional<Command> got;
  ASSERT_TRUE(eventually([&] {
    got = telemetry_->next_command();
    return got.has_value();
  }));
  EXPECT_EQ(*got, command);
  ASSERT_TRUE(wait_for_seq(1));
  EXPECT_EQ(collector_.state().at(0).reports()[0].state, CommandState::kArmed);
  EXPECT_FALSE(telemetry_->next_command().has_value());
}

TEST_F(Uplinks, CommandFromTheFutureOfItsBearerIsRejected) {
  collector_.start({});
  start_uplink();
  ASSERT_TRUE(collector_.wait(
      [](const auto& state) { return state.contains(0) && state.at(0).schemas == 1; }));
  Command command;
  command.id = CommandId{7};
  command.collector_epoch = 2;
  collector_.send(0, wire::CommandMessage{command});
  ASSERT_TRUE(wait_for_seq(1));
  EXPECT_EQ(collector_.state().at(0).reports()[0].state, CommandState::kRejected);
  EXPECT_FALSE(telemetry_->next_command().has_value());
}

TEST_F(Uplinks, MoreEventsThanTheRingHoldsAllArrive) {
  collector_.start({});
  start_uplink();
  constexpr std::size_t kEvents = 3 * Channel::kNotes;
  for (std::size_t i = 0; i < kEvents; ++i) {
    Event event;
    event.kind = "test";
    event.step = static_cast<std::int64_t>(i);
    telemetry_->emit(std::move(event));
  }
  telemetry_.reset();
  const std::vector<Event> events = collector_.state().at(0).events();
  ASSERT_EQ(events.size(), kEvents);
  for (std::size_t i = 0; i < kEvents; ++i) {
    EXPECT_EQ(events[i].step, static_cast<std::int64_t>(i));
  }
}

TEST_F(Uplinks, HeartbeatCarriesProgressAndDrops) {
  collector_.start({});
  options_.heartbeat_interval = 20ms;
  start_uplink();
  publish_all(0, 3);
  channel_->dropped_ring_full = 11;
  EXPECT_TRUE(collector_.wait([](const auto& state) {
    return state.contains(0) && state.at(0).last_heartbeat.step == 2 &&
           state.at(0).last_heartbeat.drops.ring_full == 11;
  }));
}

TEST(CollectorAddress, IsHostAndPort) {
  UplinkOptions options;
  ASSERT_TRUE(parse_address("[::1]:7700", options).ok());
  EXPECT_EQ(options.host, "::1");
  EXPECT_EQ(options.port, "7700");
  for (const char* wrong : {"", "localhost", "host:", ":77", "host:port", "host:0", "host:70000"}) {
    EXPECT_EQ(parse_address(wrong, options).code(), StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace muster::agent
