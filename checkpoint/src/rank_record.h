// SPDX-License-Identifier: Apache-2.0
// rank-<r>.json: index of the tensors and values that one rank saved, with the hashes of its
// snapshot.
//
// Values, and pure functions on text.
#pragma once

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/expected.h>
#include <muster/common/hash.h>
#include <muster/common/ids.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace muster::checkpoint {

// A tensor piece and its position in the data section.
struct PieceRecord : TensorSummary {
  std::uint64_t begin{0};
  std::uint64_t end{0};
  std::string hash;  // XXH3-128 of the piece's bytes, hex
};

struct RankRecord {
  Identity identity;
  int world_size{1};
  StepIndex step;
  std::int64_t sequence{0};
  std::string file;  // the safetensors file beside it
  std::uint64_t file_bytes{0};
  std::string file_hash;            // XXH3-128 of the whole file, hex
  std::vector<PieceRecord> pieces;  // in the caller's order
  std::map<std::string, std::string> values;
};

// kInvalidArgument when a name is not UTF-8. Values may hold any bytes.
[[nodiscard]] Expected<std::string> encode_record(const RankRecord& record);

// kDataLoss for text that is not a record, kVersionMismatch for a record of a newer muster.
[[nodiscard]] Expected<RankRecord> decode_record(std::string_view text);

}  // namespace muster::checkpoint
