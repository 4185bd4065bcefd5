// SPDX-License-Identifier: Apache-2.0
// Reading a checkpoint back, nothing believed that was not checked.
//
// Free functions on a folder; they only read. Every error names the file, and the tensor when it is
// one.
#pragma once

#include "checkpoint/src/manifest.h"
#include "checkpoint/src/rank_record.h"

#include <muster/common/expected.h>
#include <muster/common/hash.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

namespace muster::checkpoint {

// The manifest, with its own hash checked, listing exactly two files per rank.
[[nodiscard]] Expected<Manifest> read_manifest(const std::filesystem::path& folder);

// The fast check: the folder has the manifest's step and generation in its name, every listed file
// has its size, and there is no rank file that is not listed.
[[nodiscard]] Status check_files(const std::filesystem::path& folder, const Manifest& manifest);

[[nodiscard]] Expected<RankRecord> read_record(
    const std::filesystem::path& folder, const Manifest& manifest, int rank);

using ByteCounter = std::function<void(std::uint64_t bytes)>;

// Reads the rank's safetensors file once, from start to end, and checks header, tensor hashes and
// file hash. `count`, if set, is called for every chunk read.
[[nodiscard]] Status check_data(
    const std::filesystem::path& folder, const RankRecord& record, const ByteCounter& count);

// Where the data section of the rank's file begins, once its header was found to list exactly the
// pieces of `record`.
[[nodiscard]] Expected<std::uint64_t> find_data(
    const std::filesystem::path& folder, const RankRecord& record);

// Bytes [from, from + out.size()) of one piece. `data_begin` is find_data's. With `chunks` empty
// all of the piece is read and its hash compared, and `chunks` takes the hashes of its stretches of
// 4 MiB; with those, later calls read and compare only the stretches they need.
[[nodiscard]] Status read_piece_range(
    const std::filesystem::path& folder,
    const RankRecord& record,
    std::uint64_t data_begin,
    std::size_t piece_index,
    std::uint64_t from,
    std::span<std::byte> out,
    std::vector<Hash128>& chunks);

}  // namespace muster::checkpoint
