// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/start_server.h"

#include <utility>

namespace muster::dashboard {

Expected<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  static const SystemClock kClock;  // Stateless.
  const std::filesystem::path database = options.database;
  return start_server(
      std::move(options), [database] { return store::Query::open(database); }, kClock);
}

}  // namespace muster::dashboard
