// Lanes of the verdict: where each value lies in the two vectors, and how it survives reduction.
#include <muster/agent/verdict.h>
#include <muster/common/check.h>
#include <muster/common/hash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace muster::agent {
namespace {

constexpr std::size_t kSumScalars = 3;
constexpr std::size_t kSumPerGroup = 19;
constexpr std::size_t kMaxScalars = 15;
constexpr std::size_t kMaxPerGroup = 6;
constexpr double kAbsent = -std::numeric_limits<double>::infinity();

std::size_t total(const std::vector<int>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0}, [](std::size_t sum, int n) {
    return sum + static_cast<std::size_t>(n);
  });
}

double as_lane(std::int64_t value) {
  return static_cast<double>(value);
}

double as_lane(std::uint64_t value) {
  return static_cast<double>(value);
}

double as_lane(bool value) {
  return value ? 1.0 : 0.0;
}

// Appends values to a vector of lanes; what is not finite is left out and flagged.
class LaneWriter {
 public:
  explicit LaneWriter(std::span<double> lanes) : lanes_(lanes) {}

  void raw(double value) { lanes_[next_++] = value; }

  void finite(double value) {
    nonfinite_ = nonfinite_ || !std::isfinite(value);
    raw(std::isfinite(value) ? value : 0.0);
  }

  // What is not finite is left out without a flag: see LocalLanes::update.
  void lenient(double value) { raw(std::isfinite(value) ? value : 0.0); }

  // Minimum and maximum of an integer through one MAX reduction.
  template <typename T>
  void range(T value) {
    raw(as_lane(value));
    raw(-as_lane(value));
  }

  [[nodiscard]] bool nonfinite() const { return nonfinite_; }

  [[nodiscard]] std::size_t position() const { return next_; }

 private:
  std::span<double> lanes_;
  std::size_t next_{0};
  bool nonfinite_{false};
};

class LaneReader {
 public:
  explicit LaneReader(std::span<const double> lanes) : lanes_(lanes) {}

  double next() { return lanes_[next_++]; }

  bool flag() { return next() > 0.0; }

  std::int64_t integer() { return static_cast<std::int64_t>(next()); }

  std::int64_t minimum() { return static_cast<std::int64_t>(-next()); }

  std::uint64_t count() { return static_cast<std::uint64_t>(next()); }

  std::uint64_t count_minimum() { return static_cast<std::uint64_t>(-next()); }

 private:
  std::span<const double> lanes_;
  std::size_t next_{0};
};

void encode_quotient_sums(const optimizer::GroupUpdateStatistics& update, LaneWriter& out) {
  out.lenient(update.gradient_squared_sum);
  out.lenient(update.momentum_gradient_sum);
  out.lenient(update.second_moment_before_sum);
  out.lenient(update.staleness_sum);
  out.raw(as_lane(update.second_moment_tiny_count));
  out.raw(as_lane(update.block_count));
  out.lenient(update.direction_norm_sum);
  out.lenient(update.effective_rank_sum);
  out.lenient(update.orthogonality_error_sum);
  out.raw(as_lane(update.nonfinite_blocks));
  out.raw(as_lane(update.recomputed_blocks));
}

void encode_maxima(const optimizer::GroupUpdateStatistics& update, LaneWriter& out) {
  out.finite(update.parameter_abs_max);
  out.finite(update.momentum_abs_max);
  out.finite(update.second_moment_abs_max);
  out.lenient(update.update_abs_max);
  out.lenient(update.orthogonality_error_max);
  // A minimum as a negative maximum; a rank without blocks has none.
  const bool known = update.block_count > 0 && std::isfinite(update.effective_rank_min);
  out.raw(known ? -update.effective_rank_min : kAbsent);
}

