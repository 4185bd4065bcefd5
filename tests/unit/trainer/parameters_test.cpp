// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/parameters.h"

#include "tests/support/deadlines.h"

#include <muster/comm/backends.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

namespace muster::moe_lm {
namespace {

constexpr ModelShape kShape{2, 16, 2, 4, 2, 12, 16};

// An optimizer that holds experts of place `ep_rank` among `ep_size`, as a world of one.
std::unique_ptr<optimizer::Optimizer> initialised(
    comm::Communicator& world, int ep_size, int ep_rank, std::uint64_t seed) {
  TrainOptions options;
  options.model = kShape;
  auto made = optimizer::Optimizer::create(
      parameter_specs(kShape, ep_size),
      optimizer_options(options),
      world,
      &world,
      muster::test::soon());
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_TRUE(set_initial_values(**made, kShape, seed, ep_rank).ok());
  return std::move(*made);
}

TEST(MoeLmParameters, InitialExpertsDoNotDependOnWhereTheyLive) {
  const auto world = comm::make_local_group(1);
  const auto all = initialised(*world[0], 1, 0, 9);
  const auto second_half = initialised(*world[0], 2, 1, 9);
  for (const char* part : {"gate", "up", "down"}) {
    const std::string name = layer_name(1, std::string{"moe.experts."} + part);
    const auto whole = all->find(name)->value;
    const auto half = second_half->find(name)->value;
    ASSERT_EQ(half.size() * 2, whole.size());
    EXPECT_TRUE(std::equal(half.begin(), half.end(), whole.begin() + std::ssize(half)));
  }
}

TEST(MoeLmParameters, SeedsAndNamesGiveDifferentValues) {
  const auto world = comm::make_local_group(1);
  const auto one = initialised(*world[0], 1, 0, 9);
  const auto other = initialised(*world[0], 1, 0, 10);
  EXPECT_NE(one->find("embedding")->value[0], other->find("embedding")->value[0]);
  EXPECT_NE(
      one->find("layers.0.attention.wq")->value[0], one->find("layers.1.attention.wq")->value[0]);
  const auto gate = one->find("layers.0.moe.experts.gate")->value;
  EXPECT_NE(gate[0], gate[12 * 16]);  // Experts differ from each other.
}

TEST(MoeLmParameters, SendsMatricesToMuonAndTheRestToAdamW) {
  const auto world = comm::make_local_group(1);
  const auto made = initialised(*world[0], 1, 0, 9);
  for (const optimizer::Parameter& parameter : made->parameters()) {
    const std::string& name = parameter.spec.name;
    const bool hidden =
        name.find("attention.w") != std::string::npos || name.find("experts") != std::string::npos;
    EXPECT_EQ(parameter.route.rule == optimizer::Rule::kMuon, hidden) << name;
  }
}

}  // namespace
}  // namespace muster::moe_lm
