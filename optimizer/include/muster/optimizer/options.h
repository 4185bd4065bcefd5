// SPDX-License-Identifier: Apache-2.0
// Hyperparameters, with the defaults and why one would change them. The update rules' own are in
// rules/*.h, learning-rate schedules in schedule.h, clipping and loss scaling in guards.h.
#pragma once

#include <muster/common/expected.h>
#include <muster/optimizer/guards.h>
#include <muster/optimizer/parameter.h>
#include <muster/optimizer/rules/adam.h>
#include <muster/optimizer/rules/adamw.h>
#include <muster/optimizer/rules/momentum.h>
#include <muster/optimizer/rules/muon.h>
#include <muster/optimizer/rules/rmsprop.h>
#include <muster/optimizer/schedule.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace muster::optimizer {

// Distribution of parameters over ranks under ZeRO-1 (docs/concepts/zero1_layouts.md). Elementwise
// rules are cut evenly in every layout but kReplicated; the layouts differ in how they treat Muon's
// matrices.
enum class Layout : std::uint8_t {
  // Matrices stay whole, dealt out by bin packing on Newton-Schulz cost. No communication inside
  // the update. The default; best while there are at least as many matrices as ranks.
  kWholeMatrices,
  // One flat buffer in equal shards; a rank with a part of a matrix gathers the rest of its
  // direction and orthogonalises it too (Moonlight, arXiv 2502.16982). Perfectly even memory,
  // repeated work on cut matrices.
  kFlatRedundant,
  // The same shards; parts of a cut matrix go to one of its owners, which sends the result back.
  kFlatOwner,
  // Every matrix in shards of rows (the storage of FSDP); whole matrices are assembled at an owner
  // by an all-to-all and the result goes back by another.
  kRowShards,
  // Every rank stores and updates everything (DDP): no ZeRO, no gather.
  kReplicated,
};

// "whole", "flat_redundant", "flat_owner", "row_shards", "replicated".
[[nodiscard]] const char* to_string(Layout layout);
[[nodiscard]] Expected<Layout> parse_layout(const std::string& name);

struct OptimizerOptions {
  std::vector<RouteRule> routes;
  AdamWOptions adamw;
  MuonOptions muon;
  ScheduleOptions schedule;
  // Global gradient-norm clip, over the token-normalised gradient of all groups. Zero disables it.
  double clip_norm{1.0};

  AdamOptions adam;
  MomentumOptions momentum;
  RmsPropOptions rmsprop;
  ClippingOptions clipping;     // per group, ZClip, AGC
  LossScaleOptions loss_scale;  // used when a parameter is fp16
  Layout layout{Layout::kWholeMatrices};
  // Gradients are reduced and parameters gathered in buckets of whole parameters of about this
  // size, last parameters first. Zero puts everything in one bucket.
  std::size_t bucket_bytes{std::size_t{32} << 20};
  // Moves buckets on a communication thread while backward and forward run: call gradient_ready for
  // each gradient and wait_gathered before reading values. Pays where a core is free for it.
  bool overlap{false};
  // Directions exchanged at once in layouts that move matrices; bounds the scratch memory.
  std::size_t exchange_bytes{std::size_t{256} << 20};
  // Shards of elementwise parameters are cut at multiples of this from the parameter's start. Below
  // 256 only with fp32 and bf16 states.
  std::int64_t cut_granularity{256};
  std::uint64_t seed{0};  // of stochastic rounding
  // Of new 8-bit states. kNearest is a little faster and lets small changes stall.
  kernels::CodeRounding code_rounding{kernels::CodeRounding::kStochastic};
  // Allocator for values and gradients of expert parameters, e.g. the symmetric heap that the
  // experts' exchange reads through. Memory must be zeroed, 64-byte aligned and outlive the
  // optimizer. Called in the same order with the same sizes (in bytes) on ranks that hold experts
  // of the same shapes; parameters of one buffer follow each other in it, each on a multiple of 128
  // bytes. If empty, the communicator allocates.
  std::function<Expected<std::span<std::byte>>(std::size_t bytes)> expert_memory;
  bool statistics{true};  // GroupUpdateStatistics; off saves a few per cent of the update pass
};

}  // namespace muster::optimizer
