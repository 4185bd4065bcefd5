// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/ep/ep.h"
#include "cli/plan/ep/numbers.h"
#include "cli/text/table.h"

#include <muster/common/dtype.h>
#include <muster/common/text.h>

#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace muster::cli {

namespace {

using nlohmann::ordered_json;
using parallel::EpBreakEven;
using parallel::EpLayerShape;
using parallel::EpShape;
using parallel::EpSizes;

std::string headline(const EpQuestion& question) {
  const EpLayerShape& layer = question.layer;
  const EpShape& shape = layer.shape;
  return concat(
      question.name,
      ": ",
      shape.experts,
      " experts on ",
      shape.ranks,
      shape.ranks == 1 ? " rank (" : " ranks (",
      shape.local_experts(),
      " each), top ",
      shape.top_k,
      ", ",
      grouped(shape.tokens_max),
      " tokens per rank\nhidden ",
      layer.hidden,
      ", ffn ",
      layer.ffn,
      ", ",
      layer.projections,
      " projections, ",
      layer.type,
      "; ",
      describe_planner(shape, layer.balance),
      "\n");
}

std::string memory_text(const EpQuestion& question, const EpSizes& sizes) {
  const EpShape& shape = question.layer.shape;
  const std::string slots =
      std::to_string(shape.slot_count()) + (shape.slot_count() == 1 ? " slot" : " slots");
  const std::string local =
      std::to_string(shape.local_experts()) + (shape.local_experts() == 1 ? " expert" : " experts");
  const auto bytes = [](std::int64_t count) { return decimal_bytes(static_cast<double>(count)); };
  Table table{{{"MEMORY OF A RANK"}, {"BYTES", Align::kRight}, {""}}};
  table.add(
      {"receive buffer",
       bytes(sizes.receive_bytes),
       grouped(sizes.receive_rows) + " rows, padding included; one per process"});
  table.add({"pool, weights", bytes(sizes.pool_weight_bytes), slots + "; one per process"});
  const bool trains = parallel::ep_trains(question.layer);
  if (trains) {
    table.add(
        {"pool, gradients", bytes(sizes.pool_gradient_bytes), slots + ", fp32; one per process"});
  }
  table.add({"own weights", bytes(sizes.home_weight_bytes), local + "; per layer"});
  if (trains) {
    table.add({"own gradients", bytes(sizes.home_gradient_bytes), local + ", fp32; per layer"});
  }
  table.add({"plan", bytes(sizes.plan_bytes), "one per layer between forward and backward"});
  table.add({"counts", bytes(sizes.counts_bytes), "gathered before a plan"});
  return table.to_string() + "Padding at worst " + grouped(sizes.pad_rows_worst) + " rows, " +
         percent(sizes.pad_fraction_worst) + " of the " + grouped(shape.tokens_max * shape.top_k) +
         " that a rank computes on average.\n" +
         (trains ? ""
                 : "Inference: no gradients. Training needs " +
                       std::to_string(shape.local_experts()) + " slots.\n");
}

std::string wire_text(const EpQuestion& question, const EpSizes& sizes) {
  const auto link = [&](double bytes) {
    return question.rates ? short_seconds(bytes / question.rates->link_bytes) : "-";
  };
  Table table{
      {{"WIRE OF A RANK, ONE WAY"},
       {"ROWS/TOKEN", Align::kRight},
       {"BYTES", Align::kRight},
       {"TIME", Align::kRight},
       {""}}};
  const auto row = [&](const char* name, double rows, double bytes, const char* note) {
    table.add({name, rows > 0 ? decimal(rows, 2) : "", decimal_bytes(bytes), link(bytes), note});
  };
  row("dispatch", sizes.remote_rows, sizes.dispatch_bytes, "even choices; combine the same");
  row("  at worst",
      sizes.remote_rows_worst,
      sizes.dispatch_bytes_worst,
      "every row to another rank");
  const double tokens = static_cast<double>(question.layer.shape.tokens_max);
  const double row_bytes =
      static_cast<double>(size_bytes(question.layer.type, question.layer.hidden));
  row("  without deduplication",
      sizes.remote_rows_not_deduplicated,
      tokens * sizes.remote_rows_not_deduplicated * row_bytes,
      "a row per choice");
  row("gates", 0, sizes.weight_bytes, "4 bytes per remote choice");
  row("prefetch of a copy", 0, static_cast<double>(sizes.prefetch_bytes), "home to slot");
  if (parallel::ep_trains(question.layer)) {
    row("reduction of a copy", 0, static_cast<double>(sizes.reduce_bytes), "slot to home, fp32");
  }
  return table.to_string() + "A token reaches " + decimal(sizes.distinct_ranks, 2) +
         " ranks on average; " + decimal_bytes(sizes.duplicate_bytes) +
         " of rows are copied where they arrived.\n";
}

std::string tokens_text(const EpQuestion& question, const EpBreakEven& even) {
  if (question.imbalance == 0) {
    return "";
  }
  const double tokens =
      parallel::ep_break_even_tokens(even, question.layer.shape.tokens_max, question.imbalance);
  return std::isfinite(tokens) ? grouped(static_cast<std::int64_t>(std::ceil(tokens))) : "never";
}

std::string break_even_text(const EpQuestion& question, const EpAnswer& answer) {
  if (!answer.forward) {
    return "--gemm-flops and --link add times, and the imbalance above which balancing pays.\n";
  }
  const bool tokens = question.imbalance > 0;
  std::vector<Column> columns{
      {"BALANCING PAYS"},
      {"COMPUTE", Align::kRight},
      {"DISPATCH", Align::kRight},
      {"COST", Align::kRight},
      {"IMBALANCE OVER", Align::kRight}};
  if (tokens) {
    columns.push_back({"TOKENS AT " + decimal(question.imbalance, 2), Align::kRight});
  }
  Table table{columns};
  std::vector<std::pair<const char*, EpBreakEven>> rows{{"forward", *answer.forward}};
  if (answer.with_backward) {
    rows.emplace_back("forward + backward", *answer.with_backward);
  }
  for (const auto& [name, even] : rows) {
    std::vector<std::string> cells{
        name,
        short_seconds(even.compute_seconds),
        short_seconds(even.dispatch_seconds),
        short_seconds(even.cost_seconds),
        decimal(even.imbalance, 3)};
    if (tokens) {
      cells.push_back(tokens_text(question, even));
    }
    table.add(cells);
  }
  return table.to_string() + "COST is the plan and " + std::to_string(question.rates->copies_out) +
         " copies out of the busiest home" +
         (question.rates->overlap_seconds > 0 ? ", less what overlaps" : "") +
         "; IMBALANCE is the fullest rank over the mean.\n";
}

ordered_json even_json(const EpQuestion& question, const EpBreakEven& even) {
  ordered_json object{
      {"compute_seconds", even.compute_seconds},
      {"dispatch_seconds", even.dispatch_seconds},
      {"cost_seconds", even.cost_seconds},
      {"imbalance", even.imbalance}};
  if (question.imbalance > 1) {
    object["tokens"] =
        parallel::ep_break_even_tokens(even, question.layer.shape.tokens_max, question.imbalance);
  }
  return object;
}

ordered_json configuration_json(const EpQuestion& question) {
  const EpLayerShape& layer = question.layer;
  const EpShape& shape = layer.shape;
  constexpr std::array kModes{"none", "exact", "tolerant"};
  return {
      {"name", question.name},
      {"experts", shape.experts},
      {"ranks", shape.ranks},
      {"top_k", shape.top_k},
      {"tokens", shape.tokens_max},
      {"slots", shape.slot_count()},
      {"padding", shape.padding},
      {"compact", shape.compact},
      {"inference", !parallel::ep_trains(layer)},
      {"hidden", layer.hidden},
      {"ffn", layer.ffn},
      {"projections", layer.projections},
      {"type", to_string(layer.type)},
      {"mode", kModes[static_cast<std::size_t>(layer.balance.mode)]},
      {"tolerance", layer.balance.tolerance},
      {"speeds", layer.balance.speeds}};
}

}  // namespace

