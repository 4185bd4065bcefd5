// SPDX-License-Identifier: Apache-2.0
// A dashboard over a store of synthetic runs, steered on stdin. Prints its address first.
//
//   advance N                   adds N steps to "night-shift"
//   event KIND STEP REASON...   adds an event there
//   report STATE                every rank reports the newest command as armed or applied
//   lose RANK                   closes a rank's session
//   down, up                    stops the dashboard, starts it again at the same address
// Each answers "ok". A command from a browser prints "command RUN KIND ARGUMENT REASON". Ends with
// its input.
#include "tests/browser/synthetic_run.h"

#include <muster/common/clock.h>
#include <muster/common/random.h>
#include <muster/dashboard/server.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace muster::browser {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kNightSteps = 920;  // what the second launch has reached at the start

Event make_event(std::string kind, Severity severity, std::int64_t step, std::string reason) {
  Event event;
  event.kind = std::move(kind);
  event.severity = severity;
  event.step = step;
  event.reason = std::move(reason);
  event.wall_unix_ns = unix_ns(SystemClock{}.wall_now());
  return event;
}

void require(const Status& status) {
  if (!status.ok()) {
    std::cerr << "fixture: " << status.to_string() << "\n";
    std::exit(1);
  }
}

// The mutex guards the store, which the thread of stdin and those of the dashboard use.
class Fixture {
 public:
  Fixture(store::Store& store, std::filesystem::path database, std::string web_root)
      : store_(&store),
        night_(store, {"night-shift", 4, 4, 4, 8, 612, 420, 300}),
        long_(store, {"long-haul", 1, 0, 0, 0, 54'321, 70'000}),
        waiting_(store, {"not-yet-started", 2, 0, 0, 0}),
        database_(std::move(database)),
        web_root_(std::move(web_root)) {}

