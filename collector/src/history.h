// SPDX-License-Identifier: Apache-2.0
// Stored history of a run, enough for the detectors to continue after a collector restart.
#pragma once

#include <muster/common/ids.h>
#include <muster/common/telemetry.h>
#include <muster/detect/detector.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace muster::collector {

struct History {
  bool known{false};  // The run has been stored before.
  std::string ended;  // Why, if no event says that it went on since.
  Generation generation;
  std::int64_t last_step{-1};
  std::vector<detect::StepObservation> observations;  // Newest generation, ascending; the last few.
  // Ascending: actions of all generations, changes of attention modes of the newest.
  std::vector<Event> events;
};

// Reads committed data through a separate connection. An unreadable database gives an empty
// history and a log line: judging from scratch is better than not judging.
[[nodiscard]] History read_history(
    const std::filesystem::path& database, const std::string& run_id);

}  // namespace muster::collector
