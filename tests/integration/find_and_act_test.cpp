// SPDX-License-Identifier: Apache-2.0
// What the collector finds in a real run and what its policy makes of it, with two ranks of moe_lm:
// attention logits that grow, and a loss that jumps.
#include "tests/integration/support/job.h"
#include "tests/support/eventually.h"

#include <muster/common/file.h>
#include <muster/store/query.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace muster::test {
namespace {

constexpr auto kPatience = std::chrono::seconds{60};
constexpr int kRanks = 2;

// One collector with a policy, and the jobs that it watches.
class Watched {
 public:
  Watched(const std::string& folder, const std::string& policy)
      : folder_(folder), collector_(database(), 0, write(folder + "/policy.yaml", policy)) {}

  [[nodiscard]] std::string database() const { return folder_ + "/muster.db"; }

  // Every rank holds all experts, so that the parameters of all ranks must be equal.
  [[nodiscard]] JobOptions job(const std::string& name, std::vector<std::string> trainer) const {
    JobOptions options;
    options.folder = folder_ + "/" + name;
    options.name = name;
    options.ranks = kRanks;
    options.steps = 100'000;  // The stop ends it, however late a command comes.
    options.checkpoint_interval = 0;
    options.collector = collector_.address();
    options.trainer = {"--schedule", "constant", "--ep-size", "1"};
    options.trainer.insert(options.trainer.end(), trainer.begin(), trainer.end());
    return options;
  }

  // Runs the job until `done` returns true, and stops it.
  template <typename Done>
  void run_until(const JobOptions& options, Done done) const {
    const auto running = launch(options);
    ASSERT_TRUE(eventually(done, Deadline::after(kPatience))) << running->output();
    Process stop(
        {muster_program(),
         "send",
         "--collector",
         collector_.address(),
         "--run",
         options.name,
         "stop"});
    ASSERT_EQ(stop.wait(Deadline::after(kPatience)), 0) << stop.output();
    ASSERT_EQ(running->wait(Deadline::after(kPatience)), 93) << running->output();
    ASSERT_TRUE(eventually([&] { return events(options.name, "run_ended").size() >= 2; }));
  }

  [[nodiscard]] std::unique_ptr<store::Query> query() const {
    auto opened = store::Query::open(database());
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    return std::move(opened).value();
  }

  [[nodiscard]] std::int64_t last_step(const std::string& run) const {
    return query()->run(run).value_or({}).last_step;
  }

  [[nodiscard]] std::vector<Event> events(const std::string& run, const std::string& kind) const {
    std::vector<Event> found;
    for (const store::StoredEvent& one : query()->events(run, 0, 10'000).value_or({})) {
      if (one.event.kind == kind) {
        found.push_back(one.event);
      }
    }
    return found;
  }

  // The command of `issuer` once both ranks have applied it.
  [[nodiscard]] std::optional<store::CommandStatus> applied(
      const std::string& run, const std::string& issuer) const {
    for (const store::CommandStatus& one : query()->commands(run).value_or({})) {
      if (one.command.issuer == issuer && one.ranks_applied == kRanks) {
        return one;
      }
    }
    return std::nullopt;
  }

  // The metric by step, the largest of all its layers and indices.
  [[nodiscard]] std::map<std::int64_t, float> values(
      const std::string& run, const std::string& metric) const {
    std::map<std::int64_t, float> found;
    const auto open = query();
    for (const store::SeriesInfo& one : open->series(run).value_or({})) {
      if (one.name != metric || one.rank != -1 || !one.group.empty()) {
        continue;
      }
      const auto range = open->range(run, one.series_id, 1, 0, -1, 1 << 16);
      EXPECT_TRUE(range.ok()) << range.status().to_string();
      for (const auto& bucket : range.ok() ? range->buckets : std::vector<store::Bucket>{}) {
        const auto [at, is_new] = found.emplace(bucket.step_first, bucket.last);
        at->second = std::max(at->second, bucket.last);
      }
    }
    return found;
  }

 private:
  static std::string write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
    return path;
  }

