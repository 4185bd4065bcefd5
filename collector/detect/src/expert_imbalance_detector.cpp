// SPDX-License-Identifier: Apache-2.0
#include <muster/common/text.h>
#include <muster/detect/expert_imbalance_detector.h>

#include <cmath>
#include <string>

namespace muster::detect {

namespace {

// Floor of a ratio that is 1 at best. The expert phase of a step takes as long as its busiest rank;
// an imbalance that costs it less than a quarter is not worth a finding.
constexpr ScaleFloor kRhoFloor{.absolute = 0.05, .relative = 0.05};
constexpr ScaleFloor kMaxvioFloor{.absolute = 0.02, .relative = 0.05};

void push(RobustWindow& rho, RobustWindow& maxvio, const ExpertLayer& seen) {
  rho.push(seen.rank_imbalance);
  if (std::isfinite(seen.maxvio)) {
    maxvio.push(seen.maxvio);
  }
}

}  // namespace

ExpertImbalanceDetector::Layer::Layer(std::size_t window)
    : rho(window, kRhoFloor), maxvio(window, kMaxvioFloor) {}

std::vector<Finding> ExpertImbalanceDetector::observe(const StepObservation& observation) {
  std::vector<Finding> findings;
  for (const ExpertLayer& seen : observation.experts) {
    if (!std::isfinite(seen.rank_imbalance)) {
      continue;
    }
    Layer& layer = layers_.try_emplace(seen.layer, options_.window).first->second;
    if (layer.rho.size() < options_.warmup) {
      push(layer.rho, layer.maxvio, seen);
      continue;
    }
    const double z = layer.rho.z(seen.rank_imbalance);
    const double maxvio_z = std::isfinite(seen.maxvio) ? layer.maxvio.z(seen.maxvio) : 0.0;
    const bool high = z > options_.z;
    if (layer.streak.update(high && maxvio_z <= options_.maxvio_z, options_.steps)) {
      Finding& finding = findings.emplace_back();
      finding.rule = "expert_imbalance";
      finding.severity = Severity::kWarning;
      finding.step = observation.step;
      finding.subject = "layer " + std::to_string(seen.layer);
      finding.reason = concat(
          "the busiest rank of expert layer ",
          seen.layer,
          " has ",
          general(seen.rank_imbalance, 3),
          " times the mean load, usually ",
          general(layer.rho.median(), 3),
          " (",
          fixed(z, 1),
          " robust deviations, ",
          options_.steps,
          " steps in a row up to step ",
          observation.step,
          "), while the experts' own imbalance maxvio ",
          general(seen.maxvio, 3),
          " is as usual: busy experts lie on one rank; place or copy them elsewhere");
      finding.inputs = {
          {"layer", static_cast<double>(seen.layer)},
          {"rank_imbalance", seen.rank_imbalance},
          {"median", layer.rho.median()},
          {"z", z},
          {"z_threshold", options_.z},
          {"maxvio", seen.maxvio},
          {"maxvio_z", maxvio_z},
          {"steps", static_cast<double>(options_.steps)}};
    }
    remember(layer, seen, high);
  }
  return findings;
}

void ExpertImbalanceDetector::remember(Layer& layer, const ExpertLayer& seen, bool freeze) const {
  if (!freeze) {
    layer.frozen.clear();
    push(layer.rho, layer.maxvio, seen);
    return;
  }
  layer.frozen.push_back(seen);
  if (layer.frozen.size() < options_.freeze_steps_max) {
    return;
  }
  layer.rho.clear();
  layer.maxvio.clear();
  for (const ExpertLayer& held : layer.frozen) {
    push(layer.rho, layer.maxvio, held);
  }
  layer.frozen.clear();
}

}  // namespace muster::detect
