// The promise of the training thread: publishing a step neither allocates nor makes a system call.
#include "lane_ranks.h"
#include "src/metric_catalog.h"
#include "src/telemetry.h"
#include "src/uplink.h"

#include <gtest/gtest.h>

#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

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
      : catalog_(
            model(),
            {{"hidden", false, true, true, 0}, {"rest", true, true, false, 0.95}},
            {true, true, true}),
        telemetry_(make()) {
    LaneLayout layout = small_layout();
    layout.groups = 2;
    LocalLanes rank = healthy_rank();
    rank.squared_norm = {1.0, 2.0};
    lanes_ = reduce(layout, {rank, rank});
    SharedState state;
    verdict_ = decide(lanes_, {}, DecideOptions{}, state);
  }

  static ModelInfo model() {
    ModelInfo info;
    info.attention = {{0, 2, 4, "wq", "wk"}};
    info.experts_per_layer = {3};
    return info;
  }

  std::unique_ptr<Telemetry> make() {
    SampleFrame prototype;
    prototype.values.resize(catalog_.schema().metrics.size());
    return std::make_unique<Telemetry>(std::make_unique<Channel>(64, prototype), nullptr);
  }

  // What end_step does for telemetry on a plain step, without reading the clock.
  void publish(std::int64_t step) {
    telemetry_->flush_notes();
    telemetry_->finished(step, 0);
    static_cast<void>(telemetry_->next_command());
    if (SampleFrame* slot = telemetry_->claim()) {
      slot->step = step;
      catalog_.fill(StepFacts{lanes_, verdict_}, slot->values);
      telemetry_->publish();
      ++published_;
    }
  }

  MetricCatalog catalog_;
  std::unique_ptr<Telemetry> telemetry_;
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
