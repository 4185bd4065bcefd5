// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/comparison.h"

#include "cli/text/table.h"
#include "cli/text/units.h"

#include <muster/common/text.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace muster::cli {

namespace {

using optimizer::Layout;
using optimizer::PlanReport;
using optimizer::RankCost;
using optimizer::RegionCost;

// Uneven memory that is not worth an exchange in every step.
constexpr double kMemorySlack = 1.05;
constexpr std::size_t kLineWidth = 92;

std::string bytes_text(double bytes) {
  return format_bytes(std::llround(bytes));
}

std::string flops_text(double flops) {
  constexpr std::array kUnits{"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"};
  std::size_t unit = 0;
  while (flops >= 999.5 && unit + 1 < kUnits.size()) {
    flops /= 1000;
    ++unit;
  }
  return fixed(flops, flops >= 99.95 || unit == 0 ? 0 : 1) + " " + kUnits[unit];
}

int world_size(const PlanReport& report) {
  int ranks = 1;
  for (const RegionCost& region : report.regions) {
    ranks = std::max(ranks, region.ranks);
  }
  return ranks;
}

double total_flops(const RegionCost& region) {
  return std::accumulate(
      region.cost.begin(), region.cost.end(), 0.0, [](double sum, const RankCost& cost) {
        return sum + cost.newton_schulz_flops;
      });
}

// The region with the fewest matrices for its ranks; null without matrices.
const RegionCost* scarcest(const PlanReport& report) {
  const RegionCost* worst = nullptr;
  const auto supply = [](const RegionCost& region) {
    return static_cast<double>(region.matrices) / region.ranks;
  };
  for (const RegionCost& region : report.regions) {
    if (region.matrices > 0 && (worst == nullptr || supply(region) < supply(*worst))) {
      worst = &region;
    }
  }
  return worst;
}

const PlanReport* find(std::span<const PlanReport> reports, Layout layout) {
  const auto at = std::find_if(reports.begin(), reports.end(), [&](const PlanReport& report) {
    return report.layout == layout;
  });
  return at == reports.end() ? nullptr : &*at;
}

// Lines of at most kLineWidth.
std::string wrapped(const std::string& text) {
  std::string out;
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (word.empty()) {
      continue;
    }
    if (!line.empty() && line.size() + 1 + word.size() > kLineWidth) {
      out += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return out + line + "\n";
}

}  // namespace

LayoutSummary summarise(const PlanReport& report) {
  LayoutSummary summary;
  summary.layout = report.layout;
  const int ranks = world_size(report);
  for (int rank = 0; rank < ranks; ++rank) {
    const RankCost cost = report.of_rank(rank);
    const double stored = cost.master_bytes + cost.state_bytes;
    const double memory = cost.parameter_bytes + cost.gradient_bytes + stored + cost.scratch_bytes;
    const double sent = cost.traffic.reduce_scatter + cost.traffic.all_gather +
                        cost.traffic.exchange + cost.traffic.agc;
    summary.memory = std::max(summary.memory, memory);
    summary.states = std::max(summary.states, stored);
    summary.newton_schulz = std::max(summary.newton_schulz, cost.newton_schulz_flops);
    summary.sent = std::max(summary.sent, sent);
    summary.exchange = std::max(summary.exchange, cost.traffic.exchange);
  }
  double done = 0;
  for (const RegionCost& region : report.regions) {
    const double share = total_flops(region) / region.ranks;
    done += share;
    summary.newton_schulz_ideal += share / region.repeated_newton_schulz;
    summary.cut += region.cut_matrices;
    summary.collectives += region.collectives;
  }
  summary.repeated = done > 0 ? done / summary.newton_schulz_ideal : 1;
  return summary;
}

std::optional<Advice> recommend(std::span<const PlanReport> reports) {
  const PlanReport* whole = find(reports, Layout::kWholeMatrices);
  const PlanReport* owner = find(reports, Layout::kFlatOwner);
  if (whole == nullptr || owner == nullptr) {
    return std::nullopt;
  }
  const RegionCost* region = scarcest(*whole);
  if (region == nullptr) {
    return Advice{
        Layout::kWholeMatrices, "there are no matrices, so the layout makes no difference"};
  }
  const LayoutSummary packed = summarise(*whole);
  const LayoutSummary even = summarise(*owner);
  const std::string supply = std::to_string(region->matrices) + " " + region->name + " on " +
                             std::to_string(region->ranks) +
                             (region->ranks == 1 ? " rank" : " ranks");
  const std::string excess = fixed(packed.memory / even.memory, 2);
  if (packed.memory > kMemorySlack * even.memory) {
    return Advice{
        Layout::kFlatOwner,
        "whole matrices, dealt out by their work, would give the fullest rank " + excess +
            " x the memory of even shards (" + supply + "); those cost an exchange of " +
            bytes_text(even.exchange) + " a step"};
  }
  if (region->matrices >= region->ranks) {
    return Advice{
        Layout::kWholeMatrices,
        "every region has at least as many matrices as ranks (" + supply +
            "), so none is cut, nothing moves inside the update, no work is repeated, and the "
            "busiest rank has " +
            fixed(packed.newton_schulz / packed.newton_schulz_ideal, 2) +
            " x an equal share of the work"};
  }
  return Advice{
      Layout::kWholeMatrices,
      "there are fewer matrices than ranks (" + supply +
          "), so some ranks orthogonalise none and the largest matrix bounds the update, as it "
          "would in every layout; the fullest rank needs " +
          excess + " x the memory of even shards, and nothing moves inside the update"};
}

std::string compare(std::span<const PlanReport> reports) {
  const std::optional<Advice> advice = recommend(reports);
  Table table{
      {{"LAYOUT"},
       {"MEMORY", Align::kRight},
       {"STATES", Align::kRight},
       {"NS WORK", Align::kRight},
       {"/IDEAL", Align::kRight},
       {"REPEATED", Align::kRight},
       {"SENT", Align::kRight},
       {"EXCHANGE", Align::kRight},
       {"CUT", Align::kRight},
       {"CALLS", Align::kRight}}};
  for (const PlanReport& report : reports) {
    const LayoutSummary summary = summarise(report);
    const bool advised = advice.has_value() && advice->layout == report.layout;
    const bool works = summary.newton_schulz_ideal > 0;
    table.add(
        {std::string{advised ? "* " : "  "} + optimizer::to_string(report.layout),
         bytes_text(summary.memory),
         bytes_text(summary.states),
         flops_text(summary.newton_schulz),
         works ? fixed(summary.newton_schulz / summary.newton_schulz_ideal, 2) : "-",
         fixed(summary.repeated, 2) + "x",
         bytes_text(summary.sent),
         bytes_text(summary.exchange),
         std::to_string(summary.cut),
         std::to_string(summary.collectives)});
  }
  std::string text =
      table.to_string() +
      "\n"
      "MEMORY    parameters, gradients, masters, states and scratch of the fullest rank\n"
      "STATES    optimizer states and fp32 masters of the fullest rank\n"
      "NS WORK   Newton-Schulz of the busiest rank in a step; /IDEAL over an equal share\n"
      "REPEATED  Newton-Schulz of all ranks over the work done once\n"
      "SENT      by the rank that sends most in a step, EXCHANGE of which inside the update\n"
      "CUT       matrices that several ranks store parts of\n"
      "CALLS     collectives of a step\n";
  if (advice) {
    text += "\n" + wrapped(
                       std::string{"* "} + optimizer::to_string(advice->layout) +
                       " is recommended: " + advice->reason + ".");
  }
  return text;
}

}  // namespace muster::cli
