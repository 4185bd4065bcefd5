// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/optimizer/layout/model.h"

#include <algorithm>
#include <limits>

namespace muster::optimizer {
namespace {

BufferPlan plan_elementwise(const Routing& routing, int ranks, std::int64_t granularity) {
  OptimizerOptions options;
  options.cut_granularity = granularity;
  return plan_buffer(routing, options, kElementwise, ranks);
}

TEST(ElementwiseLayout, SharesDifferByLessThanTwoGrains) {
  const Routing routing = routed({{10007}, {123, 457}, {5003}}, Rule::kAdamW);
  for (const int ranks : {2, 3, 7, 13}) {
    const std::vector<std::size_t> counts =
        plan_elementwise(routing, ranks, 64).buckets.at(0).counts;
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    EXPECT_LE(*most - *least, 2U * 64) << ranks;
  }
}

TEST(ElementwiseLayout, PadsOnlyToTheStartOfTheNextParameter) {
  const Routing routing = routed({{33}, {64}, {1}}, Rule::kAdamW);
  EXPECT_EQ(plan_elementwise(routing, 5, 256).size, 64U + 64U + 32U);
}

TEST(ElementwiseLayout, CutsExpertParametersAtGrainsFromEachExpert) {
  ParameterSpec spec;
  spec.name = "bias";
  spec.shape = {3, 100};
  spec.placement = Placement::kExpert;
  const Routing routing = route({spec}, std::vector<RouteRule>{{"*"}}).value();
  OptimizerOptions options;
  options.cut_granularity = 64;
  const BufferPlan plan =
      plan_buffer(routing, options, {Placement::kExpert, false, DType::kFloat32}, 4);
  // Legal cuts: 64, 100, 164, 200, 264; the even ones are 80, 160, 240.
  EXPECT_EQ(plan.shards[1].at(0).parameter_begin, 64U);
  EXPECT_EQ(plan.shards[2].at(0).parameter_begin, 100U);
  EXPECT_EQ(plan.shards[3].at(0).parameter_begin, 200U);
}

TEST(ElementwiseLayout, MoreRanksThanGrainsLeaveSomeWithNothing) {
  const Routing routing = routed({{600}}, Rule::kAdamW);
  const BufferPlan plan = plan_elementwise(routing, 8, 256);
  std::size_t stored = 0;
  for (const auto& shards : plan.shards) {
    stored += shards.empty() ? 0U : 1U;
  }
  EXPECT_EQ(stored, 3U);
  EXPECT_EQ(plan.buckets.at(0).counts.size(), 8U);
}

TEST(ElementwiseLayout, EveryBucketIsCutEvenlyOnItsOwn) {
  const Routing routing = routed({{4096}, {4096}, {4096}}, Rule::kAdamW);
  OptimizerOptions options;
  options.bucket_bytes = 4096 * sizeof(float);
  const BufferPlan plan = plan_buffer(routing, options, kElementwise, 4);
  ASSERT_EQ(plan.buckets.size(), 3U);
  for (const Bucket& bucket : plan.buckets) {
    EXPECT_EQ(bucket.counts, std::vector<std::size_t>(4, 1024));
  }
}

}  // namespace
}  // namespace muster::optimizer
