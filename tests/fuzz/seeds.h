// SPDX-License-Identifier: Apache-2.0
// Valid inputs of every fuzz target, from the real encoders and small files of the tree.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace muster::fuzz {

// By target: "wire" for fuzz_wire.
[[nodiscard]] std::map<std::string, std::vector<std::string>> all_seeds();

}  // namespace muster::fuzz
