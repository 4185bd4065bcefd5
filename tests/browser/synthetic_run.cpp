// SPDX-License-Identifier: Apache-2.0
#include "tests/browser/synthetic_run.h"

#include <muster/common/random.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace muster::browser {

namespace {

constexpr std::int64_t kStepNs = 180'000'000;
constexpr std::int64_t kFramesPerBatch = 512;
constexpr std::int32_t kBins = 8;  // of the sequence's blocks
const std::vector<std::string> kGroups{"embedding", "attention", "experts", "router", "head"};
const std::vector<std::string> kPhases{"forward", "backward", "reduce", "optimizer", "gather"};

class SchemaBuilder {
 public:
  void add(
      std::string name,
      std::string unit,
      MetricScope scope,
      std::int32_t layer = -1,
      std::int32_t index = -1,
      std::string group = "") {
    MetricDescriptor metric;
    metric.id = static_cast<std::uint32_t>(schema_.metrics.size());
    metric.name = std::move(name);
    metric.unit = std::move(unit);
    metric.scope = scope;
    metric.layer = layer;
    metric.index = index;
    metric.group = std::move(group);
    schema_.metrics.push_back(std::move(metric));
  }

  [[nodiscard]] MetricSchema take() { return std::move(schema_); }

 private:
  MetricSchema schema_;
};

void add_job_metrics(SchemaBuilder& builder, const RunShape& shape) {
  constexpr MetricScope kJob = MetricScope::kJob;
  builder.add("train_loss_nats", "nats", kJob);
  builder.add("train_loss_local_max_nats", "nats", kJob);
  builder.add("train_grad_norm", "1", kJob);
  builder.add("train_grad_clip_ratio", "ratio", kJob);
  builder.add("train_step_skipped", "1", kJob);
  builder.add("train_lr", "1", kJob);
  builder.add("train_tokens_per_second", "tokens/s", kJob);
  for (const std::string& group : kGroups) {
    for (const char* name :
         {"train_update_rms",
          "train_update_param_ratio",
          "train_grad_norm",
          "train_param_norm",
          "train_momentum_norm"}) {
      builder.add(name, "1", kJob, -1, -1, group);
    }
  }
  for (std::int32_t layer = 0; layer < shape.layers; ++layer) {
    builder.add("train_moe_maxvio_ratio", "ratio", kJob, layer);
    for (std::int32_t head = 0; head < shape.heads; ++head) {
      builder.add("train_attn_logit_max", "1", kJob, layer, head);
    }
    for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
      builder.add("train_moe_expert_tokens", "tokens", kJob, layer, expert);
    }
  }
}

void add_attention_metrics(SchemaBuilder& builder, const RunShape& shape) {
  constexpr MetricScope kJob = MetricScope::kJob;
  for (std::int32_t layer = 0; layer < shape.layers; ++layer) {
    builder.add("train_attn_mode", "1", kJob, layer);
    for (const char* name :
         {"train_attn_query_reach",
          "train_attn_block_reach",
          "train_moba_sink_share",
          "train_ep_rank_imbalance_ratio",
          "train_ep_pad_ratio"}) {
      builder.add(name, "ratio", kJob, layer);
    }
    for (std::int32_t head = 0; head < shape.heads; ++head) {
      builder.add("train_attn_gate_bound", "1", kJob, layer, head);
    }
    for (std::int32_t bin = 0; bin < kBins; ++bin) {
      builder.add("train_moba_block_share", "ratio", kJob, layer, bin);
    }
  }
}

void add_rank_metrics(SchemaBuilder& builder, const RunShape& shape) {
  if (shape.layers == 0) {
    return;
  }
  for (std::int32_t peer = 0; peer < shape.ranks; ++peer) {
    builder.add("train_ep_wait_seconds", "seconds", MetricScope::kRank, -1, peer);
  }
  builder.add("train_ep_plan_seconds", "seconds", MetricScope::kRank);
  builder.add("train_ep_move_seconds", "seconds", MetricScope::kRank);
}

MetricSchema make_schema(const RunShape& shape, std::int32_t rank) {
  SchemaBuilder builder;
  if (rank == 0) {
    add_job_metrics(builder, shape);
  }
  builder.add("train_step_seconds", "seconds", MetricScope::kRank);
  builder.add("train_compute_seconds", "seconds", MetricScope::kRank);
  for (const std::string& phase : kPhases) {
    builder.add("train_phase_seconds", "seconds", MetricScope::kRank, -1, -1, phase);
  }
  add_rank_metrics(builder, shape);
  if (rank == 0) {
    add_attention_metrics(builder, shape);
  }
  return builder.take();
}

