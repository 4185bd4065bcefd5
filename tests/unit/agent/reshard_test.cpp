// SPDX-License-Identifier: Apache-2.0
// Saving with N ranks and resuming with M, through real checkpoints of real optimizers.
#include "tests/unit/agent/train_group.h"

#include <muster/checkpoint/pieces.h>
#include <muster/comm/backends.h>
#include <muster/common/random.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <thread>

namespace muster::agent {
namespace {

using ::testing::HasSubstr;

// Micro-batches of a step, shared by the ranks; every world size below divides it.
constexpr int kSlices = 12;

struct Job {
  int ranks{1};
  std::int64_t until{8};       // steps in all
  std::filesystem::path root;  // folder for the last step; not saved if empty
  std::filesystem::path resume_from;
  optimizer::Layout layout{optimizer::Layout::kWholeMatrices};
};

struct Outcome {
  Status status;
  std::int64_t first_step{0};
  std::vector<float> parameters;
  std::map<std::string, std::string> values;
  std::vector<float> trainer_tensor;
};

optimizer::OptimizerOptions optimizer_options(const Job& job) {
  optimizer::OptimizerOptions options;
  options.routes = {
      {"w*", optimizer::Rule::kMuon, "hidden", 0.1, 1.0},
      {"*", optimizer::Rule::kAdamW, "rest", 0.1, 1.0}};
  options.schedule.learning_rate = 0.02;
  options.schedule.warmup_steps = 2;
  options.schedule.total_steps = 8;
  // The norm is a sum over ranks in an order that depends on their number.
  options.clip_norm = 0.0;
  options.layout = job.layout;
  return options;
}

std::vector<optimizer::ParameterSpec> reshard_specs() {
  return {
      {"embedding", {13, 5}}, {"wq", {8, 6}}, {"wide", {4, 20}}, {"wtall", {20, 4}}, {"norm", {7}}};
}

// Multiples of 1/1024 below 1 add up without rounding in any order, so that any number of ranks
// must end with the same bits.
float exact_value(Random& random) {
  return static_cast<float>(static_cast<double>(random.below(2047)) - 1023.0) / 1024.0F;
}

void set_initial_values(optimizer::Optimizer& optimizer) {
  Random random{17};
  const auto parameters = optimizer.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::vector<float> values(parameters[i].gradient.size());
    std::generate(values.begin(), values.end(), [&] { return exact_value(random); });
    EXPECT_TRUE(optimizer.set_values(i, values).ok());
  }
}

void add_gradients(optimizer::Optimizer& optimizer, std::int64_t step, int rank, int ranks) {
  for (int slice = rank; slice < kSlices; slice += ranks) {
    Random random{static_cast<std::uint64_t>(step) * 1000 + static_cast<std::uint64_t>(slice)};
    for (const optimizer::Parameter& parameter : optimizer.parameters()) {
      for (float& gradient : parameter.gradient) {
        gradient += exact_value(random);
      }
    }
  }
}

Status run_rank(const Job& job, comm::Communicator& world, Outcome& outcome) {
  const auto deadline = Deadline::after(std::chrono::seconds{20});
  const int rank = world.rank();
  MUSTER_ASSIGN_OR_RETURN(
      const auto optimizer,
      optimizer::Optimizer::create(
          reshard_specs(), optimizer_options(job), world, nullptr, deadline));
  set_initial_values(*optimizer);
  AgentOptions options;
  options.identity = {
      "reshard", Generation{job.resume_from.empty() ? 1 : 2}, Rank{rank}, "incarnation"};
  options.world_size = job.ranks;
  options.total_steps = job.until;
  options.checkpoint_root = job.root;
  options.resume_from = job.resume_from;
  options.telemetry = false;
  MUSTER_ASSIGN_OR_RETURN(const auto agent, Agent::join(options, world, *optimizer, {}));
  TrainerState trainer;
  outcome.trainer_tensor.assign(3, static_cast<float>(rank));
  trainer.tensors = {{"own", outcome.trainer_tensor}};
  trainer.values = {{"cursor", "0"}, {"rank", std::to_string(rank)}};
  MUSTER_RETURN_IF_ERROR(agent->restore(trainer));
  outcome.first_step = agent->step();
  outcome.values = trainer.values;
  while (agent->step() < job.until) {
    agent->begin_step();
    add_gradients(*optimizer, agent->step(), rank, job.ranks);
    trainer.values["cursor"] = std::to_string(agent->step() + 1);
    MUSTER_RETURN_IF_ERROR(agent->end_step(1.0, kSlices / job.ranks, trainer).status());
  }
  for (const optimizer::Parameter& parameter : optimizer->parameters()) {
    outcome.parameters.insert(
        outcome.parameters.end(), parameter.value.begin(), parameter.value.end());
  }
  return agent->finish();
}

std::vector<Outcome> run(const Job& job) {
  const auto group = comm::make_local_group(job.ranks);
  std::vector<Outcome> outcomes(group.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[rank].status = run_rank(job, *group[rank], outcomes[rank]);
      if (!outcomes[rank].status.ok()) {
        group[rank]->abort(outcomes[rank].status.message());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return outcomes;
}

std::vector<Outcome> run_well(const Job& job) {
  std::vector<Outcome> outcomes = run(job);
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  }
  return outcomes;
}

std::filesystem::path newest(const std::filesystem::path& root) {
  const auto info = checkpoint::newest_verified(root, "reshard");
  EXPECT_TRUE(info.ok()) << info.status().to_string();
  return info.ok() ? info->path : std::filesystem::path{};
}

// Steps 0 to 4 on `ranks`, saved under `root`.
std::filesystem::path save_four_steps(
    const std::filesystem::path& root,
    int ranks,
    optimizer::Layout layout = optimizer::Layout::kWholeMatrices) {
  Job job{ranks, 4, root, {}, layout};
  run_well(job);
  return newest(root);
}

TEST(Reshard, NRanksContinuedByMAreTheUninterruptedRunBitForBit) {
  const std::vector<float> straight = run_well({1, 8, {}, {}}).front().parameters;
  for (const int before : {1, 2, 3, 4}) {
    const ScratchFolder folder;
    const auto saved = save_four_steps(folder.path(), before);
    for (const int after : {1, 2, 3, 4}) {
      SCOPED_TRACE(std::to_string(before) + " ranks, then " + std::to_string(after));
      for (const Outcome& outcome : run_well({after, 8, {}, saved})) {
        EXPECT_EQ(outcome.first_step, 4);
        EXPECT_EQ(outcome.parameters, straight);
        EXPECT_EQ(outcome.values.at("cursor"), "4");
      }
    }
  }
}

TEST(Reshard, EveryLayoutGoesOnFromEveryOther) {
  using optimizer::Layout;
  const std::vector<float> straight = run_well({1, 8, {}, {}}).front().parameters;
  for (const Layout before :
       {Layout::kWholeMatrices,
        Layout::kFlatRedundant,
        Layout::kFlatOwner,
        Layout::kRowShards,
        Layout::kReplicated}) {
    const ScratchFolder folder;
    const auto saved = save_four_steps(folder.path(), 3, before);
    for (const Layout after :
         {Layout::kWholeMatrices,
          Layout::kFlatRedundant,
          Layout::kFlatOwner,
          Layout::kRowShards,
          Layout::kReplicated}) {
      SCOPED_TRACE(std::string{to_string(before)} + ", then " + to_string(after));
      EXPECT_EQ(run_well({2, 8, {}, saved, after}).front().parameters, straight);
    }
  }
}

TEST(Reshard, FourRanksToTwoToThreeSavingEachTime) {
  const std::vector<float> straight = run_well({1, 8, {}, {}}).front().parameters;
  const ScratchFolder first;
  const ScratchFolder second;
  const auto by_four = save_four_steps(first.path(), 4);
  run_well({2, 6, second.path(), by_four});
  const auto by_two = newest(second.path());
  EXPECT_EQ(checkpoint::Pieces::open(by_two).value()->world_size(), 2);
  for (const Outcome& outcome : run_well({3, 8, {}, by_two})) {
    EXPECT_EQ(outcome.first_step, 6);
    EXPECT_EQ(outcome.parameters, straight);
  }
}

TEST(Reshard, TrainerTensorsComeFromTheOldRankOfTheSameNumberAndValuesFromTheLowest) {
  const ScratchFolder folder;
  const auto saved = save_four_steps(folder.path(), 2);
  const auto outcomes = run_well({3, 5, {}, saved});
  const std::vector<float> expected{0.0F, 1.0F, 0.0F};  // 2 modulo the 2 old ranks.
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].trainer_tensor, std::vector<float>(3, expected[rank]));
    EXPECT_EQ(outcomes[rank].values.at("rank"), "0");
  }
}

