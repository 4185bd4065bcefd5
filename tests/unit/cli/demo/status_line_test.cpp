// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/status_line.h"

#include <gtest/gtest.h>

namespace muster::demo {
namespace {

TEST(DemoStatusLine, ShowsStepLossSpeedRanksAndTheLastEvent) {
  Glimpse glimpse;
  glimpse.step = 119;
  glimpse.loss = 2.4312;
  glimpse.tokens_per_second = 15320.4;
  glimpse.ranks_alive = 3;
  glimpse.last_event = "rank_lost";
  EXPECT_EQ(
      status_text(glimpse, 600, 4),
      "step 120/600  loss 2.431  15320 tokens/s  3/4 ranks  rank_lost");
}

}  // namespace
}  // namespace muster::demo