// Standard normal noise that depends on nothing but its arguments.
double noise(
    const MetricDescriptor& metric, std::int64_t generation, std::int32_t rank, std::int64_t step) {
  const auto stream =
      static_cast<std::uint64_t>(rank * 1'000 + static_cast<std::int32_t>(metric.id)) * 64U +
      static_cast<std::uint64_t>(generation);
  Random random{11, stream};
  random.seek(static_cast<std::uint64_t>(step));
  return random.normal();
}

double schedule(double t) {
  return t < 60 ? t / 60 : 0.1 + 0.9 / (1 + (t - 60) / 900);
}

double phase_share(const std::string& group) {
  const auto place = std::find(kPhases.begin(), kPhases.end(), group) - kPhases.begin();
  constexpr double kShares[] = {0.26, 0.46, 0.09, 0.12, 0.07};
  return kShares[place];
}

double group_scale(const std::string& group) {
  const auto place = std::find(kGroups.begin(), kGroups.end(), group) - kGroups.begin();
  return 1.0 + 0.45 * static_cast<double>(place);
}

// Values of attention layers and of expert parallelism; `blocks` is true if the layer chooses
// blocks.
double parallel_value(const MetricDescriptor& metric, bool blocks, double n) {
  if (metric.name == "train_attn_mode") {
    return blocks ? 1 : 0;
  }
  if (metric.name == "train_attn_query_reach" || metric.name == "train_attn_block_reach") {
    return std::clamp((blocks ? 0.42 + 0.06 * metric.layer : 0.97) + 0.01 * n, 0.0, 1.0);
  }
  if (metric.name == "train_moba_sink_share") {
    return blocks ? 0.31 + 0.02 * n : std::numeric_limits<double>::quiet_NaN();
  }
  if (metric.name == "train_moba_block_share") {
    const double share = metric.index == 0 ? 0.3 : 0.1 * (1 + 0.1 * n);
    return blocks ? share : std::numeric_limits<double>::quiet_NaN();
  }
  if (metric.name == "train_attn_gate_bound") {
    return 4 + metric.layer + 0.5 * std::abs(n);
  }
  return metric.name == "train_ep_pad_ratio" ? 0.08 + 0.01 * n
                                             : 1.35 + 0.1 * metric.layer + 0.04 * n;
}

// Rank 2 makes the others wait.
double wait_value(const MetricDescriptor& metric, std::int32_t rank, double n) {
  if (metric.name == "train_ep_plan_seconds") {
    return 9e-6 + 4e-7 * std::abs(n);
  }
  if (metric.name == "train_ep_move_seconds") {
    return 6.2e-3 + 2e-4 * std::abs(n);
  }
  return metric.index == rank ? 0 : (metric.index == 2 ? 3.1e-3 : 0.7e-3) + 1e-4 * std::abs(n);
}

bool is_parallel(const std::string& name) {
  return name.starts_with("train_ep_") || name.starts_with("train_moba_") ||
         (name.starts_with("train_attn_") && name != "train_attn_logit_max");
}

double layered_value(const MetricDescriptor& metric, double t, double n) {
  if (metric.name == "train_attn_logit_max") {
    const bool hot = metric.layer == 2 && metric.index == 1;
    const double growth = hot ? std::min(78.0, 0.11 * t) : 0.012 * t * (1 + metric.index % 3);
    return 6 + 2 * metric.layer + growth + 0.8 * std::abs(n);
  }
  const double drift = std::sin(t / 190 + metric.layer) + std::cos(t / 71 + 2.1 * metric.index);
  if (metric.name == "train_moe_maxvio_ratio") {
    return std::max(0.02, 0.9 * std::exp(-t / 350) + 0.22 + 0.12 * drift + 0.05 * n);
  }
  const double tilt = std::exp(-t / 400) * (metric.index % 4 == 1 ? 1.3 : -0.3);
  return std::max(0.0, 512 * (1 + tilt + 0.16 * drift + 0.06 * n));
}

double group_value(const MetricDescriptor& metric, double t, double n) {
  const double scale = group_scale(metric.group);
  if (metric.name == "train_update_rms") {
    return (metric.group == "attention" || metric.group == "experts" ? 0.2 : 0.23 / scale) +
           0.006 * n;
  }
  if (metric.name == "train_update_param_ratio") {
    return 1.4e-3 * schedule(t) / scale * (1 + 0.05 * n);
  }
  if (metric.name == "train_grad_norm") {
    return (0.25 + 1.1 * std::exp(-t / 150)) / scale * std::exp(0.1 * n);
  }
  if (metric.name == "train_momentum_norm") {
    return 3 / scale * (0.4 + std::exp(-t / 220)) * (1 + 0.02 * n);
  }
  return 40 * scale * (1 + t / 2600);
}

double job_value(
    const RunShape& shape, const MetricDescriptor& metric, std::int64_t step, double n) {
  const auto t = static_cast<double>(step);
  const bool spike = step == shape.spike_step;
  const bool broken = step == shape.nonfinite_step;
  if (broken && (metric.name == "train_loss_nats" || metric.name == "train_grad_norm")) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double loss = 1.62 + 3.9 * std::exp(-t / 130) + 0.55 * std::exp(-t / 900) + 0.035 * n;
  if (metric.name == "train_loss_nats") {
    return spike ? loss + 6 : loss;
  }
  if (metric.name == "train_loss_local_max_nats") {
    return loss + 0.06 + 0.04 * std::abs(n) + (spike ? 7 : 0);
  }
  const double norm = (0.42 + 1.6 * std::exp(-t / 110)) * std::exp(0.13 * n) * (spike ? 30 : 1);
  if (metric.name == "train_grad_norm") {
    return norm;
  }
  if (metric.name == "train_grad_clip_ratio") {
    return std::min(1.0, 1.0 / norm);
  }
  if (metric.name == "train_step_skipped") {
    return broken ? 1 : 0;
  }
  return metric.name == "train_lr" ? 2e-3 * schedule(t) : 23'500 + 420 * n;
}

double rank_value(const MetricDescriptor& metric, std::int32_t rank, double n) {
  const double pace = rank == 2 ? 1.08 : 1.0;
  const double whole = 0.176 + 0.003 * std::abs(n);
  if (metric.name == "train_step_seconds") {
    return whole;
  }
  if (metric.name == "train_compute_seconds") {
    return 0.124 * pace + 0.001 * n;
  }
  return whole * phase_share(metric.group) * (1 + 0.04 * n);
}

}  // namespace

