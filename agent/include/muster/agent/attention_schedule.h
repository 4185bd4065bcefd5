// SPDX-License-Identifier: Apache-2.0
// Schedule of attention by layer and step: full, or block attention (muster/kernels/moba.h).
//
// Block attention adds no parameters, so a layer may switch from step to step. The schedule is
// still part of a run's state: a checkpoint keeps to_string().
//
// Text, the same for a command line and a file:
//   full                          every layer, always
//   moba:BLOCK,TOPK               block attention in every layer, always
//   moba:BLOCK,TOPK,last_full=N   the same, with full attention in the last N layers
// or one rule per line; a layer that no rule names at a step has full attention:
//   # the first 29 layers save attention for 9,000 steps
//   steps 0:9000 layers 0-28 moba 4096 12
//   steps 9000: layers 0,2,4-7 moba 512 3 neighbour shared
//   last_full 3
// `steps BEGIN:END` is [BEGIN, END) and may omit END; without it a rule applies to every step.
// `layers` counts from 0, and ranges include both ends; without it, or with `all`, a rule applies
// to every layer. `last_full N` overrides the rules.
//
// Sans-I/O values and pure functions; thread-safe.
#pragma once

#include <muster/common/expected.h>
#include <muster/kernels/moba.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::agent {

// Layers first to last, both included.
struct LayerRange {
  std::int64_t first{0};
  std::int64_t last{0};

  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

struct AttentionRule {
  static constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();

  std::int64_t begin_step{0};
  std::int64_t end_step{kNoEnd};             // exclusive
  std::vector<LayerRange> layers;            // every layer if empty
  std::optional<kernels::MobaOptions> moba;  // full attention if nullopt
};

// The rule's line in a schedule.
[[nodiscard]] std::string to_string(const AttentionRule& rule);

// A layer at a step, for which a schedule has a mode.
struct AttentionPlace {
  std::int64_t layer{0};
  std::int64_t layers{0};  // of the model
  std::int64_t step{0};
  std::int64_t sequence{0};  // tokens of the longest sequence
};

enum class AttentionReason : std::uint8_t {
  kNotNamed,       // full, because no rule names the layer at the step
  kRule,           // as a rule specifies
  kLastFull,       // full, because the layer is one of the last
  kShortSequence,  // full, because there are at most top_k blocks and all would be chosen
};

struct AttentionMode {
  std::optional<kernels::MobaOptions> moba;  // full attention if nullopt
  AttentionReason reason{AttentionReason::kNotNamed};
};

// "moba 512 3", "full", or full with the reason in brackets where a rule did not decide it.
[[nodiscard]] std::string to_string(const AttentionMode& mode);

// The mode without its reason, as events and checkpoints name it: "full", "moba:512,3", and
// "moba:512,3,neighbour,shared" with both of its flags.
[[nodiscard]] std::string label_of(const AttentionMode& mode);

// True if the modes differ at most in their reason.
[[nodiscard]] bool same_attention(const AttentionMode& a, const AttentionMode& b);

struct AttentionSchedule {
  std::vector<AttentionRule> rules;
  std::int64_t last_full{0};  // number of last layers with full attention

  // kInvalidArgument names the line, the mistake and the remedy, or both rules if they name a layer
  // for the same step.
  [[nodiscard]] static Expected<AttentionSchedule> parse(std::string_view text);

  // Checks that all layers exist, which parse() cannot know, and everything that parse() checks,
  // for a schedule made in code.
  [[nodiscard]] Status validate(std::int64_t layers) const;

  // The schedule must be valid. A rule's layers fall back to full if the sequence is short.
  [[nodiscard]] AttentionMode mode_at(const AttentionPlace& place) const;

  // Shortest form; parse() reads it back to the same schedule. Lines end in a newline if there are
  // several.
  [[nodiscard]] std::string to_string() const;

  // "layers 0-2 moba 512 3, layer 3 full (one of the last layers)": all layers at a step.
  [[nodiscard]] std::string describe(
      std::int64_t layers, std::int64_t step, std::int64_t sequence) const;
};

}  // namespace muster::agent
