// SPDX-License-Identifier: Apache-2.0
// Receiver of a launcher's events.
#pragma once

#include <muster/common/ids.h>
#include <muster/common/telemetry.h>

namespace muster::launcher {

// The launcher calls `report` from its thread; it must neither block nor fail.
class EventSink {
 public:
  EventSink() = default;
  EventSink(const EventSink&) = delete;
  EventSink& operator=(const EventSink&) = delete;
  EventSink(EventSink&&) = delete;
  EventSink& operator=(EventSink&&) = delete;
  virtual ~EventSink() = default;

  virtual void report(Generation generation, Event event) = 0;
};

}  // namespace muster::launcher
