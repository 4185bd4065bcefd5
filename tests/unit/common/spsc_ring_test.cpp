// SPDX-License-Identifier: Apache-2.0
#include <muster/common/spsc_ring.h>

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace muster {

namespace {

bool push(SpscRing<int>& ring, int value) {
  int* slot = ring.try_claim();
  if (slot == nullptr) {
    return false;
  }
  *slot = value;
  ring.publish();
  return true;
}

TEST(SpscRing, IsEmptyAtFirst) {
  SpscRing<int> ring{4};
  EXPECT_EQ(ring.front(), nullptr);
  EXPECT_EQ(ring.size(), 0U);
  EXPECT_EQ(ring.capacity(), 4U);
}

TEST(SpscRing, NeedsAtLeastOneSlot) {
  EXPECT_THROW(SpscRing<int>{0}, CheckFailure);
}

TEST(SpscRing, RefusesWhenFullAndAcceptsAfterAPop) {
  SpscRing<int> ring{2};
  EXPECT_TRUE(push(ring, 1));
  EXPECT_TRUE(push(ring, 2));
  EXPECT_FALSE(push(ring, 3));
  EXPECT_EQ(*ring.front(), 1);
  ring.pop();
  EXPECT_TRUE(push(ring, 3));
  EXPECT_EQ(ring.size(), 2U);
}

TEST(SpscRing, ClaimedSlotIsInvisibleUntilPublished) {
  SpscRing<int> ring{2};
  *ring.try_claim() = 5;
  EXPECT_EQ(ring.front(), nullptr);
  ring.publish();
  ASSERT_NE(ring.front(), nullptr);
  EXPECT_EQ(*ring.front(), 5);
}

TEST(SpscRing, KeepsOrderAcrossWrapAround) {
  for (const std::size_t capacity : {1UL, 3UL, 8UL}) {
    SpscRing<int> ring{capacity};
    int next_in = 0;
    int next_out = 0;
    while (next_out < 100) {
      while (push(ring, next_in)) {
        ++next_in;
      }
      // Take one fewer than there are, so that the positions drift against the slots.
      for (std::size_t left = ring.size(); left > (capacity > 1 ? 1U : 0U); --left) {
        ASSERT_EQ(*ring.front(), next_out) << "capacity " << capacity;
        ring.pop();
        ++next_out;
      }
    }
  }
}

TEST(SpscRing, SlotsKeepTheirCapacity) {
  SpscRing<std::vector<float>> ring{2, std::vector<float>(100)};
  const float* storage = ring.try_claim()->data();
  for (int turn = 0; turn < 2; ++turn) {
    ring.try_claim()->assign(100, 1.0F);
    ring.publish();
    ring.pop();
  }
  EXPECT_EQ(ring.try_claim()->data(), storage);
}

TEST(SpscRing, CarriesEveryElementBetweenTwoThreads) {
  constexpr std::uint64_t kCount = 200000;
  SpscRing<std::string> ring{7, std::string(24, ' ')};
  std::thread producer{[&ring] {
    for (std::uint64_t i = 0; i < kCount; ++i) {
      std::string* slot = ring.try_claim();
      while (slot == nullptr) {
        std::this_thread::yield();
        slot = ring.try_claim();
      }
      *slot = "element number " + std::to_string(i);
      ring.publish();
    }
  }};
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const std::string* front = ring.front();
    while (front == nullptr) {
      std::this_thread::yield();
      front = ring.front();
    }
    wrong += *front == "element number " + std::to_string(i) ? 0U : 1U;
    ring.pop();
  }
  producer.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(ring.size(), 0U);
}

}  // namespace

}  // namespace muster
