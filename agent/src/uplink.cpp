#include "src/uplink.h"

namespace muster::agent {
class Uplink::Worker {};

Status parse_address(const std::string&, UplinkOptions&) {
  return unimplemented("telemetry to a collector is not in this build yet: unset MUSTER_COLLECTOR");
}

Uplink::Uplink(UplinkOptions, Channel&, const Clock&) {}

Uplink::~Uplink() = default;

void Uplink::start() {}

void Uplink::stop(std::deque<Note>) {}
}  // namespace muster::agent
