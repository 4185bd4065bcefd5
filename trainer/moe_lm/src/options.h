// SPDX-License-Identifier: Apache-2.0
// Options of moe_lm, and their checks against the world it runs in.
#pragma once

#include "trainer/moe_lm/src/expert_options.h"
#include "trainer/moe_lm/src/update_options.h"

#include <muster/agent/attention_schedule.h>
#include <muster/common/status.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace muster::moe_lm {

// Sizes of the model. Byte vocabulary; head dimension = d_model / heads.
struct ModelShape {
  static constexpr std::int64_t kVocab = 256;
  std::int64_t layers{4};
  std::int64_t d_model{128};
  std::int64_t heads{4};
  std::int64_t experts{8};
  std::int64_t top_k{2};
  std::int64_t ffn{128};
  std::int64_t sequence{128};
  std::int64_t shared_experts{
      0};  // width of an expert that all tokens visit, in widths of an expert

  [[nodiscard]] std::int64_t head_dim() const { return d_model / heads; }
};

// Rank and step of an injected fault.
struct FaultPoint {
  int rank{0};
  std::int64_t step{0};
};

struct TrainOptions {
  ModelShape model;
  std::filesystem::path data;
  std::int64_t needle_pairs{0};  // pairs of src/needle.h; zero trains on text
  std::int64_t steps{300};
  std::uint64_t seed{1};
  std::int64_t batch{16};         // sequences per step, over all ranks
  std::int64_t micro_batches{1};  // forward-backward passes per step and rank
  int ep_size{0};                 // ranks that share one set of experts; zero selects 2 or 1
  std::int64_t loss_every{1};     // only every n-th token of a sequence has loss
  double learning_rate{4e-3};
  std::int64_t warmup{20};
  double clip_norm{1.0};
  double qk_clip_tau{0};
  agent::AttentionSchedule attention;  // full attention in all layers by default
  bool allow_attention_change{false};  // compared with the checkpoint
  UpdateOptions update;
  ExpertOptions experts;
  double bias_rate{1e-3};  // step of the router bias that balances expert load
  std::int64_t checkpoint_interval{0};
  std::optional<FaultPoint> inject_nan;          // in a gradient
  std::optional<FaultPoint> inject_nan_forward;  // in the activations
  std::optional<FaultPoint> inject_kill;
  std::optional<std::int64_t> leave_out_batch;
  std::filesystem::path dump_params;
  std::filesystem::path log_loss;
  std::int64_t print_every{10};
  std::int64_t skips_max{100};      // of the last 200 steps; more end the run; zero disables
  std::int64_t eval_every{0};       // steps between evaluations, also at the end; zero disables
  std::int64_t eval_sequences{64};  // over all ranks
};

// Replaces an ep_size of 0 by the default for `world_size`.
void choose_ep_size(TrainOptions& options, int world_size);

// Number of tokens in a sequence that count in the loss.
[[nodiscard]] std::int64_t tokens_with_loss(const TrainOptions& options);

// Returns kInvalidArgument naming the flag that does not fit the model, the world or other flags.
[[nodiscard]] Status validate(const TrainOptions& options, int world_size);

// Parses --attention: a schedule in short form ("full", "moba:..."), or the name of a file with
// one. Errors name the file.
[[nodiscard]] Expected<agent::AttentionSchedule> load_attention(const std::string& argument);

// Parses "2:40" as {2, 40}. Returns no value unless both are numbers of at least 0.
[[nodiscard]] std::optional<FaultPoint> parse_fault_point(const std::string& text);

}  // namespace muster::moe_lm
