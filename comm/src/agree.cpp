// SPDX-License-Identifier: Apache-2.0
#include <muster/comm/agree.h>
#include <muster/common/text.h>

#include <algorithm>

namespace muster::comm {

namespace {

// In place of the fingerprint of a rank that has none.
constexpr std::uint64_t kRefused = 0;

std::string text(std::uint64_t fingerprint) {
  return fingerprint == kRefused ? "refused its own" : to_hex(fingerprint);
}

}  // namespace

Dissent find_dissent(std::span<const std::uint64_t> fingerprints) {
  Dissent dissent;
  std::ptrdiff_t votes_max = 0;
  for (std::size_t r = 0; r < fingerprints.size(); ++r) {
    const auto votes = std::count(fingerprints.begin(), fingerprints.end(), fingerprints[r]);
    if (votes > votes_max) {
      dissent.model = r;
      votes_max = votes;
    }
  }
  for (std::size_t r = 0; r < fingerprints.size(); ++r) {
    if (fingerprints[r] != fingerprints[dissent.model]) {
      dissent.ranks.push_back(r);
    }
  }
  return dissent;
}

std::string describe(const Dissent& dissent, std::span<const std::uint64_t> fingerprints) {
  std::string list;
  for (const std::size_t r : dissent.ranks) {
    list += concat(list.empty() ? "" : ", ", "rank ", r, " (", text(fingerprints[r]), ")");
  }
  return concat(
      list,
      " from the other ",
      fingerprints.size() - dissent.ranks.size(),
      " (",
      text(fingerprints[dissent.model]),
      ")");
}

Status agree(
    Communicator& ranks,
    std::optional<std::uint64_t> fingerprint,
    std::string_view what,
    Deadline deadline,
    StatusCode code) {
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<std::int64_t> gathered(size, 0);
  // A fingerprint of zero must not look like a refusal.
  const std::uint64_t own = fingerprint ? std::max<std::uint64_t>(*fingerprint, 1) : kRefused;
  gathered[static_cast<std::size_t>(ranks.rank())] = static_cast<std::int64_t>(own);
  const std::vector<std::size_t> counts(size, 1);
  MUSTER_RETURN_IF_ERROR(
      ranks.all_gather(std::span{gathered}, counts, deadline).context(concat("comparing ", what)));
  const std::vector<std::uint64_t> fingerprints(gathered.begin(), gathered.end());
  const Dissent dissent = find_dissent(fingerprints);
  if (dissent.ranks.empty()) {
    return {};
  }
  return Status{
      code,
      concat(
          what, " must be the same on all ranks, but differ: ", describe(dissent, fingerprints))};
}

}  // namespace muster::comm
