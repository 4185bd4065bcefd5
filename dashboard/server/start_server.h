// SPDX-License-Identifier: Apache-2.0
// Server::start with its dependencies handed in: what tests call with a fake store and clock.
#pragma once

#include "dashboard/server/http_service.h"
#include "dashboard/server/query_source.h"

#include <muster/common/clock.h>
#include <muster/dashboard/server.h>

#include <memory>

namespace muster::dashboard {

// `clock` must outlive the server.
[[nodiscard]] Expected<std::unique_ptr<Server>> start_server(
    ServerOptions options, QueryFactory open_query, const Clock& clock, HttpLimits limits = {});

}  // namespace muster::dashboard
