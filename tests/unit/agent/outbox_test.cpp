// SPDX-License-Identifier: Apache-2.0
#include "agent/src/uplink/outbox.h"

#include "agent/src/uplink/backoff.h"
#include "tests/unit/agent/train_group.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <fstream>

namespace muster::agent {
namespace {

using namespace std::chrono_literals;

SampleFrame frame(std::int64_t step) {
  SampleFrame out;
  out.step = step;
  out.values = {static_cast<float>(step)};
  return out;
}

std::optional<Spool> spool_in(const ScratchFolder& folder, std::size_t bytes = 1 << 20) {
  auto spool = Spool::open(folder.path() / "spool", bytes);
  EXPECT_TRUE(spool.ok()) << spool.status().to_string();
  return std::move(spool).value();
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span{text});
  return {bytes.begin(), bytes.end()};
}

// Takes and acknowledges everything; the steps in the order they came.
std::vector<std::int64_t> drain(Outbox& outbox) {
  std::vector<std::int64_t> steps;
  std::uint64_t expected_seq = 1;
  while (const auto message = outbox.next()) {
    const auto& batch = std::get<wire::SampleBatch>(*message);
    EXPECT_EQ(batch.first_seq, expected_seq);
    expected_seq += batch.frames.size();
    for (const SampleFrame& sample : batch.frames) {
      steps.push_back(sample.step);
    }
    EXPECT_TRUE(outbox.acknowledge(expected_seq - 1).ok());
  }
  return steps;
}

TEST(Outbox, SendsSamplesAsBatchesBetweenEvents) {
  Outbox outbox{1 << 20, 42, std::nullopt};
  outbox.push(frame(0));
  outbox.push(frame(1));
  outbox.push(Event{});
  outbox.push(frame(2));
  const auto first = outbox.next();
  ASSERT_TRUE(first.has_value());
  const auto& batch = std::get<wire::SampleBatch>(*first);
  EXPECT_EQ(batch.first_seq, 1U);
  EXPECT_EQ(batch.schema_hash, 42U);
  EXPECT_EQ(batch.frames.size(), 2U);
  EXPECT_EQ(std::get<wire::EventMessage>(*outbox.next()).seq, 3U);
  EXPECT_EQ(std::get<wire::SampleBatch>(*outbox.next()).first_seq, 4U);
  EXPECT_FALSE(outbox.next().has_value());
}

TEST(Outbox, SendsAgainWhatWasNotAcknowledged) {
  Outbox outbox{1 << 20, 0, std::nullopt};
  for (int step = 0; step < 5; ++step) {
    outbox.push(frame(step));
  }
  EXPECT_TRUE(outbox.next().has_value());
  ASSERT_TRUE(outbox.acknowledge(2).ok());
  outbox.rewind();
  const auto again = outbox.next();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(std::get<wire::SampleBatch>(*again).first_seq, 3U);
  EXPECT_EQ(std::get<wire::SampleBatch>(*again).frames.size(), 3U);
}

TEST(Outbox, AcknowledgementOfTheFutureIsRefused) {
  Outbox outbox{1 << 20, 0, std::nullopt};
  outbox.push(frame(0));
  EXPECT_EQ(outbox.acknowledge(2).code(), StatusCode::kDataLoss);
  EXPECT_FALSE(outbox.empty());
  EXPECT_TRUE(outbox.acknowledge(1).ok());
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, MemoryBoundHoldsAndDropsAreCounted) {
  Outbox outbox{4096, 0, std::nullopt};
  for (int step = 0; step < 1000; ++step) {
    outbox.push(frame(step));
    EXPECT_LE(outbox.bytes(), 4096U);
  }
  const auto kept = drain(outbox);
  EXPECT_EQ(kept.size() + outbox.dropped_outbox_full(), 1000U);
  EXPECT_EQ(kept.back() + 1, static_cast<std::int64_t>(kept.size()));
}

TEST(Outbox, EventsAreKeptWhenSamplesAreDropped) {
  Outbox outbox{4096, 0, std::nullopt};
  for (int step = 0; step < 1000; ++step) {
    outbox.push(frame(step));
  }
  const std::uint64_t dropped = outbox.dropped_outbox_full();
  outbox.push(Event{});
  EXPECT_EQ(outbox.dropped_outbox_full(), dropped);
}

TEST(Outbox, SpoolKeepsTheOrder) {
  const ScratchFolder folder;
  Outbox outbox{4096, 0, spool_in(folder)};
  for (int step = 0; step < 500; ++step) {
    outbox.push(frame(step));
  }
  const auto steps = drain(outbox);
  ASSERT_EQ(steps.size(), 500U);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i], static_cast<std::int64_t>(i));
  }
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, ThePermissionsOfASpoolFollowTheUmask) {
  const ScratchFolder folder;
  const mode_t before = ::umask(077);
  const bool opened = spool_in(folder).has_value();
  ::umask(before);
  ASSERT_TRUE(opened);
  using std::filesystem::perms;
  const perms mode = std::filesystem::status(folder.path() / "spool").permissions();
  EXPECT_EQ(mode, perms::owner_read | perms::owner_write);
}

