// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/parallel/experts/layer.h>, namespace muster::parallel.
// This header will be removed after the next release.
// The functions it declared, dispatch and combine with their gradients, are now internal to the
// layer of make_all_to_all_layer.
#pragma once

#include <muster/kernels/ep/layer.h>
