// SPDX-License-Identifier: Apache-2.0
// Items pending for the collector, oldest first: a bounded part in memory whose items have sequence
// numbers, followed by the spool, whose items are numbered when they move into memory.
//
// Invariants: (1) items_ holds consecutive sequence numbers; everything below its front is
// acknowledged. (2) while the spool is not empty, new items go behind it. (3) memory stays within
// bytes_max, plus kNoteReserveBytes for events and reports, which are kept when samples are
// dropped. Not thread-safe; sans-I/O except for the spool's file.
#pragma once

#include "agent/src/uplink/spool.h"

#include <muster/common/telemetry.h>
#include <muster/wire/messages.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <variant>

namespace muster::agent {

using OutboxItem = std::variant<SampleFrame, Event, CommandReport>;

class Outbox {
 public:
  static constexpr std::size_t kNoteReserveBytes = std::size_t{4} << 20;

  Outbox(std::size_t bytes_max, std::uint64_t schema_hash, std::optional<Spool> spool);

  // Keeps the item, or drops and counts it if neither memory nor spool has room.
  void push(OutboxItem item);

  // The next unsent message; consecutive samples become one batch. nullopt if everything is sent.
  [[nodiscard]] std::optional<wire::Message> next();

  // Releases the items up to `seq`, which the collector has stored. kDataLoss if `seq` was never
  // sent.
  [[nodiscard]] Status acknowledge(std::uint64_t seq);

  // Starts a connection: every item that is not acknowledged is unsent again.
  void rewind() { sent_ = 0; }

  // True if no item waits for sending or acknowledgement.
  [[nodiscard]] bool empty() const { return items_.empty() && !spools_anything(); }

  [[nodiscard]] bool awaits_ack() const { return sent_ > 0; }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  [[nodiscard]] std::uint64_t dropped_outbox_full() const { return dropped_outbox_full_; }

  [[nodiscard]] std::uint64_t dropped_spool_full() const { return dropped_spool_full_; }

 private:
  [[nodiscard]] bool spools_anything() const { return spool_ && !spool_->empty(); }

  [[nodiscard]] bool fits(const OutboxItem& item) const;
  void keep(OutboxItem item);
  void spool_or_drop(OutboxItem item);
  void refill();
  [[nodiscard]] wire::SampleBatch batch();

  std::size_t bytes_max_;
  std::uint64_t schema_hash_;
  std::optional<Spool> spool_;
  std::deque<OutboxItem> items_;
  std::uint64_t front_seq_{1};  // of items_.front()
  std::size_t sent_{0};         // leading items sent on this connection
  std::size_t bytes_{0};
  std::uint64_t dropped_outbox_full_{0};
  std::uint64_t dropped_spool_full_{0};
};

}  // namespace muster::agent