  void fill() {
    require(waiting_.launch(0));
    require(long_.launch(0));
    require(long_.advance(100'000, now() - 600 * kSecondNs));
    fill_night();
  }

  std::string serve() {
    dashboard::ServerOptions options;
    options.database = database_;
    options.listen = address_;
    options.web_root = web_root_;
    options.metrics_text = [] { return std::string("# TYPE train_step gauge\ntrain_step 1\n"); };
    options.issue_command =
        [this](
            const std::string& run, CommandKind kind, double argument, const std::string& reason) {
          return issue(run, kind, argument, reason);
        };
    auto started = dashboard::Server::start(options);
    require(started.status());
    server_ = std::move(started).value();
    address_ = server_->url().substr(std::string_view{"http://"}.size());
    return server_->url();
  }

  void obey(const std::string& line) {
    std::istringstream words{line};
    std::string verb;
    words >> verb;
    if (verb == "down") {
      stop();
    } else if (verb == "up") {
      serve();
    } else {
      const std::lock_guard lock{mutex_};
      change(verb, words);
    }
    std::cout << "ok" << std::endl;
  }

  void stop() { server_->stop(); }

 private:
  static std::int64_t now() { return unix_ns(SystemClock{}.wall_now()); }

  void change(const std::string& verb, std::istringstream& words) {
    if (verb == "advance") {
      std::int64_t count = 0;
      words >> count;
      require(night_.advance(count, now()));
    } else if (verb == "event") {
      std::string kind;
      std::int64_t step = 0;
      std::string reason;
      words >> kind >> step;
      std::getline(words >> std::ws, reason);
      require(night_.add_event(make_event(kind, Severity::kWarning, step, reason), -1));
    } else if (verb == "report") {
      std::string state;
      words >> state;
      report(state == "applied" ? CommandState::kApplied : CommandState::kArmed);
    } else if (verb == "lose") {
      std::int32_t rank = 0;
      words >> rank;
      night_.lose_rank(rank);
      require(store_->commit());
    }
  }

  Expected<CommandId> issue(
      const std::string& run, CommandKind kind, double argument, const std::string& reason) {
    const std::lock_guard lock{mutex_};
    Command command;
    command.kind = kind;
    command.argument = argument;
    command.reason = reason;
    command.issuer = "operator";
    MUSTER_ASSIGN_OR_RETURN(command, store_->add_command(run, command));
    MUSTER_RETURN_IF_ERROR(store_->commit());
    newest_command_ = command.id;
    std::cout << "command " << run << " " << to_string(kind) << " " << argument << " " << reason
              << std::endl;
    return command.id;
  }

  void report(CommandState state) {
    CommandReport report;
    report.id = newest_command_;
    report.state = state;
    report.step = night_.next_step();
    for (std::int32_t rank = 0; rank < night_.shape().ranks; ++rank) {
      require(night_.report(rank, report));
    }
  }

  void happen(
      const char* kind,
      Severity severity,
      std::int64_t step,
      std::string reason,
      std::map<std::string, double> inputs = {},
      std::int32_t rank = -1) {
    Event event = make_event(kind, severity, step, std::move(reason));
    event.wall_unix_ns -= (kNightSteps - step) * kSecondNs / 5;
    event.inputs = std::move(inputs);
    require(night_.add_event(std::move(event), rank));
  }

  // All layers but the last change from one mode to another.
  void switch_attention(std::int64_t step, const std::string& from, const std::string& to) {
    for (std::int32_t layer = 0; layer + 1 < night_.shape().layers; ++layer) {
      const std::string name = std::to_string(layer);
      Event event = make_event(
          event_kind::kAttentionModeChanged,
          Severity::kInfo,
          step,
          "attention layer " + name + " goes from " + from + " to " + to + " by the schedule");
      event.wall_unix_ns -= (kNightSteps - step) * kSecondNs / 5;
      event.labels = {{"layer", name}, {"from", from}, {"to", to}};
      require(night_.add_event(std::move(event), 0));
    }
  }

  // Two launches: the first dies at step 760, the second resumes from the checkpoint at 700.
  void fill_night() {
    require(night_.launch(0));
    happen(event_kind::kRunStarted, Severity::kInfo, 0, "4 ranks joined");
    require(night_.advance(421, now() - 160 * kSecondNs));
    happen(
        event_kind::kStepSkipped,
        Severity::kWarning,
        420,
        "gradients of rank 1 held 3 values that are not finite; no rank applied the step",
        {{"nonfinite_count", 3}, {"grad_norm", std::nan("")}},
        0);
    switch_attention(300, "full", "moba:512,3");
    require(night_.advance(80, now() - 140 * kSecondNs));
    happen(
        event_kind::kCheckpointCommitted,
        Severity::kInfo,
        500,
        "saved by schedule",
        {{"bytes", 48'200'000}},
        0);
    require(night_.advance(150, now() - 100 * kSecondNs));
    switch_attention(600, "moba:512,3", "moba:128,8");
    happen(
        event_kind::kFinding,
        Severity::kWarning,
        612,
        "grad norm 12.9 is 24 robust deviations over its median 0.43",
        {{"value", 12.9}, {"z", 24.1}, {"threshold", 6}, {"window", 128}});
    happen(
        event_kind::kAction,
        Severity::kInfo,
        613,
        "checkpoint now and pin it (rule grad_norm_spike)");
    happen(
        event_kind::kCheckpointCommitted,
        Severity::kInfo,
        616,
        "asked for by policy",
        {{"bytes", 48'200'000}},
        0);
    require(night_.advance(110, now() - 60 * kSecondNs));
    happen(
        event_kind::kCheckpointCommitted,
        Severity::kInfo,
        700,
        "saved by schedule",
        {{"bytes", 48'200'000}},
        0);
    happen(
        event_kind::kRankLost, Severity::kError, 760, "rank 3 ended by signal 9 (killed)", {}, 3);
    happen(
        event_kind::kRestart,
        Severity::kWarning,
        760,
        "generation 2 starts from step-700.gen-1",
        {{"budget_left", 2}});
    fill_second_launch();
  }

  void fill_second_launch() {
    require(night_.launch(700));
    happen(event_kind::kRunResumed, Severity::kInfo, 700, "4 ranks restored step 700");
    require(night_.advance(220, now()));
    happen(
        event_kind::kQkClip,
        Severity::kInfo,
        850,
        "1 head over the threshold 100 was scaled back",
        {{"heads", 1}, {"gamma_min", 0.96}},
        0);
    happen(
        event_kind::kCheckpointCommitted,
        Severity::kInfo,
        900,
        "saved by schedule",
        {{"bytes", 48'200'000}},
        0);
  }

  std::mutex mutex_;
  store::Store* store_;
  SyntheticRun night_;
  SyntheticRun long_;
  SyntheticRun waiting_;
  std::filesystem::path database_;
  std::string web_root_;
  std::string address_{"127.0.0.1:0"};
  CommandId newest_command_;
  std::unique_ptr<dashboard::Server> server_;
};

int run(const std::string& web_root) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("muster-dashboard-" + random_hex_id());
  std::filesystem::create_directories(folder);
  const SystemClock clock;
  {
    auto store = store::Store::open(folder / "fixture.db", clock);
    require(store.status());
    Fixture fixture{*store.value(), folder / "fixture.db", web_root};
    fixture.fill();
    std::cout << "url " << fixture.serve() << std::endl;
    std::string line;
    while (std::getline(std::cin, line)) {
      fixture.obey(line);
    }
    fixture.stop();
  }
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace muster::browser

// Optional argument: a folder with the built page, instead of the embedded one.
int main(int argc, char** argv) {
  return muster::browser::run(argc > 1 ? argv[1] : "");
}
