// SPDX-License-Identifier: Apache-2.0
// Names of rules and layouts, as configuration files, checkpoints and plans write them.
#include <muster/optimizer/options.h>

namespace muster::optimizer {

const char* to_string(Rule rule) {
  switch (rule) {
    case Rule::kAdamW:
      return "adamw";
    case Rule::kMuon:
      return "muon";
    case Rule::kSgd:
      return "sgd";
    case Rule::kMomentum:
      return "momentum";
    case Rule::kRmsProp:
      return "rmsprop";
    case Rule::kAdam:
      return "adam";
  }
  return "unknown";
}

Expected<Rule> parse_rule(const std::string& name) {
  for (const Rule rule :
       {Rule::kAdamW, Rule::kMuon, Rule::kSgd, Rule::kMomentum, Rule::kRmsProp, Rule::kAdam}) {
    if (name == to_string(rule)) {
      return rule;
    }
  }
  return invalid_argument(
      "unknown update rule '" + name + "'; use adamw, muon, sgd, momentum, rmsprop or adam");
}

const char* to_string(Layout layout) {
  switch (layout) {
    case Layout::kWholeMatrices:
      return "whole";
    case Layout::kFlatRedundant:
      return "flat_redundant";
    case Layout::kFlatOwner:
      return "flat_owner";
    case Layout::kRowShards:
      return "row_shards";
    case Layout::kReplicated:
      return "replicated";
  }
  return "unknown";
}

Expected<Layout> parse_layout(const std::string& name) {
  for (const Layout layout :
       {Layout::kWholeMatrices,
        Layout::kFlatRedundant,
        Layout::kFlatOwner,
        Layout::kRowShards,
        Layout::kReplicated}) {
    if (name == to_string(layout)) {
      return layout;
    }
  }
  return invalid_argument(
      "unknown layout '" + name +
      "'; use whole, flat_redundant, flat_owner, row_shards or replicated");
}

}  // namespace muster::optimizer
