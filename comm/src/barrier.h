// The meeting point of a group: all ranks arrive, or all learn why not.
#pragma once

#include "src/session.h"

#include <muster/common/clock.h>

#include <memory>
#include <string>
#include <vector>

namespace muster::comm {

class Barrier {
 public:
  // `members[r]` is the world rank of group rank r.
  Barrier(std::shared_ptr<Session> session, std::size_t group, int rank, std::vector<int> members);

  // Everything that any member wrote before it arrived is visible after the return.
  // kUnavailable names a member that is dead or has left, kDeadlineExceeded one that did not
  // arrive; `call` says where.
  [[nodiscard]] Status arrive_and_wait(Deadline deadline, const CallName& call);

  [[nodiscard]] GroupBlock& block() const { return *block_; }

  [[nodiscard]] const std::vector<int>& members() const { return members_; }

 private:
  [[nodiscard]] bool spin(std::uint32_t epoch) const;
  [[nodiscard]] Status sleep(std::uint32_t epoch, Deadline deadline, const CallName& call);
  [[nodiscard]] Status judge(std::uint32_t epoch, Deadline deadline, const CallName& call);
  [[nodiscard]] std::string list_missing(std::uint32_t epoch) const;

  std::shared_ptr<Session> session_;
  GroupBlock* block_;
  int rank_;
  std::vector<int> members_;
  int pause_count_;
  int yield_count_;
};

}  // namespace muster::comm
