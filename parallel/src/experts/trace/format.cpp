// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/trace/format.h"

#include <muster/common/hash.h>

#include <algorithm>

namespace muster::parallel {

namespace {

constexpr std::size_t kHashBytes = 8;
constexpr int kShortExperts = 65'536;  // choices among at most this many take two bytes

std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

bool is_intact(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + bytes.size() - kHashBytes, kHashBytes);
  return hash == hash64(bytes.first(bytes.size() - kHashBytes));
}

// Sets the length, its complement if the prefix has one, and the hash. The complement distinguishes
// a file that ends inside a record from a damaged length.
void finish(std::vector<std::byte>& bytes, std::size_t size_offset, bool complemented) {
  const auto whole = static_cast<std::uint32_t>(bytes.size() + kHashBytes);
  std::memcpy(bytes.data() + size_offset, &whole, sizeof(whole));
  if (complemented) {
    const std::uint32_t complement = ~whole;
    std::memcpy(bytes.data() + size_offset + sizeof(whole), &complement, sizeof(complement));
  }
  const std::uint64_t hash = hash64(bytes);
  bytes.resize(whole);
  std::memcpy(bytes.data() + whole - kHashBytes, &hash, kHashBytes);
}

// Visits the fields in the order used for reading and writing.
template <typename Statistics, typename Visit>
void visit_statistics(Statistics& statistics, const Visit& visit) {
  visit(statistics.rows);
  visit(statistics.copies);
  visit(statistics.copies_in_max);
  visit(statistics.copies_out_max);
  visit(statistics.rows_moved);
  visit(statistics.surplus);
  visit(statistics.overflow_groups);
  visit(statistics.pad_rows);
  visit(statistics.quota_steps);
  visit(statistics.max_violation);
  visit(statistics.rank_imbalance);
  visit(statistics.rank_imbalance_after);
}

}  // namespace

void encode_header(const EpTraceHeader& header, std::vector<std::byte>& bytes) {
  TraceBytes out{bytes};
  out.put_all(std::span{kEpTraceMagic});
  out.put(kEpTraceVersion);
  out.put(std::uint32_t{0});
  const EpShape& shape = header.shape;
  for (const std::int32_t field :
       {shape.ranks,
        shape.experts,
        shape.top_k,
        shape.slots,
        shape.padding,
        static_cast<std::int32_t>(shape.compact)}) {
    out.put(field);
  }
  out.put(shape.tokens_max);
  const EpBalance& balance = header.balance;
  out.put(static_cast<std::int32_t>(balance.mode));
  out.put(static_cast<std::int32_t>(balance.homes_max));
  out.put(balance.tolerance);
  out.put(balance.capacity_max);
  out.put(static_cast<std::uint32_t>(balance.speeds.size()));
  out.put_all(std::span{balance.speeds});
  finish(bytes, kEpTraceMagic.size() + sizeof(kEpTraceVersion), false);
}

Expected<EpTraceHeader> decode_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kEpTracePrefixBytes + kHashBytes || !is_intact(bytes)) {
    return data_loss("its header is damaged (the hash does not match)");
  }
  TraceFields in{bytes.subspan(kEpTracePrefixBytes)};
  EpTraceHeader header;
  EpShape& shape = header.shape;
  shape.ranks = in.take<std::int32_t>();
  shape.experts = in.take<std::int32_t>();
  shape.top_k = in.take<std::int32_t>();
  shape.slots = in.take<std::int32_t>();
  shape.padding = in.take<std::int32_t>();
  shape.compact = in.take<std::int32_t>() != 0;
  shape.tokens_max = in.take<std::int64_t>();
  EpBalance& balance = header.balance;
  const auto mode = in.take<std::int32_t>();
  balance.homes_max = in.take<std::int32_t>();
  balance.tolerance = in.take<double>();
  balance.capacity_max = in.take<double>();
  const auto speeds = in.take<std::uint32_t>();
  if (mode < 0 || mode > static_cast<std::int32_t>(EpBalanceMode::kTolerant) ||
      speeds > kEpRanksMax) {
    return data_loss("its header contains balance mode ", mode);
  }
  balance.mode = static_cast<EpBalanceMode>(mode);
  balance.speeds.resize(speeds);
  in.take_all(std::span{balance.speeds});
  if (!in.ok() || in.left() != kHashBytes) {
    return data_loss("its header has another length than its fields");
  }
  if (const Status status = check(shape, balance); !status.ok()) {
    return data_loss("its header cannot be: ", status.message());
  }
  return header;
}