void encode_sums(const LaneLayout& layout, const LocalLanes& lanes, LaneWriter& out) {
  out.finite(lanes.loss_sum);
  out.finite(lanes.token_count);
  out.finite(lanes.nonfinite_count);
  for (std::size_t g = 0; g < layout.groups; ++g) {
    out.finite(lanes.squared_norm.empty() ? 0.0 : lanes.squared_norm[g]);
    const auto update = lanes.update.empty() ? optimizer::GroupUpdateStatistics{} : lanes.update[g];
    out.raw(as_lane(update.element_count));
    out.finite(update.update_squared_sum);
    out.finite(update.parameter_squared_sum);
    out.finite(update.momentum_squared_sum);
    out.finite(update.momentum_sum);
    out.finite(update.second_moment_sum);
    out.finite(update.second_moment_squared_sum);
    encode_quotient_sums(update, out);
  }
  for (std::size_t layer = 0; layer < layout.experts.size(); ++layer) {
    for (std::size_t e = 0; e < static_cast<std::size_t>(layout.experts[layer]); ++e) {
      out.finite(lanes.expert_counts.empty() ? 0.0 : lanes.expert_counts[layer][e]);
    }
  }
}

// True when a logit of this rank is NaN or +infinity (-infinity means that no pair was visible).
bool encode_logits(const LaneLayout& layout, const LocalLanes& lanes, LaneWriter& out) {
  bool nonfinite = false;
  for (std::size_t layer = 0; layer < layout.heads.size(); ++layer) {
    for (std::size_t h = 0; h < static_cast<std::size_t>(layout.heads[layer]); ++h) {
      double logit =
          lanes.max_logits.empty() ? kAbsent : static_cast<double>(lanes.max_logits[layer][h]);
      if (std::isnan(logit) || logit > std::numeric_limits<double>::max()) {
        logit = -kAbsent;
        nonfinite = true;
      }
      out.raw(logit);
    }
  }
  return nonfinite;
}

void check_shapes(const LaneLayout& layout, const LocalLanes& lanes) {
  const auto fits = [](std::size_t size, std::size_t expected) {
    return size == 0 || size == expected;
  };
  MUSTER_CHECK(
      fits(lanes.squared_norm.size(), layout.groups) && fits(lanes.update.size(), layout.groups),
      "one lane per norm group");
  MUSTER_CHECK(fits(lanes.max_logits.size(), layout.heads.size()), "one row of logits per layer");
  MUSTER_CHECK(
      fits(lanes.expert_counts.size(), layout.experts.size()), "one row of counts per MoE layer");
}

}  // namespace

void MobaLanes::clear() {
  std::fill(gate_bound.begin(), gate_bound.end(), kAbsent);
  std::fill(norm_bound.begin(), norm_bound.end(), kAbsent);
  block_max_over_mean = kAbsent;
  bin_counts.fill(0);
  for (double* field :
       {&blocks,
        &nonfinite_rows,
        &sink_share_sum,
        &sink_share_count,
        &gate_margin_sum,
        &gate_margin_count,
        &queries_reached,
        &queries,
        &blocks_reached,
        &reachable_blocks}) {
    *field = 0;
  }
}

std::size_t LaneLayout::sum_size() const {
  return kSumScalars + groups * kSumPerGroup + total(experts);
}

std::size_t LaneLayout::max_size() const {
  return kMaxScalars + groups * kMaxPerGroup + total(heads);
}

std::uint64_t command_digest(
    std::span<const Command> pending, std::uint64_t after, std::uint64_t up_to) {
  std::vector<std::uint64_t> words;
  for (const Command& command : pending) {
    if (command.id.value() > after && command.id.value() <= up_to) {
      std::uint64_t argument = 0;
      std::memcpy(&argument, &command.argument, sizeof argument);
      words.insert(
          words.end(),
          {command.id.value(),
           static_cast<std::uint64_t>(command.kind),
           argument,
           static_cast<std::uint64_t>(command.expires_step)});
    }
  }
  return words.empty() ? 0 : hash64(std::as_bytes(std::span{words})) >> 12U;
}

