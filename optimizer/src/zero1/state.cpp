// What goes into checkpoints and comes back from them.
#include "optimizer/src/state/load.h"
#include "optimizer/src/state/pieces.h"
#include "optimizer/src/zero1/zero1.h"

#include <iomanip>
#include <sstream>

namespace muster::optimizer {

GlobalTensor Zero1Optimizer::global_of(std::size_t parameter) const {
  return global_tensor(
      setup_.routing.parameters[parameter], shaped_[parameter], setup_.expert_position.groups);
}

std::vector<StateTensor> Zero1Optimizer::state() {
  std::vector<StateTensor> tensors;
  for (Part& part : parts_) {
    for (Shard& shard : part.shards) {
      if (!shard.piece.primary) {
        continue;
      }
      const std::size_t index = shard.piece.parameter;
      for (StateTensor& tensor :
           pieces_of_shard(shard, setup_.routing.parameters[index], global_of(index))) {
        tensors.push_back(std::move(tensor));
      }
    }
  }
  return tensors;
}

std::map<std::string, std::string> Zero1Optimizer::state_values() const {
  std::map<std::string, std::string> values;
  std::ostringstream momentum;
  momentum << std::setprecision(17) << setup_.options.muon.momentum;
  values[kAppliedStepsKey] = std::to_string(applied_steps_);
  values[kMomentumFormKey] = to_string(setup_.options.muon.momentum_form);
  values[kMuonMomentumKey] = momentum.str();
  values[kQuantMapKey] = quant_map_text();
  for (const RoutedParameter& parameter : setup_.routing.parameters) {
    values[kRuleKeyPrefix + parameter.spec.name] = to_string(parameter.route.rule);
  }
  return values;
}

Status Zero1Optimizer::load_state(StateSource& source) {
  StateLoader loader{source, setup_.options};
  MUSTER_RETURN_IF_ERROR(loader.check_values());
  for (const Part& part : parts_) {
    for (const PlacedParameter& placed : part.region->plan().placed) {
      MUSTER_RETURN_IF_ERROR(
          loader.check(setup_.routing.parameters[placed.parameter], global_of(placed.parameter)));
    }
  }
  MUSTER_RETURN_IF_ERROR(loader.check_leftovers());
  for (const bool commit : {false, true}) {
    for (Part& part : parts_) {
      for (Shard& shard : part.shards) {
        MUSTER_RETURN_IF_ERROR(
            loader.read(shard, setup_.routing.parameters[shard.piece.parameter], commit));
      }
    }
  }
  applied_steps_ = loader.applied_steps().value_or(applied_steps_);
  return {};
}

}  // namespace muster::optimizer
