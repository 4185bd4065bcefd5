// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/ep/numbers.h"
#include "cli/plan/ep/replay.h"
#include "cli/text/table.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace muster::cli {

namespace {

using nlohmann::ordered_json;

double mean(double sum, std::int64_t count) {
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

double ratio(std::int64_t part, std::int64_t whole) {
  return mean(static_cast<double>(part), whole);
}

// Both planners in one cell, or one figure if they agree.
std::string both(const std::string& recorded, const std::string& replayed) {
  return recorded == replayed ? recorded : recorded + " -> " + replayed;
}

template <typename Figure>
std::string cell(const EpReplayLayer& layer, const Figure& figure) {
  const auto text = [&](const EpReplaySums& sums) {
    return sums.plans == 0 ? std::string{"-"} : figure(sums);
  };
  return both(text(layer.recorded), text(layer.replayed));
}

std::string wire_cell(const EpReplayReport& report, const EpReplaySums& sums) {
  if (sums.wire_tokens == 0) {
    return "-";
  }
  const double rows = ratio(sums.wire_rows, sums.wire_tokens);
  return report.row_bytes == 0
             ? decimal(rows, 2)
             : decimal_bytes(
                   mean(static_cast<double>(sums.wire_rows * report.row_bytes), sums.plans));
}

void add_row(
    const EpReplayReport& report,
    const EpReplayLayer& layer,
    const std::string& name,
    Table& table) {
  table.add(
      {name,
       std::to_string(layer.steps),
       decimal(layer.max_violation_max, 2),
       decimal(mean(layer.imbalance_before, layer.steps), 3) + " / " +
           decimal(layer.imbalance_before_max, 3),
       cell(layer, [](const auto& s) { return decimal(mean(s.imbalance_after, s.plans), 3); }),
       cell(layer, [](const auto& s) { return decimal(ratio(s.copies, s.plans), 1); }),
       cell(layer, [](const auto& s) { return std::to_string(s.copies_out_max); }),
       cell(layer, [](const auto& s) { return decimal(ratio(s.overflow, s.plans), 1); }),
       cell(
           layer,
           [](const auto& s) {
             return s.surplus == 0 ? "-" : decimal(ratio(s.rows_moved, s.surplus), 2);
           }),
       cell(layer, [&](const auto& s) { return percent(ratio(s.pad_rows, layer.rows)); }),
       cell(layer, [&](const auto& s) { return wire_cell(report, s); })});
}

void merge(const EpReplaySums& from, EpReplaySums& to) {
  to.plans += from.plans;
  to.imbalance_after += from.imbalance_after;
  to.imbalance_after_max = std::max(to.imbalance_after_max, from.imbalance_after_max);
  to.copies += from.copies;
  to.copies_out_max = std::max(to.copies_out_max, from.copies_out_max);
  to.overflow += from.overflow;
  to.rows_moved += from.rows_moved;
  to.surplus += from.surplus;
  to.pad_rows += from.pad_rows;
  to.wire_tokens += from.wire_tokens;
  to.wire_rows += from.wire_rows;
}

EpReplayLayer all_layers(const EpReplayReport& report) {
  EpReplayLayer all;
  for (const EpReplayLayer& layer : report.layers) {
    all.steps += layer.steps;
    all.rows += layer.rows;
    all.max_violation_max = std::max(all.max_violation_max, layer.max_violation_max);
    all.imbalance_before += layer.imbalance_before;
    all.imbalance_before_max = std::max(all.imbalance_before_max, layer.imbalance_before_max);
    merge(layer.recorded, all.recorded);
    merge(layer.replayed, all.replayed);
  }
  return all;
}

std::string headline(const EpReplayReport& report) {
  const parallel::EpShape& shape = report.recorded.shape;
  std::string text =
      report.file + ": " + std::to_string(report.records) + " plans of " +
      std::to_string(report.layers.size()) + (report.layers.size() == 1 ? " layer" : " layers") +
      ", steps " + std::to_string(report.first_step) + " to " + std::to_string(report.last_step) +
      ", recorded by rank " + std::to_string(report.rank) + "\n" + std::to_string(shape.experts) +
      " experts on " + std::to_string(shape.ranks) + " ranks, top " + std::to_string(shape.top_k) +
      "\nrecorded  " + describe_planner(shape, report.recorded.balance) + "\nreplayed  " +
      describe_planner(report.replayed.shape, report.replayed.balance) + "\n\n";
  return text;
}

std::string footer(const EpReplayReport& report) {
  std::string text =
      "\nIMBALANCE  fullest rank over the mean before balancing, mean / worst; AFTER with the "
      "plan\n"
      "COPIES     experts in slots per plan; OUT of the busiest home; OVERFLOW read from home\n"
      "MOVED      rows away from home over the rows that at least must move; PAD rows over real\n";
  text += report.row_bytes == 0 ? "WIRE       rows per token to other ranks, of the recording rank"
                                : "WIRE       bytes per plan to other ranks, of the recording rank";
  text += report.deduplicated ? "\n" : ", each choice a row: choices were not recorded\n";
  if (report.reproduced < report.records) {
    text += std::to_string(report.records - report.reproduced) + " of " +
            std::to_string(report.records) +
            " recorded plans are not what the recorded options give: speeds changed while it ran, "
            "or another build recorded it\n";
  }
  if (report.refused > 0) {
    text += std::to_string(report.refused) + " of " + std::to_string(report.records) +
            " plans cannot be made with these options; the first: " + report.refusal + "\n";
  }
  return text;
}

ordered_json sums_json(const EpReplaySums& sums, std::int64_t rows) {
  ordered_json object{
      {"plans", sums.plans},
      {"imbalance_after_mean", mean(sums.imbalance_after, sums.plans)},
      {"imbalance_after_max", sums.imbalance_after_max},
      {"copies_mean", ratio(sums.copies, sums.plans)},
      {"copies_out_max", sums.copies_out_max},
      {"overflow_mean", ratio(sums.overflow, sums.plans)},
      {"rows_moved", sums.rows_moved},
      {"surplus", sums.surplus},
      {"pad_rows", sums.pad_rows},
      {"pad_fraction", ratio(sums.pad_rows, rows)}};
  if (sums.wire_tokens > 0) {
    object["wire_rows"] = sums.wire_rows;
    object["wire_rows_per_token"] = ratio(sums.wire_rows, sums.wire_tokens);
  }
  return object;
}

ordered_json layer_json(const EpReplayLayer& layer) {
  return {
      {"layer", layer.layer},
      {"steps", layer.steps},
      {"rows", layer.rows},
      {"max_violation_max", layer.max_violation_max},
      {"imbalance_mean", mean(layer.imbalance_before, layer.steps)},
      {"imbalance_max", layer.imbalance_before_max},
      {"recorded", sums_json(layer.recorded, layer.rows)},
      {"replayed", sums_json(layer.replayed, layer.rows)}};
}

}  // namespace

std::string to_text(const EpReplayReport& report) {
  Table table{
      {{"LAYER"},
       {"STEPS", Align::kRight},
       {"MAXVIO", Align::kRight},
       {"IMBALANCE", Align::kRight},
       {"AFTER", Align::kRight},
       {"COPIES", Align::kRight},
       {"OUT", Align::kRight},
       {"OVERFLOW", Align::kRight},
       {"MOVED", Align::kRight},
       {"PAD", Align::kRight},
       {"WIRE", Align::kRight}}};
  for (const EpReplayLayer& layer : report.layers) {
    add_row(report, layer, std::to_string(layer.layer), table);
  }
  if (report.layers.size() > 1) {
    add_row(report, all_layers(report), "all", table);
  }
  return headline(report) + table.to_string() + footer(report);
}

std::string to_json(const EpReplayReport& report) {
  ordered_json document{
      {"file", report.file},
      {"experts", report.recorded.shape.experts},
      {"ranks", report.recorded.shape.ranks},
      {"top_k", report.recorded.shape.top_k},
      {"rank", report.rank},
      {"records", report.records},
      {"first_step", report.first_step},
      {"last_step", report.last_step},
      {"recorded_planner", describe_planner(report.recorded.shape, report.recorded.balance)},
      {"replayed_planner", describe_planner(report.replayed.shape, report.replayed.balance)},
      {"reproduced", report.reproduced},
      {"refused", report.refused},
      {"wire_deduplicated", report.deduplicated}};
  if (report.row_bytes > 0) {
    document["row_bytes"] = report.row_bytes;
  }
  document["layers"] = ordered_json::array();
  for (const EpReplayLayer& layer : report.layers) {
    document["layers"].push_back(layer_json(layer));
  }
  document["all"] = layer_json(all_layers(report));
  document["all"].erase("layer");
  return document.dump(2) + "\n";
}

}  // namespace muster::cli
