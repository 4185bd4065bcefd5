// SPDX-License-Identifier: Apache-2.0
// SharedState as named text values, its form in a checkpoint.
#pragma once

#include <muster/agent/verdict.h>
#include <muster/common/expected.h>

#include <map>
#include <string>

namespace muster::agent {

using TextValues = std::map<std::string, std::string>;

// Keys begin with "agent."; numbers survive bit for bit.
void write_shared_state(const SharedState& state, TextValues& values);

// A checkpoint in flight when the state was written is lost by a restart, so its fields are
// cleared. kDataLoss names a key that is missing or does not parse. Keys of the guards may be
// missing, because the first version did not write them.
[[nodiscard]] Expected<SharedState> read_shared_state(const TextValues& values);

// Shortest text that parses back to the same bits.
[[nodiscard]] std::string exact_text(double value);
[[nodiscard]] Expected<std::int64_t> integer_value(
    const TextValues& values, const std::string& key);
[[nodiscard]] Expected<double> real_value(const TextValues& values, const std::string& key);

}  // namespace muster::agent