void encode_record(
    int layer,
    std::int64_t step,
    const EpPlan& plan,
    std::span<const std::int32_t> choices,
    std::vector<std::byte>& bytes) {
  TraceBytes out{bytes};
  out.put(kEpTraceRecord);
  out.put(std::uint32_t{0});
  out.put(std::uint32_t{0});
  out.put(static_cast<std::int32_t>(layer));
  out.put(static_cast<std::int32_t>(plan.rank));
  out.put(step);
  out.put(plan.tokens);
  out.put(plan.hash);
  visit_statistics(plan.statistics, [&out](const auto& field) { out.put(field); });
  out.put_all(std::span{plan.counts});
  if (plan.shape.experts <= kShortExperts) {
    for (const std::int32_t choice : choices) {
      out.put(static_cast<std::uint16_t>(choice));
    }
  } else {
    out.put_all(choices);
  }
  finish(bytes, sizeof(kEpTraceRecord), true);
}

bool decode_record(
    const EpTraceHeader& header,
    std::span<const std::byte> bytes,
    EpTraceRecord& record,
    std::string& why) {
  if (bytes.size() < kEpTraceRecordPrefixBytes + kHashBytes || !is_intact(bytes)) {
    why = "its hash does not match";
    return false;
  }
  const EpShape& shape = header.shape;
  TraceFields in{bytes.subspan(kEpTraceRecordPrefixBytes)};
  record.layer = in.take<std::int32_t>();
  record.rank = in.take<std::int32_t>();
  record.step = in.take<std::int64_t>();
  record.tokens = in.take<std::int64_t>();
  record.plan_hash = in.take<std::uint64_t>();
  visit_statistics(record.statistics, [&in](auto& field) {
    field = in.take<std::remove_reference_t<decltype(field)>>();
  });
  const std::size_t counts = size(shape.ranks) * size(shape.experts);
  // Before the allocation: the shape of a small file may ask for 512 MiB.
  const bool has_counts = in.left() >= counts * sizeof(std::int32_t);
  record.counts.resize(has_counts ? counts : 0);
  in.take_all(std::span{record.counts});
  const bool fits = has_counts && in.ok() && in.left() >= kHashBytes && record.rank >= 0 &&
                    record.rank < shape.ranks && record.tokens >= 0 &&
                    record.tokens <= shape.tokens_max;
  const std::size_t width = shape.experts <= kShortExperts ? 2 : 4;
  const std::size_t count = fits ? size(record.tokens) * size(shape.top_k) : 0;
  const std::size_t left = fits ? in.left() - kHashBytes : 0;
  if (!fits || (left != 0 && left != count * width)) {
    why = "its fields are not those of the file's shape";
    return false;
  }
  record.choices.resize(left / width);
  if (width == 4) {
    in.take_all(std::span{record.choices});
    return true;
  }
  for (std::int32_t& choice : record.choices) {
    choice = in.take<std::uint16_t>();
  }
  return true;
}

std::int64_t record_bytes_max(const EpTraceHeader& header) {
  const EpShape& shape = header.shape;
  return 256 + std::int64_t{4} * shape.ranks * shape.experts +
         std::int64_t{4} * shape.tokens_max * shape.top_k;
}

}  // namespace muster::parallel
