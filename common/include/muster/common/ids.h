// SPDX-License-Identifier: Apache-2.0
// Identities that every message and artifact carries: run, generation, rank, step, command.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace muster {

// An integer that cannot be mixed up with another kind of integer.
template <typename Tag, typename T>
class StrongId {
 public:
  constexpr StrongId() = default;

  constexpr explicit StrongId(T value) : value_(value) {}

  [[nodiscard]] constexpr T value() const { return value_; }

  // NOLINTNEXTLINE(modernize-use-nullptr): the 0 of a defaulted comparison is not a pointer.
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

 private:
  T value_{};
};

using Rank = StrongId<struct RankTag, std::int32_t>;
using StepIndex = StrongId<struct StepIndexTag, std::int64_t>;  // Optimizer steps, from 0.
using Generation =
    StrongId<struct GenerationTag, std::int64_t>;  // One launch of the whole job, from 1.
using CommandId = StrongId<struct CommandIdTag, std::uint64_t>;  // Ascending per run, from 1.

// One process of one launch of one run. `incarnation` is random per process start, `run_uid` per
// run: two runs of one name differ in it. Empty: a process that knows none.
struct Identity {
  std::string run_id;
  Generation generation;
  Rank rank;
  std::string incarnation;
  std::string run_uid{};

  friend bool operator==(const Identity&, const Identity&) = default;
};

}  // namespace muster
