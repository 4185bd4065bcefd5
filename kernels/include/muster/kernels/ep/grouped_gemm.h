// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/kernels/grouped_gemm.h>.
// This header will be removed after the next release.
#pragma once

#include <muster/kernels/grouped_gemm.h>
