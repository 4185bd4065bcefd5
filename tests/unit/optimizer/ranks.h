// SPDX-License-Identifier: Apache-2.0
// Runs one function per rank, each on its own thread with its own communicator.
#pragma once

#include "tests/support/deadlines.h"

#include <muster/comm/backends.h>
#include <muster/optimizer/optimizer.h>

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace muster::optimizer {

using test::soon;

inline void run_ranks(int size, const std::function<void(comm::Communicator&)>& body) {
  const auto group = comm::make_local_group(size);
  std::vector<std::thread> threads;
  for (const auto& communicator : group) {
    threads.emplace_back([&body, &world = *communicator] { body(world); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

inline std::unique_ptr<Optimizer> make_optimizer(
    const std::vector<ParameterSpec>& specs,
    const OptimizerOptions& options,
    comm::Communicator& world,
    comm::Communicator* peers = nullptr) {
  auto optimizer = Optimizer::create(specs, options, world, peers, soon());
  EXPECT_TRUE(optimizer.ok()) << optimizer.status().to_string();
  return optimizer.ok() ? std::move(*optimizer) : nullptr;
}

}  // namespace muster::optimizer
