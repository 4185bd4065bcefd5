// SPDX-License-Identifier: Apache-2.0
#include "collector/src/handshake.h"

#include <muster/common/constant_time.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace muster::collector {

namespace {

constexpr std::size_t kNameBytesMax = 256;

std::string protocol_range(std::uint32_t version_min, std::uint32_t version) {
  return "uses protocol " + std::to_string(version_min) + " to " + std::to_string(version);
}

std::string version_refusal(const wire::Hello& hello, bool peer_is_older) {
  return "the peer " + protocol_range(hello.version_min, hello.version) + ", this collector " +
         protocol_range(wire::kProtocolVersionMin, wire::kProtocolVersion) + ": upgrade muster " +
         (peer_is_older ? "in the training job" : "of the collector");
}

// Empty when the identity makes sense for the role.
std::string identity_refusal(const wire::Hello& hello) {
  const Identity& identity = hello.identity;
  if (hello.role == wire::PeerRole::kOperator) {
    return "";
  }
  if (identity.run_id.empty() || identity.run_id.size() > kNameBytesMax) {
    return "a run id has 1 to 256 bytes; set MUSTER_RUN_ID";
  }
  if (identity.incarnation.empty() || identity.incarnation.size() > kNameBytesMax) {
    return "an incarnation has 1 to 256 bytes";
  }
  if (hello.role == wire::PeerRole::kLauncher) {
    return "";
  }
  if (identity.generation.value() < 1) {
    return "generation " + std::to_string(identity.generation.value()) +
           " is not valid, the first launch is generation 1; set MUSTER_GENERATION";
  }
  if (identity.rank.value() < 0 || identity.rank.value() >= hello.world_size) {
    return "rank " + std::to_string(identity.rank.value()) + " is not in a world of " +
           std::to_string(hello.world_size) + "; set RANK and WORLD_SIZE";
  }
  return "";
}

}  // namespace

std::variant<std::uint32_t, wire::Goodbye> admit(const wire::Hello& hello, std::string_view token) {
  const std::uint32_t version = std::min(hello.version, wire::kProtocolVersion);
  if (version < wire::kProtocolVersionMin) {
    return wire::Goodbye{version_refusal(hello, true), false};
  }
  if (version < hello.version_min) {
    return wire::Goodbye{version_refusal(hello, false), false};
  }
  if (!token.empty() && !equal_in_constant_time(hello.token, token)) {
    return wire::Goodbye{
        "the token is not the one this collector was started with; set MUSTER_TOKEN_FILE to the "
        "same file",
        false};
  }
  if (std::string refusal = identity_refusal(hello); !refusal.empty()) {
    return wire::Goodbye{std::move(refusal), false};
  }
  return version;
}

}  // namespace muster::collector
