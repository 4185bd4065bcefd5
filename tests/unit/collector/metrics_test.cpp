// SPDX-License-Identifier: Apache-2.0
#include "collector/src/metrics.h"

#include "tests/unit/collector/scripted_client.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace muster::collector {
namespace {

// The family of a well-formed sample line `name{label="value",...} number`, else "".
std::string family_of(const std::string& line) {
  constexpr const char* kNameLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:";
  std::size_t at = line.find_first_not_of(kNameLetters);
  if (at == std::string::npos || at == 0) {
    return "";
  }
  const std::string name = line.substr(0, at);
  if (line[at] == '{') {
    do {
      const std::size_t equals = line.find_first_not_of(kNameLetters, at + 1);
      if (equals == std::string::npos || equals == at + 1 || line.substr(equals, 2) != "=\"") {
        return "";
      }
      const std::size_t quote = line.find('"', equals + 2);
      at = quote == std::string::npos ? quote : quote + 1;
    } while (at < line.size() && line[at] == ',');
    if (at >= line.size() || line[at] != '}') {
      return "";
    }
    ++at;
  }
  if (at + 1 >= line.size() || line[at] != ' ') {
    return "";
  }
  char* end = nullptr;
  static_cast<void>(std::strtod(line.c_str() + at + 1, &end));
  return *end == '\0' ? name : "";
}

class MetricsPage : public ::testing::Test {
 protected:
  void report(std::int32_t rank, std::int64_t step, const StepValues& values) {
    const std::vector<SampleFrame> frames{job_frame(step, values)};
    metrics_.report_frames(agent_hello(rank).identity, view_, frames);
  }

  bool has(const std::string& line) const {
    return ("\n" + metrics_.text()).find("\n" + line + "\n") != std::string::npos;
  }

  Metrics metrics_;
  std::shared_ptr<const SchemaView> view_{std::make_shared<const SchemaView>(job_schema())};
};

TEST_F(MetricsPage, ShowsTheNewestValuesOfTheJobOnce) {
  report(0, 4, {.loss = 2.5F});
  report(0, 5, {.loss = 2.25F});
  report(1, 5, {.loss = 99.0F});
  EXPECT_TRUE(has("train_loss_nats{run=\"run-1\"} 2.25")) << metrics_.text();
  EXPECT_EQ(metrics_.text().find("99"), std::string::npos);
}

TEST_F(MetricsPage, ShowsRankColumnsByRankAndPhase) {
  report(2, 5, {});
  EXPECT_TRUE(has("train_phase_seconds{run=\"run-1\",rank=\"2\",phase=\"forward\"} 0.25"));
  EXPECT_TRUE(has("train_step{run=\"run-1\",rank=\"2\"} 5"));
}

TEST_F(MetricsPage, ShowsTheLargestHeadOfALayerAndNoHeadLabel) {
  report(0, 5, {.logit = 44.0F});
  EXPECT_TRUE(has("train_attn_logit_max{run=\"run-1\",layer=\"0\"} 44"));
  EXPECT_EQ(metrics_.text().find("head=\""), std::string::npos);
}

TEST_F(MetricsPage, SumsDeltasIntoCounters) {
  report(0, 4, {.nonfinite_count = 2.0F, .skipped = 1.0F});
  report(0, 5, {.nonfinite_count = 3.0F});
  EXPECT_TRUE(has("train_nonfinite_total{run=\"run-1\"} 5")) << metrics_.text();
  EXPECT_TRUE(has("train_step_skipped_total{run=\"run-1\"} 1"));
  EXPECT_TRUE(has("# TYPE train_nonfinite_total counter"));
}

TEST_F(MetricsPage, IgnoresTheLateWordOfAnOlderGeneration) {
  const std::vector<SampleFrame> fresh{job_frame(5, {.loss = 1.0F})};
  const std::vector<SampleFrame> late{job_frame(9, {.loss = 7.0F})};
  metrics_.report_frames(agent_hello(0, 2).identity, view_, fresh);
  metrics_.report_frames(agent_hello(0, 1).identity, view_, late);
  EXPECT_TRUE(has("train_loss_nats{run=\"run-1\"} 1"));
}

TEST_F(MetricsPage, KeepsABoundedNumberOfRuns) {
  for (int i = 0; i < 200; ++i) {
    Identity identity = agent_hello(0).identity;
    identity.run_id = "run-" + std::to_string(1000 + i);
    metrics_.report_frames(identity, view_, std::vector<SampleFrame>{job_frame(1, {})});
  }
  EXPECT_EQ(metrics_.text().find("run-1000\""), std::string::npos);
  EXPECT_NE(metrics_.text().find("run-1199\""), std::string::npos);
}

// Every line is a comment of a family not seen before, or a sample of the family just opened.
TEST_F(MetricsPage, ParsesAsExpositionFormat) {
  report(0, 4, {});
  report(1, 4, {});
  metrics_.report_finding("spike");
  metrics_.report_connected({{"run-1", 2}}, 3);
  metrics_.report_dropped(agent_hello(1).identity, 7);
  std::set<std::string> seen;
  std::set<std::string> samples;
  std::string family;
  std::istringstream page{metrics_.text()};
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("# HELP ", 0) == 0) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(seen.insert(family).second) << family;
    } else if (line.rfind("# TYPE ", 0) == 0) {
      EXPECT_EQ(line.substr(7, line.find(' ', 7) - 7), family);
    } else {
      EXPECT_EQ(family_of(line), family) << line;
      EXPECT_TRUE(samples.insert(line.substr(0, line.rfind(' '))).second) << line;
    }
  }
  EXPECT_GT(samples.size(), 20U);
}

}  // namespace
}  // namespace muster::collector