TEST(Reshard, TheSameWorldTakesEachRanksOwnTrainerStateBack) {
  const ScratchFolder folder;
  const auto saved = save_four_steps(folder.path(), 2);
  const auto outcomes = run_well({2, 5, {}, saved});
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].trainer_tensor, std::vector<float>(3, static_cast<float>(rank)));
    EXPECT_EQ(outcomes[rank].values.at("rank"), std::to_string(rank));
  }
}

// Writes a checkpoint as muster did before optimizers had values: the same tensors, with the count
// of applied steps among the agent's values.
void rewrite_as_old(const std::filesystem::path& saved, const std::filesystem::path& root) {
  const auto details = checkpoint::describe(saved);
  const auto pieces = checkpoint::Pieces::open(saved);
  ASSERT_TRUE(details.ok() && pieces.ok());
  const auto generation = checkpoint::allocate_generation(root, "reshard");
  ASSERT_TRUE(generation.ok());
  std::vector<std::vector<std::byte>> memory;
  checkpoint::RankState state;
  for (const checkpoint::TensorSummary& tensor : details->ranks.at(0).tensors) {
    memory.emplace_back(static_cast<std::size_t>(tensor.bytes));
    ASSERT_TRUE((*pieces)->read_part(tensor.name, 0, memory.back()).ok());
    state.tensors.push_back(
        {tensor.name,
         parse_safetensors_dtype(tensor.dtype).value(),
         tensor.shape,
         tensor.global_shape,
         tensor.offset,
         memory.back()});
  }
  for (const auto& [key, value] : details->ranks.at(0).values) {
    if (!key.starts_with("optimizer.")) {
      state.values[key] = value;
    }
  }
  state.values["agent.applied_steps"] = "4";
  const auto writer =
      checkpoint::Writer::create({root, {"reshard", *generation, Rank{0}, "incarnation"}, 1, 3});
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  ASSERT_TRUE((*writer)->begin(1, details->info.step, state).ok());
  ASSERT_TRUE((*writer)->wait(std::chrono::seconds{20}).ok());
  (*writer)->commit(1, false);
  ASSERT_TRUE((*writer)->wait(std::chrono::seconds{20}).ok());
}

