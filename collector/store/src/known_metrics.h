// The few metrics that the store itself knows by name, to show them in overviews.
#pragma once

namespace muster::store {

inline constexpr const char* kLossMetric = "loss";                       // Job scope, nats.
inline constexpr const char* kComputeSecondsMetric = "compute_seconds";  // Rank scope.

}  // namespace muster::store
