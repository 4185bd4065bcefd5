// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/policy/policy.h>.
// This header will be removed after the next release.
#pragma once

#include <muster/policy/policy.h>
