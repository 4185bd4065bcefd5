// SPDX-License-Identifier: Apache-2.0
// Buckets whose collectives run on the communication thread.
#include "optimizer/src/storage/comm_thread.h"
#include "tests/support/counting_communicator.h"
#include "tests/support/eventually.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/optimizer/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>

namespace muster::optimizer {
namespace {

constexpr int kOverlapSteps = 3;

enum class Order { kBackward, kForward, kShuffled, kSome };

std::vector<std::size_t> ready_order(std::size_t count, Order order, std::uint64_t seed) {
  std::vector<std::size_t> indices(count);
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  if (order == Order::kBackward) {
    std::reverse(indices.begin(), indices.end());
  } else if (order != Order::kForward) {
    Random random{seed};
    for (std::size_t i = count; i > 1; --i) {
      std::swap(indices[i - 1], indices[random.below(i)]);
    }
  }
  if (order == Order::kSome) {
    indices.resize(count / 2);  // the rest is left to reduce_gradients
  }
  return indices;
}

std::vector<std::vector<float>> train(
    int ranks, OptimizerOptions options, bool overlap, Order order) {
  options.overlap = overlap;
  options.bucket_bytes = 2048;
  std::mutex mutex;
  std::vector<std::vector<float>> values;
  run_ranks(ranks, [&](comm::Communicator& world) {
    const auto optimizer = make_optimizer(uneven_model(), options, world, &world);
    ASSERT_NE(optimizer, nullptr);
    set_initial_values(*optimizer);
    for (int step = 0; step < kOverlapSteps; ++step) {
      add_slice_gradients(*optimizer, step, world.rank());
      // Every rank finishes its gradients in a different order.
      const auto seed = static_cast<std::uint64_t>(step * 100 + world.rank());
      for (const std::size_t index : ready_order(optimizer->parameters().size(), order, seed)) {
        optimizer->gradient_ready(index);
        optimizer->gradient_ready(index);  // saying it twice changes nothing
      }
      ASSERT_TRUE(optimizer->reduce_gradients(soon()).ok());
      ASSERT_TRUE(optimizer->apply(decide(1.0, 0.01), soon()).ok());
      optimizer->zero_gradients();
      optimizer->begin_gather(soon());
      for (std::size_t index = 0; index < optimizer->parameters().size(); ++index) {
        ASSERT_TRUE(optimizer->wait_gathered(index, soon()).ok());
      }
      ASSERT_TRUE(optimizer->gather_parameters(soon()).ok());
    }
    const std::lock_guard lock{mutex};
    if (values.empty()) {
      values = values_of(*optimizer);
    }
    EXPECT_EQ(difference(values_of(*optimizer), values), "");
  });
  return values;
}

class Overlap : public ::testing::TestWithParam<std::tuple<Layout, Order>> {};

TEST_P(Overlap, EndsWithTheSameBits) {
  const auto [layout, order] = GetParam();
  const OptimizerOptions options = uneven_options(layout);
  const auto plain = train(3, options, false, order);
  EXPECT_EQ(difference(train(3, options, true, order), plain), "");
}

INSTANTIATE_TEST_SUITE_P(
    Orders,
    Overlap,
    ::testing::Combine(
        ::testing::ValuesIn(kLayouts),
        ::testing::Values(Order::kBackward, Order::kForward, Order::kShuffled, Order::kSome)));

// Every bucket is reduced once its gradients are ready, before anybody asks for the sums.
TEST(OverlapGuard, GradientsMoveBeforeReduceIsCalled) {
  for (const Layout layout : kLayouts) {
    run_ranks(3, [&](comm::Communicator& inner) {
      test::CountingCommunicator plain_world{inner};
      test::CountingCommunicator world{inner};
      OptimizerOptions options = uneven_options(layout);
      options.bucket_bytes = 2048;
      const auto plain = make_optimizer(uneven_model(), options, plain_world, &plain_world);
      ASSERT_TRUE(plain->reduce_gradients(soon()).ok());
      const std::int64_t buckets = plain_world.counts().reductions;
      EXPECT_GT(buckets, 4);
      options.overlap = true;
      const auto optimizer = make_optimizer(uneven_model(), options, world, &world);
      for (std::size_t index = optimizer->parameters().size(); index > 0; --index) {
        optimizer->gradient_ready(index - 1);
      }
      ASSERT_TRUE(test::eventually([&] { return world.counts().reductions == buckets; }, soon()));
      ASSERT_TRUE(optimizer->reduce_gradients(soon()).ok());
      EXPECT_EQ(world.counts().reductions, buckets);
    });
    ASSERT_FALSE(HasFailure()) << to_string(layout);
  }
}

// Two threads of a rank in two collectives at once, through real transports.
void expect_same_bits_over(bool gloo) {
  const test::ScratchFolder folder;
  OptimizerOptions options = uneven_options(Layout::kFlatOwner);
  const auto alone = train(3, options, false, Order::kBackward);
  options.overlap = true;
  options.bucket_bytes = 2048;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      comm::ConnectOptions connect;
      connect.rank = rank;
      connect.size = 3;
      connect.session = folder.path().filename().string();
      connect.gloo_store_path = folder.path().string();
      connect.heap_bytes_per_rank = std::size_t{64} << 20;
      auto world = gloo ? comm::connect_gloo(connect, soon()) : comm::connect_shm(connect, soon());
      ASSERT_TRUE(world.ok()) << world.status().to_string();
      const auto optimizer = make_optimizer(uneven_model(), options, **world, world->get());
      ASSERT_NE(optimizer, nullptr);
      set_initial_values(*optimizer);
      for (int step = 0; step < kOverlapSteps; ++step) {
        add_slice_gradients(*optimizer, step, rank);
        for (std::size_t index = optimizer->parameters().size(); index > 0; --index) {
          optimizer->gradient_ready(index - 1);
        }
        // The agent runs its own collectives meanwhile.
        EXPECT_TRUE((*world)->barrier(soon()).ok());
        finish_step(*optimizer, decide(1.0, 0.01));
      }
      EXPECT_EQ(difference(values_of(*optimizer), alone), "");
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

TEST(OverlapTransports, GivesTheSameBitsOverSharedMemory) {
  expect_same_bits_over(false);
}

TEST(OverlapTransports, GivesTheSameBitsOverGloo) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "libgloo is not built with the sanitizer, so its own locking is invisible";
#endif
  if (!comm::gloo_is_available()) {
    GTEST_SKIP() << "this build has no Gloo";
  }
  expect_same_bits_over(true);
}

TEST(OverlapGuard, LooksAtLocalGradientsBeforeTheyMove) {
  std::mutex mutex;
  std::int64_t total = 0;
  run_ranks(2, [&](comm::Communicator& world) {
    OptimizerOptions options = small_options();
    options.overlap = true;
    const auto optimizer = make_optimizer(small_model(), options, world, &world);
    // Opposite infinities would be one NaN in the sum, finite ones that overflow none at all
    // before.
    optimizer->find("wk")->gradient[0] = world.rank() == 0
                                             ? std::numeric_limits<float>::infinity()
                                             : -std::numeric_limits<float>::infinity();
    for (std::size_t index = 0; index < optimizer->parameters().size(); ++index) {
      optimizer->gradient_ready(index);
    }
    ASSERT_TRUE(optimizer->reduce_gradients(soon()).ok());
    const std::lock_guard lock{mutex};
    total += optimizer->local_statistics().nonfinite_count;
  });
  EXPECT_GE(total, 2);
}

TEST(OverlapGuard, MovesTheSameBytes) {
  run_ranks(3, [](comm::Communicator& world) {
    std::vector<MovedBytes> moved;
    for (const bool overlap : {false, true}) {
      OptimizerOptions options = uneven_options(Layout::kRowShards);
      options.overlap = overlap;
      const auto optimizer = make_optimizer(uneven_model(), options, world, &world);
      optimizer->gradient_ready(2);
      finish_step(*optimizer, decide(1.0, 0.01));
      moved.push_back(optimizer->moved_bytes());
    }
    EXPECT_EQ(moved[0].reduce_scatter, moved[1].reduce_scatter);
    EXPECT_EQ(moved[0].all_gather, moved[1].all_gather);
    EXPECT_EQ(moved[0].exchange, moved[1].exchange);
    EXPECT_EQ(moved[0].collectives, moved[1].collectives);
  });
}

// Some ranks have no gradient for a parameter and never report it; they must not hang.
TEST(OverlapGuard, AParameterWithoutGradientOnSomeRanksDesynchronisesNothing) {
  for (const bool overlap : {false, true}) {
    std::mutex mutex;
    std::vector<std::vector<float>> values;
    run_ranks(3, [&](comm::Communicator& world) {
      OptimizerOptions options = uneven_options(Layout::kFlatOwner);
      options.overlap = overlap;
      options.bucket_bytes = 1024;
      const auto optimizer = make_optimizer(uneven_model(), options, world, &world);
      set_initial_values(*optimizer);
      for (int step = 0; step < 2; ++step) {
        for (std::size_t index = 0; index < optimizer->parameters().size(); ++index) {
          if (static_cast<int>(index) % 3 != world.rank()) {
            optimizer->parameters()[index].gradient[0] = 0.5F;
            optimizer->gradient_ready(index);
          }
        }
        finish_step(*optimizer, decide(1.0, 0.01));
      }
      const std::lock_guard lock{mutex};
      if (values.empty()) {
        values = values_of(*optimizer);
      }
      EXPECT_EQ(difference(values_of(*optimizer), values), "");
    });
  }
}

TEST(OverlapGuard, ADeadPeerEndsInAStatus) {
  run_ranks(2, [](comm::Communicator& world) {
    OptimizerOptions options = small_options();
    options.overlap = true;
    const auto optimizer = make_optimizer(small_model(), options, world, &world);
    if (world.rank() == 1) {
      world.abort("rank 1 is lost");
      return;
    }
    for (std::size_t index = 0; index < optimizer->parameters().size(); ++index) {
      optimizer->gradient_ready(index);
    }
    EXPECT_FALSE(optimizer->reduce_gradients(soon()).ok());
    optimizer->begin_gather(soon());
    EXPECT_FALSE(optimizer->wait_gathered(0, soon()).ok());
    EXPECT_FALSE(optimizer->gather_parameters(soon()).ok());
  });
}

TEST(OverlapGuard, APeerThatNeverReducesEndsByTheDeadline) {
  std::atomic<bool> done{false};
  run_ranks(2, [&](comm::Communicator& world) {
    OptimizerOptions options = small_options();
    options.overlap = true;
    const auto optimizer = make_optimizer(small_model(), options, world, &world);
    if (world.rank() == 1) {
      done.wait(false);
      return;
    }
    for (std::size_t index = 0; index < optimizer->parameters().size(); ++index) {
      optimizer->gradient_ready(index);
    }
    const Status late = optimizer->reduce_gradients(Deadline::after(std::chrono::milliseconds{50}));
    EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << late.to_string();
    done = true;
    done.notify_all();
  });
}

// Destruction in the middle of a step stops the communication thread.
TEST(OverlapGuard, EndsCleanlyWithGradientsUnderWay) {
  run_ranks(2, [](comm::Communicator& world) {
    OptimizerOptions options = small_options();
    options.overlap = true;
    const auto optimizer = make_optimizer(small_model(), options, world, &world);
    if (world.rank() == 0) {
      for (std::size_t index = 0; index < optimizer->parameters().size(); ++index) {
        optimizer->gradient_ready(index);
      }
    }
  });
}

TEST(OverlapGuard, AGatheringUnderWayIsFinishedBeforeTheEnd) {
  run_ranks(2, [](comm::Communicator& world) {
    OptimizerOptions options = small_options();
    options.overlap = true;
    {
      const auto optimizer = make_optimizer(small_model(), options, world, &world);
      optimizer->begin_gather(soon());
    }
    EXPECT_TRUE(world.barrier(soon()).ok());
  });
}

TEST(CommThread, RunsJobsInOrderAndStopsAtTheFirstError) {
  std::vector<int> ran;
  std::promise<void> may_fail;
  CommThread comm_thread{[](std::string_view) {}};
  for (int job = 0; job < 4; ++job) {
    comm_thread.submit(true, [&, job] {
      if (job == 2) {
        may_fail.get_future().wait();
      }
      ran.push_back(job);
      return job == 2 ? unavailable("job 2") : Status{};
    });
  }
  EXPECT_TRUE(comm_thread.wait(2, soon()).ok());
  may_fail.set_value();
  EXPECT_EQ(comm_thread.wait(4, soon()).message(), "job 2");
  EXPECT_THAT(ran, ::testing::ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace muster::optimizer
