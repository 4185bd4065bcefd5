// SPDX-License-Identifier: Apache-2.0
// muster status: what a collector's database knows, without a collector.
#include "cli/commands/subcommands.h"
#include "cli/text/table.h"
#include "cli/text/units.h"

#include <muster/common/clock.h>
#include <muster/common/text.h>
#include <muster/store/query.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>

namespace muster::cli {

namespace {

struct StatusFlags {
  std::string database;
  std::string run_id;
  std::uint32_t event_count{20};
};

// Events come a page at a time; the last ones are wanted.
constexpr std::int32_t kEventPage = 1000;

std::int64_t now_unix_ns() {
  return unix_ns(SystemClock{}.wall_now());
}

// Nothing has been stored yet.
std::string format_step(std::int64_t step) {
  return step < 0 ? "-" : std::to_string(step);
}

std::string format_loss(double loss) {
  if (std::isnan(loss)) {
    return "-";
  }
  return fixed(loss, 4);
}

void print_runs(const std::vector<store::RunInfo>& runs) {
  Table table{
      {{"RUN"},
       {"RANKS", Align::kRight},
       {"GENERATION", Align::kRight},
       {"STEP", Align::kRight},
       {"LOSS", Align::kRight},
       {"SAMPLES", Align::kRight},
       {"DROPPED", Align::kRight},
       {"STARTED", Align::kRight},
       {"LAST SEEN", Align::kRight}}};
  const std::int64_t now = now_unix_ns();
  for (const store::RunInfo& run : runs) {
    table.add(
        {run.run_id,
         std::to_string(run.world_size),
         std::to_string(run.generation),
         format_step(run.last_step),
         format_loss(run.last_loss),
         std::to_string(run.sample_count),
         std::to_string(run.dropped_count),
         format_age_of(run.started_unix_ns, now) + " ago",
         format_age_of(run.last_seen_unix_ns, now) + " ago"});
  }
  std::fputs(table.to_string().c_str(), stdout);
}

void print_ranks(const std::vector<store::RankStatus>& ranks) {
  Table table{
      {{"RANK", Align::kRight},
       {"GENERATION", Align::kRight},
       {"STEP", Align::kRight},
       {"STATE"},
       {"DROPPED", Align::kRight},
       {"LAST SEEN", Align::kRight}}};
  const std::int64_t now = now_unix_ns();
  for (const store::RankStatus& rank : ranks) {
    table.add(
        {std::to_string(rank.rank),
         std::to_string(rank.generation),
         format_step(rank.step),
         rank.connected ? "connected" : "gone",
         std::to_string(rank.dropped_count),
         format_age_of(rank.last_seen_unix_ns, now) + " ago"});
  }
  std::printf("\n%s", table.to_string().c_str());
}

Expected<std::vector<store::StoredEvent>> last_events(
    store::Query& query, const std::string& run_id, std::size_t count) {
  std::vector<store::StoredEvent> last;
  std::int64_t after = 0;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(auto page, query.events(run_id, after, kEventPage));
    if (page.empty()) {
      return last;
    }
    after = page.back().event_id;
    last.insert(
        last.end(), std::make_move_iterator(page.begin()), std::make_move_iterator(page.end()));
    last.erase(
        last.begin(), last.end() - std::min(std::ssize(last), static_cast<std::ptrdiff_t>(count)));
  }
}

void print_events(const std::vector<store::StoredEvent>& events) {
  Table table{
      {{"AGE", Align::kRight},
       {"GENERATION", Align::kRight},
       {"STEP", Align::kRight},
       {"RANK", Align::kRight},
       {"EVENT"},
       {"REASON"}}};
  const std::int64_t now = now_unix_ns();
  for (const store::StoredEvent& stored : events) {
    const Event& event = stored.event;
    table.add(
        {format_age_of(event.wall_unix_ns, now),
         std::to_string(stored.generation),
         format_step(event.step),
         stored.rank < 0 ? "-" : std::to_string(stored.rank),
         event.kind,
         event.reason});
  }
  std::printf("\n%s", table.to_string().c_str());
}

Status show_run(store::Query& query, const StatusFlags& flags) {
  MUSTER_ASSIGN_OR_RETURN(const store::RunInfo run, query.run(flags.run_id));
  MUSTER_ASSIGN_OR_RETURN(const auto ranks, query.ranks(flags.run_id));
  MUSTER_ASSIGN_OR_RETURN(const auto events, last_events(query, flags.run_id, flags.event_count));
  print_runs({run});
  print_ranks(ranks);
  print_events(events);
  return {};
}

Status show(const StatusFlags& flags) {
  MUSTER_ASSIGN_OR_RETURN(const auto query, store::Query::open(flags.database));
  if (!flags.run_id.empty()) {
    return show_run(*query, flags);
  }
  MUSTER_ASSIGN_OR_RETURN(const auto runs, query->runs());
  print_runs(runs);
  return {};
}

}  // namespace

Action declare_status(CLI::App& command, const Tail& /*tail*/) {
  const auto flags = std::make_shared<StatusFlags>();
  command.footer(
      "Reads the database only; a running collector is not disturbed.\n\n"
      "Examples:\n"
      "  muster status --db muster.db\n"
      "  muster status --db muster.db --run moby --events 50");
  command.add_option("--db", flags->database, "The collector's database file")->required();
  command.add_option("--run", flags->run_id, "Ranks and last events of this run");
  command.add_option("--events", flags->event_count, "How many events to show")
      ->capture_default_str();
  return [flags]() -> int {
    const Status status = show(*flags);
    return status.ok() ? 0 : fail("status", status);
  };
}

}  // namespace muster::cli
