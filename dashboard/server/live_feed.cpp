// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/live_feed.h"

#include <utility>

namespace muster::dashboard {

namespace {

constexpr std::int32_t kEventsPerUpdate = 500;
constexpr std::chrono::seconds kHeartbeat{5};

}  // namespace

LiveFeed::LiveFeed(
    QuerySource& queries, const Clock& clock, std::string run_id, std::int64_t after_event_id)
    : queries_(&queries),
      clock_(&clock),
      run_id_(std::move(run_id)),
      event_id_(after_event_id),
      sent_at_(clock.now()) {}

std::string LiveFeed::next() {
  LiveUpdate update;
  update.now_unix_ns = unix_ns(clock_->wall_now());
  const Expected<bool> changed = collect(update);
  if (!changed.ok()) {
    version_.reset();  // Nothing was sent: the same state is collected again next time.
    return heartbeat();
  }
  if (!*changed) {
    return heartbeat();
  }
  sent_at_ = clock_->now();
  return "event: update\nid: " + std::to_string(event_id_) + "\ndata: " + live_json(update) +
         "\n\n";
}

std::string LiveFeed::heartbeat() {
  if (clock_->now() - sent_at_ < kHeartbeat) {
    return {};
  }
  sent_at_ = clock_->now();
  return ": heartbeat\n\n";
}

// Returns false if the store has not changed since the last update.
Expected<bool> LiveFeed::collect(LiveUpdate& update) {
  MUSTER_ASSIGN_OR_RETURN(store::Query * query, queries_->get());
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t version, query->data_version());
  if (version_ == version && !more_events_) {
    return false;
  }
  MUSTER_ASSIGN_OR_RETURN(update.run, query->run(run_id_));
  MUSTER_RETURN_IF_ERROR(collect_ranks(*query, update));
  MUSTER_RETURN_IF_ERROR(collect_commands(*query, update));
  MUSTER_RETURN_IF_ERROR(collect_events(*query, update));
  version_ = version;
  return true;
}

Status LiveFeed::collect_events(store::Query& query, LiveUpdate& update) {
  MUSTER_ASSIGN_OR_RETURN(update.events, query.events(run_id_, event_id_, kEventsPerUpdate));
  more_events_ = update.events.size() == static_cast<std::size_t>(kEventsPerUpdate);
  if (!update.events.empty()) {
    event_id_ = update.events.back().event_id;
  }
  return {};
}

Status LiveFeed::collect_ranks(store::Query& query, LiveUpdate& update) {
  MUSTER_ASSIGN_OR_RETURN(std::vector<store::RankStatus> ranks, query.ranks(run_id_));
  for (store::RankStatus& rank : ranks) {
    std::string known = ranks_json({rank});
    std::string& sent = ranks_sent_[rank.rank];
    if (sent != known) {
      sent = std::move(known);
      update.ranks.push_back(std::move(rank));
    }
  }
  return {};
}

Status LiveFeed::collect_commands(store::Query& query, LiveUpdate& update) {
  MUSTER_ASSIGN_OR_RETURN(std::vector<store::CommandStatus> commands, query.commands(run_id_));
  std::string known = commands_json(commands);
  if (known != commands_sent_) {
    commands_sent_ = std::move(known);
    update.commands = std::move(commands);
  }
  return {};
}

}  // namespace muster::dashboard
