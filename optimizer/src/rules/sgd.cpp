// SPDX-License-Identifier: Apache-2.0
#include <muster/optimizer/rules/sgd.h>

namespace muster::optimizer {

kernels::UpdateStatistics update_sgd(
    const kernels::UpdateTensors& tensors, const kernels::UpdateStep& step) {
  return kernels::sgd_update(tensors, step);
}

}  // namespace muster::optimizer
