#include "tests/unit/optimizer/layout/model.h"

#include <algorithm>
#include <limits>

namespace muster::optimizer {
namespace {

RegionPlan planned(const Routing& routing, int ranks, std::int64_t granularity) {
  OptimizerOptions options;
  options.cut_granularity = granularity;
  return plan_region(routing, options, kElementwise, ranks);
}

TEST(ElementwiseLayout, SharesDifferByLessThanTwoGrains) {
  const Routing routing = routed({{10007}, {123, 457}, {5003}}, Rule::kAdamW);
  for (const int ranks : {2, 3, 7, 13}) {
    const std::vector<std::size_t> counts = planned(routing, ranks, 64).segments.at(0).counts;
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    EXPECT_LE(*most - *least, 2U * 64) << ranks;
  }
}

TEST(ElementwiseLayout, PadsOnlyToTheStartOfTheNextParameter) {
  const Routing routing = routed({{33}, {64}, {1}}, Rule::kAdamW);
  EXPECT_EQ(planned(routing, 5, 256).size, 64U + 64U + 32U);
}

TEST(ElementwiseLayout, CutsExpertParametersAtGrainsFromEachExpert) {
  ParameterSpec spec;
  spec.name = "bias";
  spec.shape = {3, 100};
  spec.placement = Placement::kExpert;
  const Routing routing = route({spec}, std::vector<RouteRule>{{"*"}}).value();
  OptimizerOptions options;
  options.cut_granularity = 64;
  const RegionPlan plan =
      plan_region(routing, options, {Placement::kExpert, false, FloatType::kFloat32}, 4);
  // Legal cuts: 64, 100, 164, 200, 264; the even ones are 80, 160, 240.
  EXPECT_EQ(plan.pieces[1].at(0).parameter_begin, 64U);
  EXPECT_EQ(plan.pieces[2].at(0).parameter_begin, 100U);
  EXPECT_EQ(plan.pieces[3].at(0).parameter_begin, 200U);
}

TEST(ElementwiseLayout, MoreRanksThanGrainsLeaveSomeWithNothing) {
  const Routing routing = routed({{600}}, Rule::kAdamW);
  const RegionPlan plan = planned(routing, 8, 256);
  std::size_t stored = 0;
  for (const auto& pieces : plan.pieces) {
    stored += pieces.empty() ? 0U : 1U;
  }
  EXPECT_EQ(stored, 3U);
  EXPECT_EQ(plan.segments.at(0).counts.size(), 8U);
}

TEST(ElementwiseLayout, EveryBucketIsCutEvenlyOnItsOwn) {
  const Routing routing = routed({{4096}, {4096}, {4096}}, Rule::kAdamW);
  OptimizerOptions options;
  options.bucket_bytes = 4096 * sizeof(float);
  const RegionPlan plan = plan_region(routing, options, kElementwise, 4);
  ASSERT_EQ(plan.segments.size(), 3U);
  for (const Segment& segment : plan.segments) {
    EXPECT_EQ(segment.counts, std::vector<std::size_t>(4, 1024));
  }
}

}  // namespace
}  // namespace muster::optimizer
