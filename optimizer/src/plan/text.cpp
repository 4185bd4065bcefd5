// SPDX-License-Identifier: Apache-2.0
// A plan as people read it: what is even over the ranks, and what is not.
#include <muster/common/text.h>
#include <muster/optimizer/plan.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace muster::optimizer {
namespace {

using Values = std::vector<double>;
using Scale = std::array<const char*, 6>;

constexpr Scale kBytes{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
constexpr Scale kFlops{"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"};
constexpr Scale kCount{"", " k", " M", " G", " T", " P"};

// Three digits or more, and the unit that keeps the number below `base`.
std::string scaled(double value, double base, const Scale& units, const char* gap) {
  std::size_t unit = 0;
  while (value >= 0.9995 * base && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fixed(value, digits) + gap + units[unit];
}

std::string bytes_text(double bytes) {
  return scaled(bytes, 1024, kBytes, " ");
}

std::string flops_text(double flops) {
  return scaled(flops, 1000, kFlops, " ");
}

std::string count_text(std::int64_t count) {
  return count < 10000 ? std::to_string(count)
                       : scaled(static_cast<double>(count), 1000, kCount, "");
}

std::string plural(std::int64_t count, const std::string& one, const std::string& many) {
  return count_text(count) + " " + (count == 1 ? one : many);
}

const char* describe(Layout layout) {
  switch (layout) {
    case Layout::kWholeMatrices:
      return "matrices stay whole, dealt out by bin packing";
    case Layout::kFlatRedundant:
      return "one flat buffer in equal shards, a cut matrix is orthogonalised by all its holders";
    case Layout::kFlatOwner:
      return "one flat buffer in equal shards, a cut matrix is orthogonalised by one of its "
             "holders";
    case Layout::kRowShards:
      return "shards of rows, matrices are assembled at owners";
    case Layout::kReplicated:
      break;
  }
  return "every rank stores and updates everything";
}

struct Quantity {
  const char* label;
  bool is_flops;
  double (*of)(const RankCost&);
};

double memory_of(const RankCost& cost) {
  return cost.parameter_bytes + cost.gradient_bytes + cost.master_bytes + cost.state_bytes +
         cost.scratch_bytes;
}

double sent_by(const RankCost& cost) {
  const StepTraffic& traffic = cost.traffic;
  return traffic.reduce_scatter + traffic.all_gather + traffic.exchange + traffic.agc;
}

constexpr std::array kQuantities{
    Quantity{"parameters", false, [](const RankCost& c) { return c.parameter_bytes; }},
    Quantity{"gradients", false, [](const RankCost& c) { return c.gradient_bytes; }},
    Quantity{"masters", false, [](const RankCost& c) { return c.master_bytes; }},
    Quantity{"states", false, [](const RankCost& c) { return c.state_bytes; }},
    Quantity{"scratch", false, [](const RankCost& c) { return c.scratch_bytes; }},
    Quantity{"memory in all", false, memory_of},
    Quantity{"Newton-Schulz", true, [](const RankCost& c) { return c.newton_schulz_flops; }},
    Quantity{"sent: reduction", false, [](const RankCost& c) { return c.traffic.reduce_scatter; }},
    Quantity{"sent: gather", false, [](const RankCost& c) { return c.traffic.all_gather; }},
    Quantity{"sent: exchange", false, [](const RankCost& c) { return c.traffic.exchange; }},
    Quantity{"sent: row norms", false, [](const RankCost& c) { return c.traffic.agc; }},
    Quantity{"sent in all", false, sent_by}};

std::string padding(std::size_t width, const std::string& text) {
  return std::string(width - std::min(width, text.size()), ' ');
}

void add_line(std::string& out, const std::string& label, const std::array<std::string, 4>& cells) {
  out += "  " + label + padding(16, label);
  for (const std::string& cell : cells) {
    out += padding(14, cell) + cell;
  }
  out += '\n';
}

// One line per quantity that some rank has any of.
std::string table(const std::vector<RankCost>& cost) {
  std::string out;
  add_line(out, "per rank", {"lightest", "median", "heaviest", "max / mean"});
  for (const Quantity& quantity : kQuantities) {
    Values values(cost.size());
    std::transform(cost.begin(), cost.end(), values.begin(), quantity.of);
    std::sort(values.begin(), values.end());
    if (values.back() <= 0) {
      continue;
    }
    const double mean =
        std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    const auto show = quantity.is_flops ? flops_text : bytes_text;
    add_line(
        out,
        quantity.label,
        {show(values.front()),
         show(values[values.size() / 2]),
         show(values.back()),
         fixed(values.back() / mean, 2)});
  }
  return out;
}

// The largest load against what each rank would have if the work were neither uneven nor repeated.
double fullest_over_ideal(const RegionCost& region) {
  double total = 0;
  double fullest = 0;
  for (const RankCost& cost : region.cost) {
    total += cost.newton_schulz_flops;
    fullest = std::max(fullest, cost.newton_schulz_flops);
  }
  return fullest * region.ranks * region.repeated_newton_schulz / total;
}

std::string headline(const RegionCost& region) {
  const double padded = 100.0 * static_cast<double>(region.padding_elements) /
                        static_cast<double>(std::max<std::int64_t>(region.elements, 1));
  std::string out = concat(
      '\n',
      region.name,
      ", held by ",
      plural(region.ranks, "rank", "ranks"),
      "\n  ",
      plural(region.parameters, "parameter", "parameters"),
      ", ",
      plural(region.elements, "element", "elements"),
      ", ",
      general(padded, 2),
      " % padding, ",
      plural(region.collectives, "collective", "collectives"),
      " a step\n");
  if (region.matrices > 0) {
    out += concat(
        "  ",
        plural(region.matrices, "matrix", "matrices"),
        ", ",
        count_text(region.cut_matrices),
        " cut, Newton-Schulz work ",
        fixed(region.repeated_newton_schulz, 2),
        " x that of one rank alone\n  the fullest rank has ",
        fixed(fullest_over_ideal(region), 2),
        " x an equal share of it\n");
  }
  return out;
}

}  // namespace

std::string to_text(const PlanReport& report) {
  std::string text = concat(
      "ZeRO-1 plan ",
      to_hex(report.hash),
      ", layout ",
      to_string(report.layout),
      ":\n",
      describe(report.layout),
      '\n');
  int ranks = 1;
  std::int64_t collectives = 0;
  for (const RegionCost& region : report.regions) {
    text += headline(region) + table(region.cost);
    ranks = std::max(ranks, region.ranks);
    collectives += region.collectives;
  }
  if (report.regions.empty()) {
    return text + "\nthere are no parameters\n";
  }
  if (report.regions.size() == 1) {
    return text;
  }
  std::vector<RankCost> all;
  all.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(report.of_rank(rank));
  }
  return text + "\nall together, " + plural(ranks, "rank", "ranks") + ", " +
         plural(collectives, "collective", "collectives") + " a step\n" + table(all);
}

}  // namespace muster::optimizer
