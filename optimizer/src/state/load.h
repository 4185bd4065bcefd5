// SPDX-License-Identifier: Apache-2.0
// Loads saved state: checks everything, reads every byte this rank needs once to verify that it can
// be read, then reads it again into place. Reading twice avoids a second copy of the state in
// memory.
#pragma once

#include "optimizer/src/state/pieces.h"
#include "optimizer/src/storage/shard.h"
#include "optimizer/src/update/update.h"

#include <muster/optimizer/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace muster::optimizer {

class StateLoader {
 public:
  StateLoader(StateSource& source, const OptimizerOptions& options);

  // Checks momentum form and coefficient, step count and 8-bit maps.
  [[nodiscard]] Status check_values();
  // Checks that the tensors of one parameter exist, with its shape, a known type and the same rule.
  [[nodiscard]] Status check(const RoutedParameter& parameter, const GlobalTensor& global);
  // Call after check() of all parameters; checks that every tensor under our names is loaded.
  [[nodiscard]] Status check_leftovers();

  // Reads everything of the shard; writes it only when `commit`, else checks that it is finite.
  [[nodiscard]] Status read(ShardState& shard, const RoutedParameter& parameter, bool commit);

  // Empty if the checkpoint does not have it.
  [[nodiscard]] std::optional<std::int64_t> applied_steps() const { return applied_steps_; }

 private:
  // A saved state tensor as it is.
  struct Saved {
    std::string name;
    std::string absmax_name;  // U8 only
    StateType type{StateType::kFloat32};
    bool is_signed{true};
  };

  [[nodiscard]] Expected<const StateSource::Tensor*> find(
      const std::string& name, const RoutedParameter& parameter);
  [[nodiscard]] Status check_state(
      const StateKind& kind, const RoutedParameter& parameter, const GlobalTensor& global);
  [[nodiscard]] Status read_parameter(
      ShardState& shard, const RoutedParameter& parameter, bool commit);
  [[nodiscard]] Status read_state(
      StateBuffer& state, const ShardState& shard, const Saved& saved, double factor, bool commit);
  [[nodiscard]] Status read_codes(
      StateBuffer& state, const ShardState& shard, const Saved& saved, double factor, bool commit);
  [[nodiscard]] Status read_part(
      StateBuffer& state,
      const ShardState& shard,
      const Saved& saved,
      double factor,
      std::size_t begin,
      std::size_t count,
      bool commit);
  // kDataLoss naming the tensor and its group if one of its values is NaN or infinite.
  [[nodiscard]] Status check_finite(
      const std::string& name, std::span<const std::byte> bytes, StateType type) const;
  // Elements [begin, begin + out.size()) of the global tensor, in fp32.
  [[nodiscard]] Status widen(
      const Saved& saved, std::size_t unit, std::int64_t begin, std::span<float> out);
  [[nodiscard]] Status dequantise(
      const Saved& saved, std::size_t unit, std::int64_t begin, std::span<float> out);

  StateSource* source_;
  const OptimizerOptions* options_;
  std::map<std::string, Saved> saved_;  // by name
  std::set<std::string> expected_;
  std::optional<std::int64_t> applied_steps_;
  std::string group_;             // of the parameter that is read
  double momentum_factor_{1};     // from the saved form of Muon's momentum to this optimizer's
  std::vector<float> values_;     // scratch of one part
  std::vector<std::byte> bytes_;  // scratch of one part
};

}  // namespace muster::optimizer
