// SPDX-License-Identifier: Apache-2.0
// A Gloo context whose every pair of ranks is connected, made within a deadline.
#pragma once

#include "comm/src/gloo/family.h"

#include <muster/common/clock.h>
#include <muster/common/expected.h>

#include <gloo/context.h>
#include <gloo/transport/device.h>

#include <memory>
#include <string>
#include <vector>

namespace muster::comm {

struct GlooMeshOptions {
  int rank{0};
  int size{1};
  std::string store_path;  // A folder that all ranks see.
  std::string prefix;      // Unique per mesh: two meshes never read each other's keys.
};

struct GlooMesh {
  std::shared_ptr<gloo::Context> context;
  std::vector<std::string> names;        // names[r]: "rank 2 (pid 4711 on host a)".
  std::vector<GlooFamily::Link> links;   // One per peer.
  std::vector<std::string> store_files;  // Written by this rank; to be removed once all have read.
};

// kDeadlineExceeded names the first rank that did not come. `family` keeps what is left of a mesh
// that could not be connected.
[[nodiscard]] Expected<GlooMesh> connect_gloo_mesh(
    std::shared_ptr<gloo::transport::Device> device,
    const GlooMeshOptions& options,
    GlooFamily& family,
    Deadline deadline);

// For Gloo, which counts in milliseconds: at least 1, at most a day.
[[nodiscard]] std::chrono::milliseconds gloo_timeout(Deadline deadline);

}  // namespace muster::comm
