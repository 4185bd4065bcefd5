// SPDX-License-Identifier: Apache-2.0
// Checks that all ranks hold the same settings, plan or layout.
//
// Each rank reduces what it holds to a fingerprint, for example hash64 of a text. Equal
// fingerprints mean equal contents.
#pragma once

#include <muster/comm/communicator.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::comm {

// The ranks whose fingerprint is not the most common one. Among equally common fingerprints that of
// the lowest rank wins, so all ranks that compare the same fingerprints name the same ranks.
struct Dissent {
  std::size_t model{0};            // The lowest rank with the most common fingerprint.
  std::vector<std::size_t> ranks;  // Ascending; empty if all ranks agree.
};

// `fingerprints` holds that of rank r at position r, for at least one rank.
[[nodiscard]] Dissent find_dissent(std::span<const std::uint64_t> fingerprints);

// Returns "rank 2 (<16 hex digits>), rank 5 (...) from the other 6 (...)".
[[nodiscard]] std::string describe(
    const Dissent& dissent, std::span<const std::uint64_t> fingerprints);

// Collective: one all-gather. Returns success if all ranks pass the same fingerprint; otherwise
// `code`, with the same message on every rank: "<what> must be the same on all ranks, but
// differ: rank 1 (...) from the other 3 (...)". A rank that cannot compute its fingerprint passes
// std::nullopt so that the others do not wait for it, and then returns its own error; they read
// "rank 1 (refused its own)". Errors of the all-gather are returned with `what` as context.
[[nodiscard]] Status agree(
    Communicator& ranks,
    std::optional<std::uint64_t> fingerprint,
    std::string_view what,
    Deadline deadline,
    StatusCode code = StatusCode::kInvalidArgument);

}  // namespace muster::comm
