// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/parallel/experts/exchange/ranks.h"

#include "tests/support/forked_ranks.h"

#include <muster/common/random.h>

#include <gtest/gtest.h>

#include <thread>

namespace muster::parallel::testing {

std::ostream& operator<<(std::ostream& out, RanksAre kind) {
  return out << (kind == RanksAre::kThreads ? "Threads" : "Processes");
}

Status WatchedHeap::barrier(
    std::string_view phase, Deadline deadline, std::span<std::int64_t> waited) {
  phases_.emplace_back(phase);
  if (hook_) {
    hook_(phase);
  }
  std::vector<std::int64_t> own(static_cast<std::size_t>(size()));
  Status status = heap_->barrier(phase, deadline, own);
  waited_.resize(own.size());
  for (std::size_t r = 0; r < own.size(); ++r) {
    waited_[r] += own[r];
    if (!waited.empty()) {
      waited[r] += own[r];
    }
  }
  return status;
}

namespace {

std::string work_with_heap(comm::Communicator& ranks, std::size_t heap_bytes, const Work& work) {
  auto heap = comm::SymmetricHeap::create(ranks, heap_bytes, soon());
  if (!heap) {
    return heap.status().to_string();
  }
  WatchedHeap watched{std::move(*heap)};
  Member member{ranks, watched};
  std::string report = work(member);
  // A heap that goes while a peer still uses it takes that peer's memory with it.
  const Status left = ranks.barrier(soon());
  return report.empty() && !left.ok() ? "leaving: " + left.to_string() : report;
}

}  // namespace

std::string run_member(
    const std::string& session, int rank, int size, std::size_t heap_bytes, const Work& work) {
  comm::ConnectOptions options;
  options.rank = rank;
  options.size = size;
  options.session = session;
  options.heap_bytes_per_rank = std::size_t{1} << 20;
  auto ranks = comm::connect_shm(options, soon());
  return ranks ? work_with_heap(**ranks, heap_bytes, work) : ranks.status().to_string();
}

std::vector<std::string> run_members(
    RanksAre kind, int size, std::size_t heap_bytes, const Work& work) {
  if (kind == RanksAre::kProcesses) {
    const std::string session = new_session();
    return test::run_ranks(
        size, [&](int rank) { return run_member(session, rank, size, heap_bytes, work); });
  }
  const auto group = comm::make_local_group(size);
  std::vector<std::string> reports(group.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < group.size(); ++r) {
    threads.emplace_back([&, r] { reports[r] = work_with_heap(*group[r], heap_bytes, work); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return reports;
}

void expect_members_succeed(RanksAre kind, int size, std::size_t heap_bytes, const Work& work) {
  const std::vector<std::string> reports = run_members(kind, size, heap_bytes, work);
  ASSERT_EQ(reports.size(), static_cast<std::size_t>(size));
  for (std::size_t r = 0; r < reports.size(); ++r) {
    EXPECT_EQ(reports[r], "") << kind << ", rank " << r << " of " << size;
  }
}

std::string new_session() {
  return "ep-" + random_hex_id();
}

void Findings::expect(bool holds, const std::string& what) {
  constexpr int kShown = 4;
  if (!holds && count_++ < kShown) {
    text_ += (text_.empty() ? "" : "; ") + what;
  }
}

void Findings::expect(const Status& status, const std::string& what) {
  expect(status.ok(), what + ": " + status.to_string());
}

}  // namespace muster::parallel::testing
