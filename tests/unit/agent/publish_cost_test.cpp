// SPDX-License-Identifier: Apache-2.0
// The promise of the training thread: recording and publishing a step neither allocates nor makes a
// system call.
#include "agent/src/metrics/step_facts.h"
#include "agent/src/uplink/telemetry.h"
#include "agent/src/uplink/uplink.h"
#include "agent/src/verdict/layer_report.h"
#include "tests/unit/agent/lane_ranks.h"

#include <gtest/gtest.h>

#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <new>

namespace {
thread_local std::int64_t allocations = 0;

void* counted(std::size_t size) {
  ++allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) {
    throw std::bad_alloc{};
  }
  return memory;
}
}  // namespace

void* operator new(std::size_t size) {
  return counted(size);
}

void* operator new[](std::size_t size) {
  return counted(size);
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete[](void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace muster::agent {
namespace {

class PublishCost : public testing::Test {
 protected:
  PublishCost()
      : telemetry_(std::make_unique<Channel>(64, shaped_sample(layout_, model(), true)), nullptr) {
    rank_.squared_norm = {1.0, 2.0};
    rank_.moba.resize(1);
    rank_.moba[0].gate_bound.resize(2);
    rank_.moba[0].norm_bound.resize(2);
    rank_.ep.resize(1);
    sum_.resize(layout_.sum_size());
    max_.resize(layout_.max_size());
    record();
    SharedState state;
    verdict_ = decide(lanes_, {}, DecideOptions{}, state);
  }

  static ModelInfo model() {
    ModelInfo info;
    info.attention = {{0, 2, 4, "wq", "wk"}};
    info.experts_per_layer = {3};
    info.attention_schedule = AttentionSchedule::parse("moba:64,3").value();
    info.expert_ranks = 2;
    return info;
  }

  // Records the passes of a step, then encodes and decodes its lanes.
  void record() {
    const std::array<float, 2> bounds{1.0F, 2.0F};
    const std::array<std::int64_t, 4> counts{1, 2, 3, 4};
    const std::array<double, 2> shares{0.25, 0.5};
    MobaRecord record;
    record.gate_bound = bounds;
    record.norm_bound = bounds;
    record.block_counts = counts;
    record.blocks = 2;
    record.sink_share = shares;
    record.gate_margin = shares;
    rank_.moba[0].clear();
    parallel::EpEvent event;
    event.ranks = 2;
    times_.clear();
    for (int pass = 0; pass < 2; ++pass) {
      added_ = add_record(record, rank_.moba[0], rank_.max_logits[0]).ok() &&
               add_reach({2, 1, 2, 1}, rank_.moba[0]).ok() && added_;
      add_pass(event, rank_.ep[0]);
      times_.add(event);
    }
    encode(layout_, rank_, sum_, max_);
    decode(layout_, sum_, max_, lanes_);
  }

  static LaneLayout layout() {
    LaneLayout layout = small_layout();
    layout.groups = 2;
    layout.moba_heads = {2};
    layout.ep_layers = 1;
    return layout;
  }

  // The telemetry part of end_step on a plain step, without reading the clock.
  void publish(std::int64_t step) {
    record();
    telemetry_.flush_notes();
    telemetry_.finished(step, 0);
    static_cast<void>(telemetry_.next_command());
    if (StepSample* slot = telemetry_.claim()) {
      slot->step = step;
      const StepOutcome outcome{lanes_, verdict_, modes_, times_};
      slot->facts.copy_rank(outcome);
      slot->facts.copy_job(outcome);
      telemetry_.publish();
      ++published_;
    }
  }

  LaneLayout layout_ = layout();
  LocalLanes rank_ = healthy_rank();
  std::vector<double> sum_;
  std::vector<double> max_;
  EpTimes times_{std::vector<std::chrono::nanoseconds>(2), {}, {}, false};
  std::array<AttentionMode, 1> modes_{};
  bool added_{true};
  Telemetry telemetry_;
  ReducedLanes lanes_;
  Verdict verdict_;
  int published_{0};
};

TEST_F(PublishCost, NoAllocationWhetherTheRingHasRoomOrNot) {
  const std::int64_t before = allocations;
  for (std::int64_t step = 0; step < 1000; ++step) {
    publish(step);
  }
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(published_, 64);
  EXPECT_TRUE(added_);
}

// In strict seccomp any call but read, write and _exit kills the process.
TEST_F(PublishCost, NoSystemCall) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) {
      ::_exit(77);
    }
    for (std::int64_t step = 0; step < 1000; ++step) {
      publish(step);
    }
    ::syscall(SYS_exit, published_ == 64 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "this kernel has no strict seccomp";
  }
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace muster::agent
