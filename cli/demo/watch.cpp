// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/watch.h"

#include <muster/common/telemetry.h>

#include <algorithm>
#include <cmath>

namespace muster::demo {

namespace {

constexpr std::int32_t kEveryStep = 1 << 20;  // buckets enough for one step each
constexpr std::int32_t kEventsMax = 100'000;

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Status Watch::open() {
  if (query_ == nullptr) {
    MUSTER_ASSIGN_OR_RETURN(query_, store::Query::open(database_));
  }
  return {};
}

std::int64_t Watch::series_id(const std::string& name, int rank, int layer) {
  const auto find = [&] {
    return std::find_if(series_.begin(), series_.end(), [&](const store::SeriesInfo& one) {
      return one.name == name && one.rank == rank && one.layer == layer && one.index < 0 &&
             one.group.empty();
    });
  };
  auto found = find();
  if (found == series_.end()) {
    series_ = query_->series(kRunId).value_or({});
    found = find();
  }
  return found == series_.end() ? -1 : found->series_id;
}

Expected<std::vector<store::Bucket>> Watch::values(
    const std::string& name, int rank, std::int64_t generation) {
  const std::int64_t id = series_id(name, rank, -1);
  if (id < 0) {
    return not_found(database_.string() + ": no series " + name);
  }
  MUSTER_ASSIGN_OR_RETURN(auto range, query_->range(kRunId, id, generation, 0, -1, kEveryStep));
  return std::move(range.buckets);
}

std::optional<double> Watch::value_at(
    const std::string& name, int rank, std::int64_t generation, std::int64_t step, int layer) {
  const std::int64_t id = series_id(name, rank, layer);
  if (id < 0) {
    return std::nullopt;
  }
  const auto range = query_->range(kRunId, id, generation, step, step + 1, 2);
  if (!range || range->buckets.empty() || range->buckets.front().count == 0) {
    return std::nullopt;
  }
  return static_cast<double>(range->buckets.front().last);
}

std::optional<Glimpse> Watch::look() {
  if (!open().ok()) {
    return std::nullopt;
  }
  const auto run = query_->run(kRunId);
  if (!run || run->last_step < 0) {
    return std::nullopt;
  }
  Glimpse glimpse;
  glimpse.generation = run->generation;
  glimpse.step = run->last_step;
  glimpse.loss = run->last_loss;
  glimpse.tokens_per_second =
      value_at("train_tokens_per_second", -1, run->generation, run->last_step).value_or(0);
  for (const store::RankStatus& rank : query_->ranks(kRunId).value_or({})) {
    glimpse.ranks_alive += rank.connected && rank.generation == run->generation ? 1 : 0;
  }
  for (const store::StoredEvent& one :
       query_->events(kRunId, last_event_id_, kEventsMax).value_or({})) {
    last_event_id_ = one.event_id;
    last_event_ = one.event.kind;
    if (one.event.step >= 0) {
      last_event_ += " at step " + std::to_string(one.event.step);
    }
  }
  glimpse.last_event = last_event_;
  return glimpse;
}

bool Watch::has_all_of(std::int64_t step, int ranks) {
  const auto run = open().ok() ? query_->run(kRunId) : not_found("closed");
  if (!run || run->last_step < step) {
    return false;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (!value_at("train_step_seconds", rank, run->generation, step)) {
      return false;
    }
  }
  return true;
}

Status Watch::collect(DemoFacts& facts) {
  MUSTER_RETURN_IF_ERROR(open());
  MUSTER_ASSIGN_OR_RETURN(const auto run, query_->run(kRunId));
  facts.ranks = run.world_size;
  facts.steps = run.last_step + 1;
  facts.samples_stored = run.sample_count;
  facts.frames_dropped = run.dropped_count;
  collect_attention(run.generation, facts);
  MUSTER_RETURN_IF_ERROR(collect_losses(facts));
  return collect_events(facts);
}

void Watch::collect_attention(std::int64_t generation, DemoFacts& facts) {
  const std::int64_t step = facts.steps - 1;
  for (int layer = 0;; ++layer) {
    const auto mode = value_at("train_attn_mode", -1, generation, step, layer);
    if (!mode) {
      return;
    }
    facts.attention.push_back(
        {layer,
         *mode != 0.0,
         value_at("train_attn_block_reach", -1, generation, step, layer).value_or(1.0)});
  }
}

Status Watch::collect_losses(DemoFacts& facts) {
  MUSTER_ASSIGN_OR_RETURN(const auto generations, query_->generations(kRunId));
  if (generations.empty()) {
    return not_found(database_.string() + ": the run has no samples");
  }
  MUSTER_ASSIGN_OR_RETURN(
      const auto first, values("train_loss_nats", -1, generations.front().generation));
  MUSTER_ASSIGN_OR_RETURN(
      const auto last, values("train_loss_nats", -1, generations.back().generation));
  facts.first_loss = first.empty() ? std::nan("") : static_cast<double>(first.front().last);
  double sum = 0;
  const std::size_t count = std::min<std::size_t>(10, last.size());
  for (std::size_t i = last.size() - count; i < last.size(); ++i) {
    sum += static_cast<double>(last[i].last);
  }
  facts.last_loss = count == 0 ? std::nan("") : sum / static_cast<double>(count);
  MUSTER_ASSIGN_OR_RETURN(
      const auto rates, values("train_tokens_per_second", -1, generations.back().generation));
  std::vector<double> plain;
  plain.reserve(rates.size());
  for (const store::Bucket& bucket : rates) {
    plain.push_back(static_cast<double>(bucket.last));
  }
  facts.tokens_per_second = median(std::move(plain));
  return {};
}

Status Watch::collect_events(DemoFacts& facts) {
  MUSTER_ASSIGN_OR_RETURN(const auto events, query_->events(kRunId, 0, kEventsMax));
  for (const store::StoredEvent& one : events) {
    if (one.event.kind == event_kind::kCheckpointCommitted) {
      ++facts.checkpoints_committed;
    }
    if (one.event.kind != event_kind::kStepSkipped) {
      continue;
    }
    SkippedStep skipped{one.event.step, one.generation, one.event.reason, 0};
    for (int rank = 0; rank < facts.ranks; ++rank) {
      const auto applied = value_at("train_update_applied", rank, one.generation, one.event.step);
      skipped.ranks += applied && *applied == 0.0 ? 1 : 0;
    }
    facts.skipped.push_back(std::move(skipped));
  }
  return {};
}

}  // namespace muster::demo
