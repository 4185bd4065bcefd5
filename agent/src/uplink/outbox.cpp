// SPDX-License-Identifier: Apache-2.0
#include "agent/src/uplink/outbox.h"

#include <muster/common/log.h>
#include <muster/wire/codec.h>

#include <algorithm>
#include <utility>

namespace muster::agent {
namespace {

constexpr std::size_t kBatchFramesMax = 256;
constexpr std::size_t kBatchBytesMax = std::size_t{256} << 10;

// Approximate memory of an item; the bound limits growth and need not be exact.
std::size_t size_of(const OutboxItem& item) {
  std::size_t size = sizeof(OutboxItem);
  if (const auto* frame = std::get_if<SampleFrame>(&item)) {
    return size + frame->values.size() * sizeof(float);
  }
  if (const auto* report = std::get_if<CommandReport>(&item)) {
    return size + report->reason.size();
  }
  const Event& event = std::get<Event>(item);
  size += event.kind.size() + event.reason.size();
  for (const auto& [name, value] : event.inputs) {
    size += 64 + name.size() + sizeof value;
  }
  for (const auto& [name, value] : event.labels) {
    size += 96 + name.size() + value.size();
  }
  return size;
}

wire::Message message_of(const OutboxItem& item, std::uint64_t seq, std::uint64_t schema_hash) {
  if (const auto* frame = std::get_if<SampleFrame>(&item)) {
    return wire::SampleBatch{seq, schema_hash, {*frame}};
  }
  if (const auto* event = std::get_if<Event>(&item)) {
    return wire::EventMessage{seq, *event};
  }
  return wire::CommandReportMessage{seq, std::get<CommandReport>(item)};
}

Expected<OutboxItem> item_of(std::span<const std::byte> frame) {
  MUSTER_ASSIGN_OR_RETURN(
      wire::Message message, wire::decode(frame.subspan(wire::kFrameHeaderBytes)));
  if (auto* batch = std::get_if<wire::SampleBatch>(&message);
      batch != nullptr && batch->frames.size() == 1) {
    return OutboxItem{std::move(batch->frames.front())};
  }
  if (auto* event = std::get_if<wire::EventMessage>(&message)) {
    return OutboxItem{std::move(event->event)};
  }
  if (auto* report = std::get_if<wire::CommandReportMessage>(&message)) {
    return OutboxItem{std::move(report->report)};
  }
  return data_loss("the spool contains a message of an unexpected type");
}

bool is_note(const OutboxItem& item) {
  return !std::holds_alternative<SampleFrame>(item);
}

}  // namespace

Outbox::Outbox(std::size_t bytes_max, std::uint64_t schema_hash, std::optional<Spool> spool)
    : bytes_max_(bytes_max), schema_hash_(schema_hash), spool_(std::move(spool)) {}

void Outbox::push(OutboxItem item) {
  refill();
  if (!spools_anything() && fits(item)) {
    keep(std::move(item));
  } else {
    spool_or_drop(std::move(item));
  }
}

std::optional<wire::Message> Outbox::next() {
  refill();
  if (sent_ == items_.size()) {
    return std::nullopt;
  }
  if (std::holds_alternative<SampleFrame>(items_[sent_])) {
    return batch();
  }
  const std::size_t index = sent_++;
  return message_of(items_[index], front_seq_ + index, schema_hash_);
}

Status Outbox::acknowledge(std::uint64_t seq) {
  if (seq >= front_seq_ + items_.size()) {
    return data_loss("the collector acknowledged item ", seq, ", which was never sent");
  }
  while (!items_.empty() && front_seq_ <= seq) {
    bytes_ -= size_of(items_.front());
    items_.pop_front();
    ++front_seq_;
    sent_ -= sent_ > 0 ? 1 : 0;
  }
  return {};
}

bool Outbox::fits(const OutboxItem& item) const {
  return bytes_ + size_of(item) <= bytes_max_;
}

void Outbox::keep(OutboxItem item) {
  bytes_ += size_of(item);
  items_.push_back(std::move(item));
}

void Outbox::spool_or_drop(OutboxItem item) {
  if (spool_) {
    std::vector<std::byte> frame;
    Status status = wire::append_frame(message_of(item, 1, schema_hash_), frame);
    status = status.ok() ? spool_->append(frame) : status;
    if (status.ok()) {
      return;
    }
  }
  if (is_note(item) && bytes_ + size_of(item) <= bytes_max_ + kNoteReserveBytes) {
    keep(std::move(item));  // Ahead of spooled items: a note carries its step.
    return;
  }
  ++(spool_ ? dropped_spool_full_ : dropped_outbox_full_);
}

// Moves spooled items into memory while there is room.
void Outbox::refill() {
  // Some hysteresis: not one record per acknowledged item, but as soon as half is free.
  while (spools_anything() && bytes_ <= bytes_max_ / 2) {
    std::uint64_t lost = 0;
    const auto record = spool_->take(lost);
    const auto item = record ? item_of(*record) : Expected<OutboxItem>{record.status()};
    if (item) {
      keep(*item);
    } else {
      dropped_spool_full_ += std::max<std::uint64_t>(lost, 1);
      log_warning(
          "event=spool_damaged lost=" + std::to_string(lost) + " reason=\"" +
          item.status().to_string() + "\"");
    }
  }
}

wire::SampleBatch Outbox::batch() {
  wire::SampleBatch out;
  out.first_seq = front_seq_ + sent_;
  out.schema_hash = schema_hash_;
  std::size_t bytes = 0;
  while (sent_ < items_.size() && out.frames.size() < kBatchFramesMax && bytes < kBatchBytesMax) {
    const auto* frame = std::get_if<SampleFrame>(&items_[sent_]);
    if (frame == nullptr) {
      break;
    }
    bytes += size_of(items_[sent_]);
    out.frames.push_back(*frame);
    ++sent_;
  }
  return out;
}

}  // namespace muster::agent
