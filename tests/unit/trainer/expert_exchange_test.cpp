// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/trainer/job.h"
#include "trainer/moe_lm/src/command_line.h"

#include <muster/comm/backends.h>
#include <muster/parallel/experts/trace.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace muster::moe_lm {
namespace {

using ::testing::HasSubstr;

// Experts of whole pages for every number of ranks up to four.
TrainOptions paged_options() {
  TrainOptions options = small_options();
  options.model.d_model = 32;
  options.model.ffn = 32;
  options.steps = 8;
  return options;
}

TrainOptions balanced(TrainOptions options) {
  options.experts.exchange = ExpertExchange::kMuster;
  return options;
}

// The same sums in another order: roundings of 2^-24 that every update multiplies, as in
// training_test.cpp.
void expect_near(const std::vector<double>& a, const std::vector<double>& b, double per_step) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t step = 0; step < a.size(); ++step) {
    EXPECT_NEAR(a[step], b[step], per_step * static_cast<double>(step + 1)) << "step " << step;
  }
}

constexpr double kSameArithmetic = 5e-7;

TEST(MoeLmExpertExchange, BalancedAndOrdinaryHaveTheSameLossesForEveryExpertLayout) {
  TrainOptions options = paged_options();
  for (const int ep_size : {1, 2, 4}) {
    SCOPED_TRACE(ep_size);
    options.ep_size = ep_size;
    expect_near(losses_of_job(4, balanced(options)), losses_of_job(4, options), kSameArithmetic);
  }
}

TEST(MoeLmExpertExchange, UnderAnInjectedSkewTheyHaveTheSameLossesToo) {
  TrainOptions options = paged_options();
  options.ep_size = 4;
  options.model.experts = 8;
  options.experts.skew = 3.0;  // the most there is with 2 of 8: everyone to the same two
  const auto ordinary = losses_of_job(4, options);
  expect_near(losses_of_job(4, balanced(options)), ordinary, kSameArithmetic);
  options.experts.skew = 1.5;
  EXPECT_NE(losses_of_job(4, options), ordinary);
}

TEST(MoeLmExpertExchange, ToleranceLeavesTheLossesAlone) {
  TrainOptions options = balanced(paged_options());
  options.ep_size = 4;
  const auto exact = losses_of_job(4, options);
  options.experts.tolerance = 0.5;
  expect_near(losses_of_job(4, options), exact, kSameArithmetic);
}

TEST(MoeLmExpertExchange, MicroBatchesFollowOnePass) {
  TrainOptions options = balanced(paged_options());
  options.ep_size = 2;
  const auto whole = losses_of_job(2, options);
  options.micro_batches = 4;
  expect_near(losses_of_job(2, options), whole, kSameArithmetic);
}

TEST(MoeLmExpertExchange, ABalancedRunRepeatsItselfBitForBit) {
  TrainOptions options = balanced(paged_options());
  options.ep_size = 4;
  EXPECT_EQ(final_bits(4, options), final_bits(4, options));
}

TEST(MoeLmExpertExchange, ExpertsInTheHeapTrainUnderEveryLayoutWithReplicasOfThem) {
  TrainOptions options = paged_options();
  options.ep_size = 2;  // two groups: gradients of experts are reduced between them
  const auto ordinary = losses_of_job(4, options);
  for (const optimizer::Layout layout :
       {optimizer::Layout::kWholeMatrices,
        optimizer::Layout::kFlatOwner,
        optimizer::Layout::kRowShards}) {
    SCOPED_TRACE(to_string(layout));
    options.update.layout = layout;
    expect_near(losses_of_job(4, balanced(options)), ordinary, kSameArithmetic);
  }
}

TEST(MoeLmExpertExchange, InBf16BothFollowEachOtherWithinItsRounding) {
  TrainOptions options = paged_options();
  options.model.ffn = 64;
  options.ep_size = 2;
  options.update.parameter_type = DType::kBFloat16;
  // Rows and activations of the balanced exchange are bf16 too: 2^-9 of an activation, averaged
  // over hundreds of tokens.
  expect_near(losses_of_job(2, balanced(options)), losses_of_job(2, options), 4e-3);
}

TEST(MoeLmExpertExchange, OverlappedGathersFinishBeforeExpertsAreSent) {
  TrainOptions options = balanced(paged_options());
  options.ep_size = 2;
  const auto plain = losses_of_job(4, options);
  options.update.overlap = true;
  EXPECT_EQ(losses_of_job(4, options), plain);
}

TEST(MoeLmExpertExchange, ATraceHoldsAPlanForEveryLayerAndStep) {
  const ScratchFolder folder;
  TrainOptions options = balanced(paged_options());
  options.ep_size = 2;
  options.steps = 3;
  options.experts.trace = folder.path() / "plans";
  EXPECT_EQ(losses_of_job(2, options).size(), 3U);
  auto reader = parallel::EpTraceReader::open(folder.path() / "plans.rank-1");
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  parallel::EpTraceRecord record;
  std::vector<std::pair<std::int64_t, int>> seen;
  while (true) {
    const auto more = reader->next(record);
    ASSERT_TRUE(more.ok()) << more.status().to_string();
    if (!*more) {
      break;
    }
    seen.emplace_back(record.step, record.layer);
    EXPECT_EQ(record.rank, 1);
  }
  const std::vector<std::pair<std::int64_t, int>> expected{
      {0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}};
  EXPECT_EQ(seen, expected);
}

// --- routers ---