void encode(
    const LaneLayout& layout,
    const LocalLanes& lanes,
    std::span<double> sum,
    std::span<double> max) {
  MUSTER_CHECK(sum.size() == layout.sum_size() && max.size() == layout.max_size(), "lane buffers");
  check_shapes(layout, lanes);
  LaneWriter sums{sum};
  encode_sums(layout, lanes, sums);

  // The three flags lead but are known only after everything else was looked at.
  LaneWriter out{max.subspan(3)};
  out.finite(lanes.local_loss);
  out.raw(as_lane(lanes.preempt));
  out.range(lanes.generation);
  out.range(lanes.armed_command);
  out.range(lanes.pending_digest);
  out.range(lanes.replica_digest);
  out.raw(-as_lane(lanes.prepared_checkpoint));
  out.raw(as_lane(lanes.failed_checkpoint));
  MUSTER_CHECK(out.position() + 3 == kMaxScalars, "kMaxScalars counts the lanes above");
  for (std::size_t g = 0; g < layout.groups; ++g) {
    const auto update = lanes.update.empty() ? optimizer::GroupUpdateStatistics{} : lanes.update[g];
    encode_maxima(update, out);
  }
  const bool nonfinite_logit = encode_logits(layout, lanes, out);
  const bool nonfinite_loss = !std::isfinite(lanes.loss_sum) || !std::isfinite(lanes.local_loss);
  max[0] =
      as_lane(sums.nonfinite() || out.nonfinite() || nonfinite_logit || lanes.nonfinite_count > 0);
  max[1] = as_lane(nonfinite_loss);
  max[2] = as_lane(nonfinite_logit);
}

namespace {

void decode_sums(const LaneLayout& layout, LaneReader& in, ReducedLanes& out) {
  out.loss_sum = in.next();
  out.token_count = in.next();
  out.nonfinite_count = in.next();
  for (std::size_t g = 0; g < layout.groups; ++g) {
    out.squared_norm.push_back(in.next());
    optimizer::GroupUpdateStatistics& update = out.update.emplace_back();
    update.element_count = in.integer();
    update.update_squared_sum = in.next();
    update.parameter_squared_sum = in.next();
    update.momentum_squared_sum = in.next();
    update.momentum_sum = in.next();
    update.second_moment_sum = in.next();
    update.second_moment_squared_sum = in.next();
    update.gradient_squared_sum = in.next();
    update.momentum_gradient_sum = in.next();
    update.second_moment_before_sum = in.next();
    update.staleness_sum = in.next();
    update.second_moment_tiny_count = in.integer();
    update.block_count = in.integer();
    update.direction_norm_sum = in.next();
    update.effective_rank_sum = in.next();
    update.orthogonality_error_sum = in.next();
    update.nonfinite_blocks = in.integer();
    update.recomputed_blocks = in.integer();
  }
  for (const int experts : layout.experts) {
    std::vector<double>& row = out.expert_counts.emplace_back(static_cast<std::size_t>(experts));
    std::generate(row.begin(), row.end(), [&in] { return in.next(); });
  }
}

}  // namespace

ReducedLanes decode(
    const LaneLayout& layout, std::span<const double> sum, std::span<const double> max) {
  MUSTER_CHECK(sum.size() == layout.sum_size() && max.size() == layout.max_size(), "lane buffers");
  ReducedLanes out;
  LaneReader sums{sum};
  decode_sums(layout, sums, out);
  LaneReader in{max};
  out.nonfinite = in.flag();
  out.nonfinite_loss = in.flag();
  out.nonfinite_logit = in.flag();
  out.local_loss_max = in.next();
  out.preempt = in.flag();
  out.generation_max = in.integer();
  out.generation_min = in.minimum();
  out.armed_command_max = in.count();
  out.armed_command_min = in.count_minimum();
  out.pending_digest_max = in.count();
  out.pending_digest_min = in.count_minimum();
  out.replica_digest_max = in.count();
  out.replica_digest_min = in.count_minimum();
  out.prepared_checkpoint_min = in.minimum();
  out.failed_checkpoint_max = in.integer();
  for (optimizer::GroupUpdateStatistics& update : out.update) {
    update.parameter_abs_max = in.next();
    update.momentum_abs_max = in.next();
    update.second_moment_abs_max = in.next();
    update.update_abs_max = in.next();
    update.orthogonality_error_max = in.next();
    const double rank_min = -in.next();
    update.effective_rank_min = std::isfinite(rank_min) ? rank_min : 0.0;
  }
  for (const int heads : layout.heads) {
    std::vector<double>& row = out.max_logits.emplace_back(static_cast<std::size_t>(heads));
    std::generate(row.begin(), row.end(), [&in] { return in.next(); });
  }
  return out;
}

}  // namespace muster::agent
