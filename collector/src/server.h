// SPDX-License-Identifier: Apache-2.0
// The network side: accepts connections, keeps sessions and liveness, feeds the writer's queue and
// carries its answers back.
//
// One I/O thread runs everything; the AnswerSink calls may come from any thread and are posted to
// it.
#pragma once

#include "collector/src/metrics.h"
#include "collector/src/service_options.h"
#include "collector/src/task.h"
#include "collector/src/task_queue.h"

#include <muster/common/clock.h>
#include <muster/common/expected.h>

#include <memory>
#include <string>
#include <vector>

namespace muster::collector {

class Server : public AnswerSink {
 public:
  // Binds; accepts nothing before start(). kAlreadyExists for a port in use, kInvalidArgument for
  // an invalid address. References must outlive the server.
  [[nodiscard]] static Expected<std::unique_ptr<Server>> listen(
      const std::string& address,
      std::string token,
      const ServiceOptions& options,
      const Clock& clock,
      Metrics& metrics,
      TaskQueue& queue);

  [[nodiscard]] virtual std::string address() const = 0;
  // The runs that are stored already. Before start().
  virtual void load(const std::vector<store::RunLine>& lines) = 0;
  virtual void start() = 0;

  // Closes listener and sessions, waits until the last coroutine has ended. The writer must still
  // be working its queue off. Idempotent.
  virtual void stop() = 0;
};

}  // namespace muster::collector