// maxvio of the worst layer at the last step of a run on one rank.
double last_maxvio(const TrainOptions& options) {
  const auto group = comm::make_local_group(1);
  TrainSetup setup;
  setup.options = options;
  setup.text = &sample_text();
  setup.agent.identity = {"test", Generation{1}, Rank{0}, "incarnation"};
  const auto loop = TrainingLoop::start(*group.front(), setup);
  EXPECT_TRUE(loop.ok()) << loop.status().to_string();
  while (loop.ok() && !(*loop)->done()) {
    EXPECT_TRUE((*loop)->step().ok());
  }
  double maxvio = 0;
  for (const auto& counts : (*loop)->agent().lanes().expert_counts) {
    const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
    const double most = *std::max_element(counts.begin(), counts.end());
    maxvio = std::max(maxvio, most * static_cast<double>(counts.size()) / sum - 1);
  }
  return maxvio;
}

TEST(MoeLmRouter, LossesThatBalanceLeaveLessImbalance) {
  TrainOptions options = paged_options();
  options.steps = 40;
  options.bias_rate = 0;
  const double free = last_maxvio(options);
  options.experts.switch_loss = 0.1;
  EXPECT_LT(last_maxvio(options), 0.8 * free);
  options.experts.switch_loss = 0;
  options.experts.sequence_loss = 0.1;
  EXPECT_LT(last_maxvio(options), 0.8 * free);
}

// Norm of the first step's gradient on one rank.
double first_gradient_norm(const TrainOptions& options) {
  const auto group = comm::make_local_group(1);
  TrainSetup setup;
  setup.options = options;
  setup.text = &sample_text();
  setup.agent.identity = {"test", Generation{1}, Rank{0}, "incarnation"};
  const auto loop = TrainingLoop::start(*group.front(), setup);
  EXPECT_TRUE(loop.ok()) << loop.status().to_string();
  const auto verdict = (*loop)->step();
  EXPECT_TRUE(verdict.ok()) << verdict.status().to_string();
  return verdict->gradient_norm;
}

TEST(MoeLmRouter, AuxiliaryLossesWeighTheSameWhateverShareOfTokensHasLoss) {
  TrainOptions options = paged_options();
  options.experts.z_loss = 1000;  // The loss of the text hardly counts beside it.
  const double of_all = first_gradient_norm(options);
  for (const std::int64_t every : {4, 16}) {
    options.loss_every = every;
    EXPECT_NEAR(first_gradient_norm(options) / of_all, 1.0, 0.02) << every;
  }
  options.loss_every = 1;
  options.micro_batches = 2;
  EXPECT_NEAR(first_gradient_norm(options) / of_all, 1.0, 0.02);
}

TEST(MoeLmRouter, SigmoidScoresASharedExpertAndAZLossTrain) {
  TrainOptions options = paged_options();
  options.model.shared_experts = 1;
  options.experts.score = parallel::RouterScore::kSigmoid;
  options.experts.z_loss = 1e-3;
  const auto losses = losses_of_job(2, options);
  EXPECT_LT(losses.back(), losses.front() - 0.5);
  EXPECT_NE(losses, losses_of_job(2, paged_options()));
}

// --- bad input ---

TEST(MoeLmExpertExchange, RefusesWhatItCannotCarryWithTheRemedy) {
  TrainOptions options = balanced(paged_options());
  options.ep_size = 2;
  options.update.parameter_type = DType::kFloat16;
  EXPECT_THAT(validate(options, 2).message(), HasSubstr("--param-dtype bf16 or fp32"));
  options = balanced(paged_options());
  options.ep_size = 4;
  options.model.ffn = 24;
  EXPECT_THAT(validate(options, 4).message(), HasSubstr("is not a multiple of 4096"));
}

TEST(MoeLmExpertExchange, RefusesFlagsThatDoNotGoTogether) {
  TrainOptions options = paged_options();
  options.ep_size = 1;
  options.experts.tolerance = 0.1;
  EXPECT_THAT(validate(options, 1).message(), HasSubstr("--ep-tolerance needs --ep muster"));
  options = paged_options();
  options.ep_size = 1;
  options.experts.trace = "plans";
  EXPECT_THAT(validate(options, 1).message(), HasSubstr("--ep-trace"));
  options = paged_options();
  options.ep_size = 1;
  options.experts.skew = 100.0;
  EXPECT_THAT(validate(options, 1).message(), HasSubstr("--skew"));
}

TEST(MoeLmExpertExchange, FlagsSayHowExpertsAreChosenAndSpread) {
  const std::array arguments{"moe_lm", "--data",         "text",    "--ep",
                             "muster", "--ep-tolerance", "0.05",    "--skew",
                             "2.5",    "--router",       "sigmoid", "--switch-loss",
                             "0.01",   "--z-loss",       "0.001",   "--sequence-loss",
                             "0.0001", "--bias-rate",    "0.002",   "--shared-experts",
                             "2",      "--ep-trace",     "plans"};
  const CommandLine line = parse_command_line(static_cast<int>(arguments.size()), arguments.data());
  ASSERT_FALSE(line.exit_code.has_value());
  EXPECT_EQ(line.options.experts.exchange, ExpertExchange::kMuster);
  EXPECT_EQ(line.options.experts.tolerance, 0.05);
  EXPECT_EQ(line.options.experts.skew, 2.5);
  EXPECT_EQ(line.options.experts.score, parallel::RouterScore::kSigmoid);
  EXPECT_EQ(line.options.experts.switch_loss, 0.01);
  EXPECT_EQ(line.options.experts.sequence_loss, 0.0001);
  EXPECT_EQ(line.options.experts.z_loss, 0.001);
  EXPECT_EQ(line.options.bias_rate, 0.002);
  EXPECT_EQ(line.options.model.shared_experts, 2);
  EXPECT_EQ(line.options.experts.trace, "plans");
}

}  // namespace
}  // namespace muster::moe_lm
