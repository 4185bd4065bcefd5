// SPDX-License-Identifier: Apache-2.0
// One message of every kind, with no field at its default.
#pragma once

#include <muster/wire/messages.h>

#include <string>
#include <utility>
#include <vector>

namespace muster::wire {

[[nodiscard]] MetricSchema sample_schema();
[[nodiscard]] SampleBatch sample_batch();

// (file name of the golden bytes, message), in the order of wire::Message.
[[nodiscard]] std::vector<std::pair<std::string, Message>> all_messages();

}  // namespace muster::wire
