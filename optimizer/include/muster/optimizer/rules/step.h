// SPDX-License-Identifier: Apache-2.0
// Common form of the update rules: one shard in, one fused pass, statistics out.
//
// A rule is an options struct, a Status validate(options), and
//   kernels::UpdateStatistics update(const kernels::UpdateTensors&, const kernels::UpdateStep&,
//                                    const Options&);
// Muon, which needs whole matrices, has two halves around the orthogonalisation. No rule
// communicates, allocates or looks at ranks; whether a step is taken at all is decided before
// (docs/concepts/optimizers.md, "The guard").
#pragma once

#include <muster/common/expected.h>
#include <muster/kernels/update_kernels.h>
