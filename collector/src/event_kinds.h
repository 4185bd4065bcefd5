// Kinds of events of agents that the collector itself reads.
#pragma once

namespace muster::collector {

// Labels "layer", "from" and "to"; its step is the first one in the new mode.
inline constexpr const char* kAttentionModeChanged = "attention_mode_changed";

}  // namespace muster::collector
