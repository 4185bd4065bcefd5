// SPDX-License-Identifier: Apache-2.0
// The collector put together. Tests hand in their own limits and their own store.
#pragma once

#include "collector/src/ingest.h"
#include "collector/src/service_options.h"

#include <muster/collector/collector.h>
#include <muster/policy/policy.h>
#include <muster/store/store.h>

#include <functional>
#include <memory>

namespace muster::collector {

// Opened only after the port is bound: a second start by mistake must not touch the database.
using StoreOpener = std::function<Expected<std::unique_ptr<store::Store>>()>;

[[nodiscard]] Expected<std::unique_ptr<Collector>> start_service(
    const CollectorOptions& options,
    const ServiceOptions& service_options,
    const Policy& policy,
    const Clock& clock,
    const StoreOpener& open_store,
    HistoryReader read_history);

}  // namespace muster::collector
