// SPDX-License-Identifier: Apache-2.0
// Server-sent events of one run for one client: the changes since the last call.
//
// The cursor is the feed's own, so a slow client gets one larger update instead of a queue.
// Not thread-safe: worker thread only.
#pragma once

#include "dashboard/server/json_views.h"
#include "dashboard/server/query_source.h"

#include <muster/common/clock.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace muster::dashboard {

class LiveFeed {
 public:
  // Sends events with id > `after_event_id`. `queries` and `clock` must outlive the feed.
  LiveFeed(
      QuerySource& queries, const Clock& clock, std::string run_id, std::int64_t after_event_id);

  // The next piece of the stream: an update, a heartbeat comment after 5 s of silence, or "".
  [[nodiscard]] std::string next();

 private:
  [[nodiscard]] Expected<bool> collect(LiveUpdate& update);
  [[nodiscard]] Status collect_events(store::Query& query, LiveUpdate& update);
  [[nodiscard]] Status collect_ranks(store::Query& query, LiveUpdate& update);
  [[nodiscard]] Status collect_commands(store::Query& query, LiveUpdate& update);
  [[nodiscard]] std::string heartbeat();

  QuerySource* queries_;
  const Clock* clock_;
  std::string run_id_;
  std::int64_t event_id_;
  std::optional<std::int64_t> version_;
  bool more_events_{false};
  std::map<std::int32_t, std::string> ranks_sent_;  // rank -> what the client knows of it
  std::string commands_sent_;
  MonotonicTime sent_at_;
};

}  // namespace muster::dashboard
