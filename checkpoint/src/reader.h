// Reading a checkpoint back, nothing believed that was not checked.
//
// Free functions on a folder; they only read. Every error names the file, and the tensor when it is
// one.
#pragma once

#include "manifest.h"
#include "record.h"

#include <muster/common/expected.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

namespace muster::checkpoint {

// The manifest, with its own hash checked, listing exactly two files per rank.
[[nodiscard]] Expected<Manifest> read_manifest(const std::filesystem::path& folder);

// The fast check: the folder has the manifest's step and generation in its name, every listed file
// has its size, and there is no rank file that is not listed.
[[nodiscard]] Status check_files(const std::filesystem::path& folder, const Manifest& manifest);

[[nodiscard]] Expected<RankRecord> read_record(
    const std::filesystem::path& folder, const Manifest& manifest, int rank);

// Asked for each piece in file order: where its bytes go (as many as the piece has), or an empty
// span to have them checked only.
using PieceTarget = std::function<std::span<std::byte>(std::size_t piece_index)>;
using ByteCounter = std::function<void(std::uint64_t bytes)>;

// Reads the rank's safetensors file once, from start to end, and checks header, tensor hashes and
// file hash. `count`, if set, hears of every stretch read.
[[nodiscard]] Status read_pieces(
    const std::filesystem::path& folder,
    const RankRecord& record,
    const PieceTarget& target,
    const ByteCounter& count);

}  // namespace muster::checkpoint
