// The values of the columns that MetricCatalog::add_layer_metrics and add_ep_rank_metrics add, in
// their order; both sides are in layer_metrics.cpp.
#pragma once

#include "agent/src/metrics/catalog.h"
#include "agent/src/metrics/cursor.h"

namespace muster::agent {

void put_layers(const StepFacts& facts, const LayerColumns& columns, Cursor& out);
void put_ep_rank(const StepFacts& facts, const LayerColumns& columns, Cursor& out);

}  // namespace muster::agent