  std::string folder_;
  CollectorProcess collector_;
};

void expect_equal_ranks(const JobOptions& options) {
  const auto first = read_file(options.folder + "/params.rank-0");
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_TRUE(*first == read_file(options.folder + "/params.rank-1").value_or(""));
}

// A rate at which Muon without weight decay lets the logits grow.
const std::vector<std::string> kGrowing{"--lr", "0.03", "--weight-decay", "0"};
constexpr float kThreshold = 40;

std::string policy_of_logits(const std::string& action) {
  return "version: 1\nmax_logit_threshold: 40\nrules:\n  - name: clip_logits\n"
         "    finding: max_logit\n    actions: [" +
         action + "]\n    cooldown_steps: 100000\n";
}

TEST(FindAndAct, LogitsThatGrowAreFoundAndClippedByAllRanksAtOneStepAndStayBelowTheThreshold) {
  const ScratchFolder folder;
  const ScratchFolder reference_folder;
  const Watched watched(folder.path().string(), policy_of_logits("arm_qk_clip: {tau: 25}"));
  const Watched reference(reference_folder.path().string(), policy_of_logits("record"));

  const JobOptions clipped = watched.job("clipped", kGrowing);
  std::optional<store::CommandStatus> clip;
  watched.run_until(clipped, [&] {
    return (clip = watched.applied("clipped", "policy:clip_logits")).has_value() &&
           watched.last_step("clipped") > clip->applied_step + 150;
  });
  ASSERT_TRUE(clip.has_value());
  EXPECT_EQ(clip->command.kind, CommandKind::kSetQkClipThreshold);
  EXPECT_EQ(clip->command.argument, 25);
  expect_equal_ranks(clipped);
  const auto held = watched.values("clipped", "train_attn_logit_max");
  const std::int64_t last = held.rbegin()->first;

  reference.run_until(
      reference.job("growing", kGrowing), [&] { return reference.last_step("growing") >= last; });
  const auto grown = reference.values("growing", "train_attn_logit_max");

  // The finding is the first step above the threshold, and the ranks answer after it.
  const auto findings = watched.events("clipped", "finding");
  ASSERT_FALSE(findings.empty());
  const auto above = std::find_if(
      held.begin(), held.end(), [](const auto& one) { return one.second > kThreshold; });
  ASSERT_NE(above, held.end());
  EXPECT_EQ(findings.front().step, above->first);
  EXPECT_GT(clip->applied_step, above->first);
  for (const auto& [step, value] : held) {
    if (step <= clip->applied_step) {
      EXPECT_EQ(value, grown.at(step)) << "step " << step;  // The same run until then.
    } else {
      EXPECT_LE(value, kThreshold) << "step " << step;
    }
  }
  EXPECT_GT(grown.at(last), 2 * kThreshold);
}

// English with a stretch of bytes that it does not use elsewhere. Few batches hold any of it.
void write_text_with_noise(const std::string& folder) {
  const std::string path = write_sample_text(folder);
  std::string text = read_file(path).value_or("");
  std::mt19937 random(1);
  std::string noise;
  for (int i = 0; i < 96; ++i) {
    noise += static_cast<char>(128 + random() % 128);
  }
  std::ofstream(path) << text.insert(text.size() / 2, noise);
}

TEST(FindAndAct, ALossThatJumpsIsFoundAndOneLaterStepIsSkippedByAllRanks) {
  const ScratchFolder folder;
  const Watched watched(
      folder.path().string(),
      "version: 1\nrules:\n  - name: skip_after_spike\n    finding: spike\n    subject: loss\n"
      "    actions: [skip_step]\n    budget: 1\n");
  const JobOptions job = watched.job("jumping", {"--lr", "0.01"});
  std::filesystem::create_directories(job.folder);
  write_text_with_noise(job.folder);
  std::optional<store::CommandStatus> skip;
  watched.run_until(job, [&] {
    return (skip = watched.applied("jumping", "policy:skip_after_spike")).has_value() &&
           watched.last_step("jumping") > skip->applied_step + 20;
  });
  ASSERT_TRUE(skip.has_value());
  EXPECT_EQ(skip->command.kind, CommandKind::kSkipStep);
  expect_equal_ranks(job);

  const auto findings = watched.events("jumping", "finding");
  ASSERT_FALSE(findings.empty());
  const std::int64_t found_at = findings.front().step;
  const auto loss = watched.values("jumping", "train_loss_nats");
  EXPECT_GT(loss.at(found_at), 2 * loss.at(found_at - 1));
  EXPECT_GT(skip->applied_step, found_at);

  std::set<std::int64_t> skipped;
  for (const auto& [step, value] : watched.values("jumping", "train_step_skipped")) {
    if (value != 0) {
      skipped.insert(step);
    }
  }
  EXPECT_EQ(skipped, (std::set{skip->applied_step}));
}

}  // namespace
}  // namespace muster::test