TEST(Reshard, ACheckpointFromBeforeMomentumFormsIsHeavyBall) {
  const std::vector<float> straight = run_well({1, 8, {}, {}}).front().parameters;
  const ScratchFolder now;
  const ScratchFolder old;
  rewrite_as_old(save_four_steps(now.path(), 1), old.path());
  for (const Outcome& outcome : run_well({2, 8, {}, newest(old.path())})) {
    EXPECT_EQ(outcome.first_step, 4);
    EXPECT_EQ(outcome.parameters, straight);  // The count of applied steps is back, too.
  }
}

TEST(Reshard, ADamagedPieceStopsEveryRankAndIsNamed) {
  const ScratchFolder folder;
  const auto saved = save_four_steps(folder.path(), 4);
  const auto path = saved / "rank-2.safetensors";
  std::fstream file{path, std::ios::binary | std::ios::in | std::ios::out};
  file.seekp(-3, std::ios::end);
  file.put('\x55');
  file.close();
  bool named = false;
  for (const Outcome& outcome : run({3, 8, {}, saved})) {
    EXPECT_FALSE(outcome.status.ok());
    named = named || (outcome.status.code() == StatusCode::kDataLoss &&
                      outcome.status.message().find("rank-2.safetensors") != std::string::npos);
  }
  EXPECT_TRUE(named);
}

TEST(Reshard, AMissingRankFileStopsEveryRankAndIsNamed) {
  const ScratchFolder folder;
  const auto saved = save_four_steps(folder.path(), 3);
  std::filesystem::remove(saved / "rank-1.safetensors");
  for (const Outcome& outcome : run({2, 8, {}, saved})) {
    EXPECT_THAT(outcome.status.message(), HasSubstr("rank-1.safetensors is missing"));
  }
}

}  // namespace
}  // namespace muster::agent
