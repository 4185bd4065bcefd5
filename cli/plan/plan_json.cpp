// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/plan_json.h"

#include "cli/plan/comparison.h"

#include <muster/common/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace muster::cli {

namespace {

using nlohmann::ordered_json;
using optimizer::PlanReport;
using optimizer::RankCost;
using optimizer::RegionCost;

using Quantity = std::pair<const char*, double (*)(const RankCost&)>;

constexpr std::array kQuantities{
    Quantity{"parameter_bytes", [](const RankCost& c) { return c.parameter_bytes; }},
    Quantity{"gradient_bytes", [](const RankCost& c) { return c.gradient_bytes; }},
    Quantity{"master_bytes", [](const RankCost& c) { return c.master_bytes; }},
    Quantity{"state_bytes", [](const RankCost& c) { return c.state_bytes; }},
    Quantity{"scratch_bytes", [](const RankCost& c) { return c.scratch_bytes; }},
    Quantity{"newton_schulz_flops", [](const RankCost& c) { return c.newton_schulz_flops; }},
    Quantity{"reduce_scatter_bytes", [](const RankCost& c) { return c.traffic.reduce_scatter; }},
    Quantity{"all_gather_bytes", [](const RankCost& c) { return c.traffic.all_gather; }},
    Quantity{"exchange_bytes", [](const RankCost& c) { return c.traffic.exchange; }},
    Quantity{"agc_bytes", [](const RankCost& c) { return c.traffic.agc; }}};

ordered_json per_rank(const std::vector<RankCost>& cost) {
  ordered_json object;
  for (const auto& [name, of] : kQuantities) {
    std::vector<double> values(cost.size());
    std::transform(cost.begin(), cost.end(), values.begin(), of);
    std::sort(values.begin(), values.end());
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    object[name] = {
        {"lightest", values.front()},
        {"median", values[values.size() / 2]},
        {"heaviest", values.back()},
        {"mean", sum / static_cast<double>(values.size())}};
  }
  return object;
}

ordered_json region_json(const RegionCost& region) {
  return {
      {"name", region.name},
      {"ranks", region.ranks},
      {"parameters", region.parameters},
      {"elements", region.elements},
      {"padding_elements", region.padding_elements},
      {"matrices", region.matrices},
      {"cut_matrices", region.cut_matrices},
      {"collectives", region.collectives},
      {"repeated_newton_schulz", region.repeated_newton_schulz},
      {"per_rank", per_rank(region.cost)}};
}

ordered_json report_json(const PlanReport& report, int ranks) {
  ordered_json regions = ordered_json::array();
  for (const RegionCost& region : report.regions) {
    regions.push_back(region_json(region));
  }
  std::vector<RankCost> all;
  all.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(report.of_rank(rank));
  }
  const LayoutSummary summary = summarise(report);
  return {
      {"layout", optimizer::to_string(report.layout)},
      {"hash", to_hex(report.hash)},
      {"collectives", summary.collectives},
      {"cut_matrices", summary.cut},
      {"newton_schulz_ideal_flops", summary.newton_schulz_ideal},
      {"repeated_newton_schulz", summary.repeated},
      {"per_rank", per_rank(all)},
      {"regions", std::move(regions)}};
}

}  // namespace

std::string plan_json(
    const PlannedModel& model, int ranks, int expert_ranks, std::span<const PlanReport> reports) {
  ordered_json document{{"model", model.name}, {"ranks", ranks}, {"expert_ranks", expert_ranks}};
  if (const auto advice = recommend(reports)) {
    document["recommended"] = optimizer::to_string(advice->layout);
    document["reason"] = advice->reason;
  }
  document["plans"] = ordered_json::array();
  for (const PlanReport& report : reports) {
    document["plans"].push_back(report_json(report, ranks));
  }
  return document.dump(2) + "\n";
}

}  // namespace muster::cli