SyntheticRun::SyntheticRun(store::Store& store, RunShape shape)
    : store_(&store), shape_(std::move(shape)) {
  for (std::int32_t rank = 0; rank < shape_.ranks; ++rank) {
    schemas_.push_back(make_schema(shape_, rank));
  }
}

Identity SyntheticRun::identity(std::int32_t rank) const {
  return {
      shape_.run_id,
      Generation{generation_},
      Rank{rank},
      "i" + std::to_string(generation_) + "-" + std::to_string(rank)};
}

Status SyntheticRun::launch(std::int64_t step) {
  ++generation_;
  next_step_ = step;
  seqs_.assign(static_cast<std::size_t>(shape_.ranks), 0);
  lost_.assign(static_cast<std::size_t>(shape_.ranks), false);
  for (std::int32_t rank = 0; rank < shape_.ranks; ++rank) {
    MUSTER_RETURN_IF_ERROR(store_->open_session(identity(rank), shape_.ranks).status());
    MUSTER_RETURN_IF_ERROR(
        store_->register_schema(identity(rank), schemas_[static_cast<std::size_t>(rank)]));
  }
  return store_->commit();
}

SampleFrame SyntheticRun::frame(std::int32_t rank, std::int64_t step) const {
  SampleFrame frame;
  frame.step = step;
  for (const MetricDescriptor& metric : schemas_[static_cast<std::size_t>(rank)].metrics) {
    const double n = noise(metric, generation_, rank, step);
    const auto t = static_cast<double>(step);
    const bool blocks = shape_.blocks_from_step >= 0 && step >= shape_.blocks_from_step &&
                        metric.layer < shape_.layers - 1;
    const double value = metric.name.starts_with("train_ep_") && metric.layer < 0
                             ? wait_value(metric, rank, n)
                         : is_parallel(metric.name)           ? parallel_value(metric, blocks, n)
                         : metric.scope == MetricScope::kRank ? rank_value(metric, rank, n)
                         : metric.layer >= 0                  ? layered_value(metric, t, n)
                         : !metric.group.empty()              ? group_value(metric, t, n)
                                                              : job_value(shape_, metric, step, n);
    frame.values.push_back(static_cast<float>(value));
  }
  return frame;
}

Status SyntheticRun::advance(std::int64_t count, std::int64_t wall_unix_ns) {
  const std::int64_t end = next_step_ + count;
  while (next_step_ < end) {
    const std::int64_t batch = std::min(kFramesPerBatch, end - next_step_);
    for (std::int32_t rank = 0; rank < shape_.ranks; ++rank) {
      const auto place = static_cast<std::size_t>(rank);
      if (lost_[place]) {
        continue;
      }
      std::vector<SampleFrame> frames;
      for (std::int64_t step = next_step_; step < next_step_ + batch; ++step) {
        frames.push_back(frame(rank, step));
        frames.back().wall_unix_ns = wall_unix_ns - (end - 1 - step) * kStepNs;
      }
      MUSTER_RETURN_IF_ERROR(
          store_->add_frames(identity(rank), schemas_[place].hash(), seqs_[place] + 1, frames));
      seqs_[place] += frames.size();
      store_->note_heartbeat(identity(rank), next_step_ + batch - 1, 0);
    }
    next_step_ += batch;
    MUSTER_RETURN_IF_ERROR(store_->commit());
  }
  Expected<bool> more = true;
  while (more.ok() && more.value()) {
    more = store_->compact();
  }
  MUSTER_RETURN_IF_ERROR(more.status());
  return store_->commit();
}

Status SyntheticRun::add_event(Event event, std::int32_t rank) {
  MUSTER_RETURN_IF_ERROR(store_->add_event(identity(rank), 0, event));
  return store_->commit();
}

Status SyntheticRun::report(std::int32_t rank, const CommandReport& report) {
  const std::uint64_t seq = ++seqs_[static_cast<std::size_t>(rank)];
  MUSTER_RETURN_IF_ERROR(store_->add_command_report(identity(rank), seq, report));
  return store_->commit();
}

void SyntheticRun::lose_rank(std::int32_t rank) {
  store_->close_session(identity(rank));
  lost_[static_cast<std::size_t>(rank)] = true;
}

}  // namespace muster::browser
