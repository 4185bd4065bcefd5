// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/guards/zclip.h"
#include "optimizer/src/rules/checks.h"

#include <muster/optimizer/guards.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace muster::optimizer {
namespace {

// torch.nn.utils.clip_grad_norm_ adds it, so that a norm of 0 divides nothing.
constexpr double kNormMargin = 1e-6;

double limited(double norm, double clip_norm) {
  return clip_norm > 0 ? std::min(1.0, clip_norm / (norm + kNormMargin)) : 1.0;
}

std::string listed(std::span<const std::string> names) {
  std::string list;
  for (const std::string& name : names) {
    list += list.empty() ? "" : ", ";
    list += name;
  }
  return list;
}

Status check_groups(
    const std::string& what,
    const std::vector<std::string>& named,
    std::span<const std::string> group_names) {
  const auto unknown = std::find_if(named.begin(), named.end(), [&](const std::string& name) {
    return std::find(group_names.begin(), group_names.end(), name) == group_names.end();
  });
  if (unknown != named.end()) {
    return invalid_argument(
        what + ": no route has the group '" + *unknown + "'; the groups are " +
        listed(group_names));
  }
  std::set<std::string> seen;
  const auto twice = std::find_if(named.begin(), named.end(), [&](const std::string& name) {
    return !seen.insert(name).second;
  });
  if (twice != named.end()) {
    return invalid_argument(what + ": group '" + *twice + "' is given twice");
  }
  return {};
}

Status validate_agc(const AgcOptions& agc, std::span<const std::string> group_names) {
  MUSTER_RETURN_IF_ERROR(
      require(std::isfinite(agc.factor) && agc.factor > 0, "clipping.agc.factor must be above 0"));
  MUSTER_RETURN_IF_ERROR(require(
      std::isfinite(agc.epsilon) && agc.epsilon > 0,
      "clipping.agc.epsilon must be above 0: with 0 a row of zeros could never move"));
  return check_groups("clipping.agc.groups", agc.groups, group_names);
}

}  // namespace

Status validate(const ClippingOptions& clipping, std::span<const std::string> group_names) {
  std::vector<std::string> named;
  for (const GroupClip& group : clipping.groups) {
    named.push_back(group.group);
    MUSTER_RETURN_IF_ERROR(require(
        std::isfinite(group.clip_norm) && group.clip_norm > 0,
        "clipping.groups: the clip_norm of group '",
        group.group,
        "' must be above 0"));
  }
  MUSTER_RETURN_IF_ERROR(check_groups("clipping.groups", named, group_names));
  if (clipping.zclip) {
    MUSTER_RETURN_IF_ERROR(validate(*clipping.zclip));
  }
  return clipping.agc ? validate_agc(*clipping.agc, group_names) : Status{};
}

ClipDecision decide_clipping(
    const ClippingOptions& clipping,
    double clip_norm,
    std::span<const std::string> group_names,
    std::span<const double> group_norms,
    GuardState& state) {
  ClipDecision decision;
  std::vector<double> own(group_norms.size(), 0.0);  // 0: none
  for (const GroupClip& group : clipping.groups) {
    const auto at = std::find(group_names.begin(), group_names.end(), group.group);
    const auto index = static_cast<std::size_t>(at - group_names.begin());
    if (index < own.size()) {
      own[index] = group.clip_norm;
    }
  }
  double common_squared = 0;
  for (std::size_t g = 0; g < group_norms.size(); ++g) {
    common_squared += own[g] > 0 ? 0 : group_norms[g] * group_norms[g];
  }
  const double norm = std::sqrt(common_squared);
  double bounded = norm;
  if (clipping.zclip) {
    bounded = zclip(*clipping.zclip, norm, state, decision.spike);
    decision.clip_factor = norm > 0 ? bounded / norm : 1.0;
  }
  decision.clip_factor *= limited(bounded, clip_norm);
  double clipped_squared = common_squared * decision.clip_factor * decision.clip_factor;
  if (!clipping.groups.empty()) {
    decision.group_clip_factors.assign(group_norms.size(), decision.clip_factor);
    for (std::size_t g = 0; g < group_norms.size(); ++g) {
      if (own[g] > 0) {
        const double factor = limited(group_norms[g], own[g]);
        decision.group_clip_factors[g] = factor;
        clipped_squared += group_norms[g] * group_norms[g] * factor * factor;
      }
    }
  }
  decision.clipped_norm = std::sqrt(clipped_squared);
  return decision;
}

}  // namespace muster::optimizer
