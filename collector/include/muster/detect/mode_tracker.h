// SPDX-License-Identifier: Apache-2.0
// Attention mode of every layer at a step: the key by which baselines are separated.
//
// Full or block attention is read from the step's samples, which arrive with the judged values, in
// step order, once. Events supply only what samples leave out, the size and number of blocks. An
// event that is late, repeated or lost can therefore give a baseline the wrong name, but never move
// a step to a baseline of the other kind.
//
// A value; copy it to fork a simulation. Not thread-safe.
#pragma once

#include <muster/detect/detector.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace muster::detect {

// Content of an "attention_mode_changed" event. Texts are "full" or "moba:BLOCK,TOPK".
struct ModeChange {
  std::int64_t generation{0};
  std::int64_t step{0};  // The first step in the new mode.
  int layer{-1};
  std::string from;
  std::string to;
};

class ModeTracker {
 public:
  static constexpr int kUnknown = -1;
  static constexpr int kFull = 0;  // Larger numbers are variants of block attention.

  // Forgets modes and variants, but keeps changes recorded for this or a later generation.
  void begin(std::int64_t generation);

  // Records a change. Repetitions have no effect; older generations are ignored.
  void note(const ModeChange& change);

  // Takes steps in ascending order. A layer without a mode keeps the one it had.
  void observe(const StepObservation& observation);

  // Returns kUnknown for a layer that has not reported a mode.
  [[nodiscard]] int mode_of(int layer) const;

  // Returns "full" or "moba:512,3"; "block attention" if only the kind is known; "" if unknown.
  [[nodiscard]] std::string text_of(int layer) const;

  // Returns the modes of all layers, ascending by layer: equal for equal sets of modes.
  [[nodiscard]] const std::vector<int>& all() const { return all_; }

  // Returns the number of switches of a layer from one known mode to another.
  [[nodiscard]] std::uint64_t switch_count() const { return switch_count_; }

 private:
  struct Change {
    std::string from;
    std::string to;
  };

  struct Layer {
    std::map<std::int64_t, Change> changes;  // By step; the newest kChangesMax.
    std::vector<std::string> variants;  // Names of modes 1, 2, ...: block attention; may be "".
    int mode{kUnknown};
  };

  void take(const ModeChange& change);
  [[nodiscard]] static int block_mode(Layer& layer, std::int64_t step);

  std::int64_t generation_{-1};
  std::map<int, Layer> layers_;
  std::vector<ModeChange> ahead_;  // Changes in generations to come; at most kChangesMax.
  std::vector<int> all_;
  std::uint64_t switch_count_{0};
};

}  // namespace muster::detect
