// SPDX-License-Identifier: Apache-2.0
// Forwards to muster/common/dtype.h for one release.
#pragma once

#include <muster/common/dtype.h>

namespace muster::kernels {

using AttentionType [[deprecated("use muster::DType")]] = DType;

}  // namespace muster::kernels
