// Which attention mode every layer is in at a step: what baselines are kept apart by.
//
// A step's own samples say whether a layer is full or in block attention: they come with the values
// that are judged, in step order, once. Events are asked for one thing that samples leave out,
// which blocks and how many: an event that is late, repeated or lost can give a baseline the wrong
// name, but never move a step to the baseline of the other kind.
//
// A value; copy it to fork a simulation. Not thread-safe.
#pragma once

#include <muster/detect/detector.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace muster::detect {

// What an "attention_mode_changed" event says. Texts are "full" or "moba:BLOCK,TOPK".
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
  static constexpr int kFull = 0;  // Larger numbers: block attention, one number per variant.

  // Forgets modes and variants, but not what was said of this or a later generation.
  void begin(std::int64_t generation);

  // Saying the same twice changes nothing; older generations are ignored.
  void note(const ModeChange& change);

  // Steps in ascending order. A layer without a mode keeps the one it had.
  void observe(const StepObservation& observation);

  // kUnknown for a layer that never said.
  [[nodiscard]] int mode_of(int layer) const;

  // "full", "moba:512,3", "block attention" when only the kind is known, "" when nothing is.
  [[nodiscard]] std::string text_of(int layer) const;

  // The modes of all layers, ascending by layer: equal for equal sets of modes.
  [[nodiscard]] const std::vector<int>& all() const { return all_; }

  // How often a layer went from one known mode to another.
  [[nodiscard]] std::uint64_t switch_count() const { return switch_count_; }

 private:
  struct Change {
    std::string from;
    std::string to;
  };

  struct Layer {
    std::map<std::int64_t, Change> changes;  // By step; the newest kChangesMax.
    std::vector<std::string> variants;  // Of block attention; mode 1 is the first. "": unnamed.
    int mode{kUnknown};
  };

  void take(const ModeChange& change);
  [[nodiscard]] static int block_mode(Layer& layer, std::int64_t step);

  std::int64_t generation_{-1};
  std::map<int, Layer> layers_;
  std::vector<ModeChange> ahead_;  // Of generations that have not begun; at most kChangesMax.
  std::vector<int> all_;
  std::uint64_t switch_count_{0};
};

}  // namespace muster::detect
