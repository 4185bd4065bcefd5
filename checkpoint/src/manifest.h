// SPDX-License-Identifier: Apache-2.0
// MANIFEST.json: the list of files that makes a folder a checkpoint.
//
// It carries its own XXH3-128, taken over its raw bytes with the 32 hash digits set to '0', so that
// any flipped bit in it is detected. Values, and pure functions on text.
#pragma once

#include <muster/checkpoint/pieces.h>
#include <muster/common/expected.h>
#include <muster/common/ids.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace muster::checkpoint {

struct FileEntry {
  std::string name;
  std::uint64_t bytes{0};
  std::string hash;  // XXH3-128 of the whole file, hex
};

struct Manifest {
  std::string run_id;
  StepIndex step;
  Generation generation;
  int world_size{0};
  std::int64_t sequence{0};
  bool pinned{false};
  std::int64_t committed_unix_ns{0};
  std::string incarnation;  // of the rank that committed
  std::vector<FileEntry> files;
  std::map<std::string, Pieces::Tensor> tensors;  // All ranks must agree on each.
};

[[nodiscard]] std::string encode_manifest(const Manifest& manifest);

// kDataLoss when the text is damaged, kVersionMismatch for one of a newer muster.
[[nodiscard]] Expected<Manifest> decode_manifest(std::string_view text);

}  // namespace muster::checkpoint
