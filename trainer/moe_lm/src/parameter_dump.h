// SPDX-License-Identifier: Apache-2.0
// Dump of the final parameters, for tests that compare runs bit for bit.
#pragma once

#include <muster/common/status.h>
#include <muster/optimizer/optimizer.h>

#include <filesystem>
#include <string>

namespace muster::moe_lm {

// Writes "<path>.rank-<rank>": per parameter its name, a newline and its values as raw fp32.
[[nodiscard]] Status dump_parameters(
    const std::filesystem::path& path, int rank, optimizer::Optimizer& optimizer);

}  // namespace muster::moe_lm
