// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes over shared memory, as a job on one host has them.
#include "tests/support/forked_ranks.h"
#include "tests/unit/parallel/context/case.h"

#include <unistd.h>

namespace muster::parallel {
namespace {

using test::ContextCase;
using test::ContextNumbers;
using test::ContextResult;

void expect_processes_agree(const ContextCase& c) {
  SCOPED_TRACE(c.name());
  static int calls = 0;
  const std::string session = "context-" + std::to_string(getpid()) + "-" + std::to_string(++calls);
  const ContextNumbers n(c);
  const ContextResult one = run_alone(c, n);
  ASSERT_TRUE(one.status.ok()) << one.status.to_string();
  const auto reports = muster::test::run_ranks(c.ranks, [&](int rank) -> std::string {
    comm::ConnectOptions options;
    options.rank = rank;
    options.size = c.ranks;
    options.session = session;
    options.heap_bytes_per_rank = std::size_t{16} << 20;
    const auto world = comm::connect_shm(options, test::soon());
    return world ? shard_error(c, n, one, **world) : world.status().to_string();
  });
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    EXPECT_EQ(reports[rank], "") << "rank " << rank;
  }
}

TEST(ContextForkedRanks, GiveWhatOneRankGivesInEveryForm) {
  for (const ContextForm form : {ContextForm::kAllGather, ContextForm::kRing}) {
    for (const bool moba : {false, true}) {
      ContextCase c{
          .lengths = {301, 0, 17},
          .heads = 4,
          .kv_heads = 2,
          .dim = 16,
          .ranks = 4,
          .order = ShardOrder::kZigzag,
          .form = form};
      if (moba) {
        c.moba = kernels::MobaOptions{.block = 24, .top_k = 3};
      }
      expect_processes_agree(c);
    }
  }
}

}  // namespace
}  // namespace muster::parallel
