// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/acceptance.h"

#include <muster/common/text.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace muster::demo {

namespace {

// 1234567 -> "1 234 567"
std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), 1, ' ');
  }
  return text;
}

void row(std::string& table, const std::string& name, const std::string& value) {
  std::string cell = "  " + name;
  cell.resize(std::max<std::size_t>(cell.size() + 2, 24), ' ');
  table += cell + value + "\n";
}

// "layers 0-2 in blocks, layer 3 full"
std::string attention_text(const std::vector<AttentionFact>& layers) {
  std::string text;
  for (std::size_t first = 0; first < layers.size();) {
    std::size_t end = first + 1;
    while (end < layers.size() && layers[end].in_blocks == layers[first].in_blocks) {
      ++end;
    }
    text += text.empty() ? "" : ", ";
    text += end - first == 1 ? "layer " : "layers ";
    text += std::to_string(layers[first].layer);
    text += end - first == 1 ? "" : "-" + std::to_string(layers[end - 1].layer);
    text += layers[first].in_blocks ? " in blocks" : " full";
    first = end;
  }
  return text;
}

double smallest_reach(const std::vector<AttentionFact>& layers) {
  double smallest = 1;
  for (const AttentionFact& one : layers) {
    smallest = one.in_blocks ? std::min(smallest, one.reach) : smallest;
  }
  return smallest;
}

bool any_in_blocks(const std::vector<AttentionFact>& layers) {
  return std::any_of(layers.begin(), layers.end(), [](const auto& one) { return one.in_blocks; });
}

}  // namespace

std::vector<std::string> broken_promises(const DemoOptions& options, const DemoFacts& facts) {
  std::vector<std::string> broken;
  if (facts.launcher_exit_code != 0) {
    broken.push_back(
        "the job ended with exit code " + std::to_string(facts.launcher_exit_code) + ": " +
        facts.launcher_reason);
  }
  if (!(facts.last_loss < options.loss_bound)) {  // a NaN fails too
    broken.push_back(
        "the loss ended at " + fixed(facts.last_loss, 3) + " nats per byte, not below the bound " +
        fixed(options.loss_bound, 2) + " (uniform guessing: " + fixed(kUniformLoss, 2) + ")");
  }
  const auto skip = std::find_if(facts.skipped.begin(), facts.skipped.end(), [&](const auto& one) {
    return one.step == options.nan_step;
  });
  if (skip == facts.skipped.end()) {
    broken.push_back("the NaN at step " + std::to_string(options.nan_step) + " was not skipped");
  } else if (skip->ranks != facts.ranks) {
    broken.push_back(
        "the NaN step was left out on " + std::to_string(skip->ranks) + " of " +
        std::to_string(facts.ranks) + " ranks");
  }
  if (options.attention.starts_with("moba:") && !any_in_blocks(facts.attention)) {
    broken.push_back("no layer ran block attention, though it was asked for");
  }
  const bool resumed =
      std::any_of(facts.restarts.begin(), facts.restarts.end(), [](const auto& one) {
        return !one.resumed_from.empty() && one.seconds > 0;
      });
  if (!resumed) {
    broken.push_back("the killed job did not resume from a committed checkpoint");
  }
  return broken;
}

std::string summary_table(const DemoOptions& options, const DemoFacts& facts) {
  std::string table = "\n";
  row(table,
      "steps",
      grouped(facts.steps) + " on " + std::to_string(facts.ranks) + " ranks in " +
          fixed(facts.seconds, 0) + " s");
  row(table,
      "loss",
      fixed(facts.first_loss, 3) + " -> " + fixed(facts.last_loss, 3) + " nats per byte (uniform " +
          fixed(kUniformLoss, 2) + ", bound " + fixed(options.loss_bound, 2) + ")");
  if (!facts.attention.empty()) {
    row(table,
        "attention",
        attention_text(facts.attention) +
            (any_in_blocks(facts.attention)
                 ? "; gradients reached " + fixed(100 * smallest_reach(facts.attention), 0) +
                       " % of the key blocks"
                 : ""));
  }
  row(table, "throughput", grouped(std::llround(facts.tokens_per_second)) + " tokens/s (median)");
  row(table, "steps skipped", std::to_string(facts.skipped.size()));
  for (const SkippedStep& one : facts.skipped) {
    row(table,
        "",
        "step " + std::to_string(one.step) + " on " + std::to_string(one.ranks) + " of " +
            std::to_string(facts.ranks) + " ranks: " + one.reason);
  }
  row(table, "restarts", std::to_string(facts.restarts.size()));
  for (const RestartFact& one : facts.restarts) {
    row(table, "", one.reason);
    row(table,
        "",
        "training again after " + fixed(one.seconds, 2) + " s, from " +
            (one.resumed_from.empty() ? "the start" : one.resumed_from) + " (step " +
            std::to_string(one.resumed_step) + ")");
  }
  row(table, "checkpoints", grouped(facts.checkpoints_committed) + " committed");
  row(table,
      "samples",
      grouped(facts.samples_stored) + " stored, " + grouped(facts.frames_dropped) +
          " frames dropped");
  row(table, "database", (options.folder / "muster.db").string());
  row(table, "checkpoint folder", (options.folder / "checkpoints" / "demo").string());
  return table;
}

}  // namespace muster::demo