Expected<EpAnswer> answer(const EpQuestion& question) {
  EpAnswer result;
  MUSTER_ASSIGN_OR_RETURN(result.sizes, parallel::ep_sizes(question.layer));
  if (question.rates) {
    result.forward = parallel::ep_break_even(result.sizes, *question.rates, false);
    if (parallel::ep_trains(question.layer)) {
      result.with_backward = parallel::ep_break_even(result.sizes, *question.rates, true);
    }
  }
  return result;
}

std::string to_text(const EpQuestion& question, const EpAnswer& answer) {
  return headline(question) + "\n" + memory_text(question, answer.sizes) + "\n" +
         wire_text(question, answer.sizes) + "\n" + break_even_text(question, answer);
}

std::string to_json(const EpQuestion& question, const EpAnswer& answer) {
  const EpSizes& sizes = answer.sizes;
  ordered_json document = configuration_json(question);
  document["receive_rows"] = sizes.receive_rows;
  document["receive_bytes"] = sizes.receive_bytes;
  document["plan_bytes"] = sizes.plan_bytes;
  document["counts_bytes"] = sizes.counts_bytes;
  document["expert_bytes"] = sizes.expert_bytes;
  document["expert_gradient_bytes"] = sizes.expert_gradient_bytes;
  document["home_weight_bytes"] = sizes.home_weight_bytes;
  document["home_gradient_bytes"] = sizes.home_gradient_bytes;
  document["pool_weight_bytes"] = sizes.pool_weight_bytes;
  document["pool_gradient_bytes"] = sizes.pool_gradient_bytes;
  document["pad_rows_worst"] = sizes.pad_rows_worst;
  document["pad_fraction_worst"] = sizes.pad_fraction_worst;
  document["distinct_ranks"] = sizes.distinct_ranks;
  document["remote_rows"] = sizes.remote_rows;
  document["remote_rows_not_deduplicated"] = sizes.remote_rows_not_deduplicated;
  document["remote_rows_worst"] = sizes.remote_rows_worst;
  document["dispatch_bytes"] = sizes.dispatch_bytes;
  document["dispatch_bytes_worst"] = sizes.dispatch_bytes_worst;
  document["weight_bytes"] = sizes.weight_bytes;
  document["duplicate_bytes"] = sizes.duplicate_bytes;
  document["prefetch_bytes"] = sizes.prefetch_bytes;
  document["reduce_bytes"] = sizes.reduce_bytes;
  document["forward_flops"] = sizes.forward_flops;
  if (answer.forward) {
    document["forward"] = even_json(question, *answer.forward);
  }
  if (answer.with_backward) {
    document["with_backward"] = even_json(question, *answer.with_backward);
  }
  return document.dump(2) + "\n";
}

}  // namespace muster::cli