TEST(Outbox, FullSpoolCountsItsOwnDrops) {
  const ScratchFolder folder;
  Outbox outbox{4096, 0, spool_in(folder, 2000)};
  for (int step = 0; step < 500; ++step) {
    outbox.push(frame(step));
  }
  EXPECT_GT(outbox.dropped_spool_full(), 0U);
  EXPECT_EQ(outbox.dropped_outbox_full(), 0U);
  EXPECT_EQ(drain(outbox).size() + outbox.dropped_spool_full(), 500U);
}

TEST(Outbox, DamagedSpoolIsCountedAndTheRestGoesOn) {
  const ScratchFolder folder;
  Outbox outbox{4096, 0, spool_in(folder)};
  for (int step = 0; step < 200; ++step) {
    outbox.push(frame(step));
  }
  {
    std::fstream file{folder.path() / "spool", std::ios::in | std::ios::out | std::ios::binary};
    file.seekp(20);
    file.put('\x7f');
  }
  const auto kept = drain(outbox);
  EXPECT_EQ(kept.size() + outbox.dropped_spool_full(), 200U);
  EXPECT_GT(outbox.dropped_spool_full(), 0U);
  outbox.push(frame(200));
  EXPECT_FALSE(outbox.empty());
}

TEST(Spool, GivesRecordsBackInOrderAndEmptiesTheFile) {
  const ScratchFolder folder;
  auto spool = spool_in(folder);
  ASSERT_TRUE(spool->append(bytes_of("one")).ok());
  ASSERT_TRUE(spool->append(bytes_of("")).ok());
  ASSERT_TRUE(spool->append(bytes_of("three")).ok());
  std::uint64_t lost = 0;
  EXPECT_EQ(*spool->take(lost), bytes_of("one"));
  EXPECT_EQ(*spool->take(lost), bytes_of(""));
  EXPECT_EQ(*spool->take(lost), bytes_of("three"));
  EXPECT_TRUE(spool->empty());
  EXPECT_EQ(std::filesystem::file_size(folder.path() / "spool"), 0U);
}

TEST(Spool, RefusesARecordBeyondItsBound) {
  const ScratchFolder folder;
  auto spool = spool_in(folder, 30);
  EXPECT_TRUE(spool->append(bytes_of("0123456789")).ok());
  EXPECT_EQ(spool->append(bytes_of("0123456789")).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(spool->records(), 1U);
}

TEST(Spool, FolderThatCannotBeMadeIsAnError) {
  EXPECT_FALSE(Spool::open("/proc/no/such/place/spool", 100).ok());
}

TEST(Backoff, StaysUnderItsGrowingCeiling) {
  Backoff backoff{100ms, 5000ms, Random{7}};
  std::chrono::nanoseconds ceiling = 100ms;
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto wait = backoff.next();
    EXPECT_GE(wait, 0ns);
    EXPECT_LE(wait, ceiling);
    ceiling = std::min<std::chrono::nanoseconds>(ceiling * 2, 5000ms);
  }
  backoff.reset();
  EXPECT_LE(backoff.next(), 100ms);
}

TEST(Backoff, RanksDoNotComeBackTogether) {
  Backoff a{100ms, 5000ms, Random{1}};
  Backoff b{100ms, 5000ms, Random{2}};
  EXPECT_NE(a.next(), b.next());
}

}  // namespace
}  // namespace muster::agent
