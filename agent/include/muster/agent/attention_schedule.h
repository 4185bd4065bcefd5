// Which layers attend how at which step: full attention, or block attention
// (muster/kernels/moba.h).
//
// Block attention adds no parameters, so a layer may switch from step to step. What a run trained
// under belongs to its state all the same: to_string() is what a checkpoint keeps.
//
// Text, the same for a command line and a file:
//   full                          every layer, always
//   moba:BLOCK,TOPK               block attention in every layer, always
//   moba:BLOCK,TOPK,last_full=N   the same, with full attention in the last N layers
// or a rule a line; a layer that no rule names at a step is full there:
//   # the first 29 layers save attention for 9,000 steps
//   steps 0:9000 layers 0-28 moba 4096 12
//   steps 9000: layers 0,2,4-7 moba 512 3 neighbour shared
//   last_full 3
// `steps BEGIN:END` is [BEGIN, END), without END for ever, left out always; `layers` counts from 0,
// ranges include both ends, left out (or `all`) every layer; `last_full N` wins over the rules.
//
// Sans-I/O values; functions of their arguments, for any thread.
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
  std::int64_t end_step{kNoEnd};             // not included
  std::vector<LayerRange> layers;            // empty: all
  std::optional<kernels::MobaOptions> moba;  // nothing: full
};

// As its line in a schedule.
[[nodiscard]] std::string to_string(const AttentionRule& rule);

// Where a schedule is asked.
struct AttentionPlace {
  std::int64_t layer{0};
  std::int64_t layers{0};  // of the model
  std::int64_t step{0};
  std::int64_t sequence{0};  // tokens of the longest sequence
};

enum class AttentionReason : std::uint8_t {
  kNotNamed,       // full: no rule names the layer at the step
  kRule,           // a rule says so
  kLastFull,       // full: among the last layers
  kShortSequence,  // full: its blocks are no more than top_k, so that all would be chosen
};

struct AttentionMode {
  std::optional<kernels::MobaOptions> moba;  // nothing: full
  AttentionReason reason{AttentionReason::kNotNamed};
};

// "moba 512 3", "full", or full with the reason in brackets where a rule did not decide it.
[[nodiscard]] std::string to_string(const AttentionMode& mode);

// The mode without its reason, as events and checkpoints name it: "full", "moba:512,3", and
// "moba:512,3,neighbour,shared" with both of its flags.
[[nodiscard]] std::string label_of(const AttentionMode& mode);

// The same attention, whatever the reason for it.
[[nodiscard]] bool same_attention(const AttentionMode& a, const AttentionMode& b);

struct AttentionSchedule {
  std::vector<AttentionRule> rules;
  std::int64_t last_full{0};  // of the model's last layers

  // kInvalidArgument naming the line, what is wrong there and what to write, or both rules where a
  // layer is named twice for one step.
  [[nodiscard]] static Expected<AttentionSchedule> parse(std::string_view text);

  // What parse() does not know: that all layers are there. Also all that it checks itself, for a
  // schedule made in code.
  [[nodiscard]] Status validate(std::int64_t layers) const;

  // Of a validated schedule. A rule's layers fall back to full where the sequence is short.
  [[nodiscard]] AttentionMode mode_at(const AttentionPlace& place) const;

  // Shortest form; parse() reads it back to the same schedule. Lines end in a newline where there
  // are several.
  [[nodiscard]] std::string to_string() const;

  // "layers 0-2 moba 512 3, layer 3 full (one of the last layers)": all layers at a step.
  [[nodiscard]] std::string describe(
      std::int64_t layers, std::int64_t step, std::int64_t sequence) const;
};

}  // namespace muster::agent
