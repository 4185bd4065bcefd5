// SPDX-License-Identifier: Apache-2.0
// The few metrics that the store itself knows by name, to show them in overviews.
#pragma once

namespace muster::store {

inline constexpr const char* kLossMetric = "train_loss_nats";                  // Job scope.
inline constexpr const char* kComputeSecondsMetric = "train_compute_seconds";  // Rank scope.

}  // namespace muster::store
