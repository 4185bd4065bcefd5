// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/optimizer/model.h"
#include "tests/unit/optimizer/state_store.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

namespace muster::optimizer {
namespace {

struct Piece {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;
  std::vector<std::byte> data;
};

using SavedPieces = std::vector<std::pair<std::string, Piece>>;

SavedPieces save(Optimizer& optimizer) {
  SavedPieces saved;
  for (const TensorPiece& tensor : optimizer.state()) {
    saved.push_back(
        {tensor.name,
         {tensor.shape,
          tensor.global_shape,
          tensor.offset,
          {tensor.data.begin(), tensor.data.end()}}});
  }
  return saved;
}

void train(Optimizer& optimizer, int first, int last, int slice) {
  for (int step = first; step < last; ++step) {
    add_slice_gradients(optimizer, step, slice);
    finish_step(optimizer, decide(1.0, 0.01));
  }
}

TEST(Zero1State, ARestoredOptimizerGoesOnBitForBit) {
  for (const int ranks : {1, 2, 3}) {
    StateStore store;
    run_ranks(ranks, [&](comm::Communicator& world) {
      const auto straight = make_optimizer(small_model(), small_options(), world, &world);
      const auto resumed = make_optimizer(small_model(), small_options(), world, &world);
      set_initial_values(*straight);
      train(*straight, 0, 3, world.rank());
      store.save(*straight);
      ASSERT_TRUE(world.barrier(soon()).ok());
      const Status loaded = resumed->load_state(store);
      ASSERT_TRUE(loaded.ok()) << loaded.to_string();
      ASSERT_TRUE(resumed->gather_parameters(soon()).ok());
      train(*straight, 3, 6, world.rank());
      train(*resumed, 3, 6, world.rank());
      EXPECT_EQ(values_of(*resumed), values_of(*straight));
      EXPECT_EQ(resumed->applied_steps(), 6);
    });
  }
}

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) {
    product *= extent;
  }
  return product;
}

// Global indices of a piece; pieces here are cut along dimension 0 only.
std::pair<std::int64_t, std::int64_t> interval(const Piece& piece) {
  std::vector<std::int64_t> row = piece.global_shape;
  row[0] = 1;
  const std::int64_t begin = piece.offset[0] * elements(row);
  return {begin, begin + elements(piece.shape)};
}

std::map<std::string, std::vector<Piece>> save_of_all_ranks(int ranks, int expert_groups) {
  std::mutex mutex;
  std::map<std::string, std::vector<Piece>> pieces;
  run_ranks(ranks, [&](comm::Communicator& world) {
    const auto peers = world.split(world.rank() % expert_groups, world.rank(), soon());
    ASSERT_TRUE(peers.ok());
    const auto optimizer = make_optimizer(small_model(), small_options(), world, peers->get());
    const std::lock_guard lock{mutex};
    std::set<std::string> names;
    for (auto& [name, piece] : save(*optimizer)) {
      EXPECT_TRUE(names.insert(name).second) << name << " twice on one rank";
      EXPECT_EQ(
          elements(piece.shape), static_cast<std::int64_t>(piece.data.size() / sizeof(float)));
      pieces[name].push_back(std::move(piece));
    }
  });
  return pieces;
}

TEST(Zero1State, PiecesOfAllRanksTileEveryTensor) {
  for (const auto& [ranks, groups] : {std::pair{1, 1}, {3, 1}, {4, 2}, {4, 4}, {7, 1}}) {
    SCOPED_TRACE(ranks);
    const auto all = save_of_all_ranks(ranks, groups);
    // Per parameter: AdamW value, m, v; Muon value and momentum. 3 AdamW, 5 Muon.
    EXPECT_EQ(all.size(), 3U * 3U + 5U * 2U);
    for (const auto& [name, pieces] : all) {
      std::map<std::int64_t, std::int64_t> intervals;
      for (const Piece& piece : pieces) {
        EXPECT_EQ(piece.global_shape, pieces.front().global_shape) << name;
        const auto [begin, end] = interval(piece);
        EXPECT_TRUE(intervals.emplace(begin, end).second) << name;
      }
      std::int64_t at = 0;
      for (const auto& [begin, end] : intervals) {
        EXPECT_EQ(begin, at) << name;
        at = end;
      }
      EXPECT_EQ(at, elements(pieces.front().global_shape)) << name;
    }
  }
}

TEST(Zero1State, ExpertPiecesLieInTheTensorOfAllExperts) {
  const auto all = save_of_all_ranks(4, 2);
  EXPECT_EQ(all.at("param/experts.up").front().global_shape, (std::vector<std::int64_t>{6, 4, 6}));
  EXPECT_EQ(all.at("adamw_m/experts.bias").front().global_shape, (std::vector<std::int64_t>{36}));
}

TEST(Zero1State, FlattensAdamWAndKeepsTheShapeOfMuon) {
  const auto all = save_of_all_ranks(1, 1);
  EXPECT_EQ(all.at("adamw_v/embedding").front().shape, (std::vector<std::int64_t>{65}));
  EXPECT_EQ(all.at("muon_momentum/wq").front().shape, (std::vector<std::int64_t>{8, 6}));
}

}  // namespace
}  // namespace muster::optimizer
