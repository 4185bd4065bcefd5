// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/policy/policy.h>.
// This header will be removed after the next release.
#pragma once

#include <muster/policy/policy.h>

namespace muster::collector {

using namespace policy;  // NOLINT(google-build-using-namespace): the old names, for one release

}  // namespace muster::collector
