// SPDX-License-Identifier: Apache-2.0
// The meeting point of a group: all ranks arrive, or all learn why not.
#pragma once

#include "comm/src/group/session.h"

#include <muster/common/clock.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace muster::comm {

// The words of messages about a barrier that cannot be completed. Ranks are those of the group.
class Meeting {
 public:
  // Why rank `r` will not arrive although its session lives on; empty when it may.
  [[nodiscard]] virtual std::string has_left(std::size_t r) const {
    static_cast<void>(r);
    return {};
  }

  // `gone` is the reason: "rank 2 (pid 4711) is dead". It may die after it `arrived`.
  [[nodiscard]] virtual std::string gone(
      std::size_t r, const std::string& gone, bool arrived) const = 0;

  struct Late {
    std::size_t r{0};
    std::string name;  // With its state: "rank 2 (pid 4711, stopped)".
  };

  [[nodiscard]] virtual std::string late(std::span<const Late> ranks) const = 0;

 protected:
  Meeting() = default;
  ~Meeting() = default;
  Meeting(const Meeting&) = default;
  Meeting& operator=(const Meeting&) = default;
  Meeting(Meeting&&) = default;
  Meeting& operator=(Meeting&&) = default;
};

class Barrier {
 public:
  // `members[r]` is the world rank of group rank r.
  Barrier(std::shared_ptr<Session> session, std::size_t group, int rank, std::vector<int> members);

  // Everything that any member wrote before it arrived is visible after the return.
  // kUnavailable names a member that is dead or has left, kDeadlineExceeded one that did not
  // arrive; `meeting` names the place.
  [[nodiscard]] Status arrive_and_wait(Deadline deadline, const Meeting& meeting);

  [[nodiscard]] GroupBlock& block() const { return *block_; }

  [[nodiscard]] const std::vector<int>& members() const { return members_; }

 private:
  [[nodiscard]] bool spin(std::uint32_t epoch) const;
  [[nodiscard]] Status sleep(std::uint32_t epoch, Deadline deadline, const Meeting& meeting);
  [[nodiscard]] Status judge(std::uint32_t epoch, Deadline deadline, const Meeting& meeting);
  [[nodiscard]] bool has_arrived(std::size_t r, std::uint32_t epoch) const;
  [[nodiscard]] std::string describe_late(std::uint32_t epoch, const Meeting& meeting) const;

  std::shared_ptr<Session> session_;
  GroupBlock* block_;
  int rank_;
  std::vector<int> members_;
  int pause_count_;
  int yield_count_;
};

}  // namespace muster::comm
