// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/cpu/packed.h"
#include "tests/unit/kernels/numbers.h"

#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace muster::kernels {
namespace {

using test::cast;
using test::normal_values;

float rounded_to_bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = (bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Operands as stored, with what they hold.
struct Stored {
  std::vector<float> values;
  std::int64_t rows;
  std::int64_t cols;
  bool transposed;

  [[nodiscard]] Operand operand() const {
    return {values.data(), transposed ? rows : cols, transposed};
  }

  [[nodiscard]] double at(std::int64_t i, std::int64_t j, DType type) const {
    const float value = values[static_cast<std::size_t>(transposed ? j * rows + i : i * cols + j)];
    return static_cast<double>(type == DType::kBFloat16 ? rounded_to_bf16(value) : value);
  }
};

Product product_of(const Stored& a, const Stored& b, std::vector<float>& c, DType type) {
  Product product;
  product.m = a.rows;
  product.n = b.cols;
  product.k = a.cols;
  product.a = a.operand();
  product.b = b.operand();
  product.type = type;
  product.c = c.data();
  product.stride = b.cols;
  return product;
}

// Every element against the sum in double: k roundings of terms below sum |a||b|, at most.
void expect_product(const Stored& a, const Stored& b, DType type) {
  std::vector<float> c(
      static_cast<std::size_t>(a.rows * b.cols), std::numeric_limits<float>::quiet_NaN());
  ProductScratch scratch;
  ThreadTeam alone(1);
  scratch.multiply(product_of(a, b, c, type), alone);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.cols; ++j) {
      double sum = 0;
      double terms = 0;
      for (std::int64_t k = 0; k < a.cols; ++k) {
        const double term = a.at(i, k, type) * b.at(k, j, type);
        sum += term;
        terms += std::abs(term);
      }
      const auto got = static_cast<double>(c[static_cast<std::size_t>(i * b.cols + j)]);
      ASSERT_NEAR(got, sum, 0x1p-24 * static_cast<double>(a.cols + 1) * terms)
          << a.rows << " x " << b.cols << " x " << a.cols << " at " << i << ", " << j;
    }
  }
}

constexpr std::int64_t kShapes[][3] = {
    {1, 1, 1},
    {1, 33, 7},
    {33, 1, 513},
    {2, 3, 4},
    {13, 31, 15},
    {14, 32, 16},
    {15, 33, 17},
    {29, 65, 257},
    {43, 47, 515}};

TEST(PackedProduct, EqualsTheSumInDoubleForEveryShapeAndStorage) {
  for (const auto& [m, n, k] : kShapes) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool left : {false, true}) {
        for (const bool right : {false, true}) {
          const Stored a{normal_values<float>(1, m * k), m, k, left};
          const Stored b{normal_values<float>(2, k * n), k, n, right};
          expect_product(a, b, type);
        }
      }
    }
  }
}

TEST(PackedProduct, ASymmetricOneEqualsTheFullOneBitForBit) {
  ProductScratch scratch;
  ThreadTeam alone(1);
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t m : {1, 5, 14, 16, 33, 100, 131}) {
      constexpr std::int64_t kDepth = 300;
      const Stored x{normal_values<float>(3, m * kDepth), m, kDepth, false};
      const Stored transposed{x.values, kDepth, m, true};
      std::vector<float> full(static_cast<std::size_t>(m * m));
      std::vector<float> half(full.size(), std::numeric_limits<float>::quiet_NaN());
      scratch.multiply(product_of(x, transposed, full, type), alone);
      Product product = product_of(x, transposed, half, type);
      product.symmetric = true;
      scratch.multiply(product, alone);
      EXPECT_EQ(full, half) << m;
    }
  }
}

TEST(PackedProduct, AddendsCountOnceAcrossBlocksOfTheDepth) {
  constexpr std::int64_t kSize = 37;
  constexpr std::int64_t kDepth = 1100;
  const Stored a{normal_values<float>(4, kSize * kDepth), kSize, kDepth, false};
  const Stored b{normal_values<float>(5, kSize * kDepth), kDepth, kSize, false};
  const auto first = normal_values<float>(6, kSize * kSize);
  const auto second = normal_values<float>(7, kSize * kSize);
  std::vector<float> plain(first.size());
  std::vector<float> c(first.size());
  ProductScratch scratch;
  ThreadTeam alone(1);
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    scratch.multiply(product_of(a, b, plain, type), alone);
    Product product = product_of(a, b, c, type);
    product.alpha = 0.5F;
    product.first = {first.data(), kSize, 3};
    product.second = {second.data(), kSize, -2};
    scratch.multiply(product, alone);
    for (std::size_t i = 0; i < c.size(); ++i) {
      // A few roundings of sums near 50.
      ASSERT_NEAR(c[i], 0.5F * plain[i] + 3 * first[i] - 2 * second[i], 1e-4F);
    }
  }
}

TEST(PackedProduct, TheResultMayBeAnAddend) {
  constexpr std::int64_t kSize = 20;
  const Stored a{normal_values<float>(8, kSize * 600), kSize, 600, false};
  const Stored b{normal_values<float>(9, kSize * 600), 600, kSize, false};
  const auto before = normal_values<float>(10, kSize * kSize);
  std::vector<float> beside(before.size());
  std::vector<float> in_place = before;
  ProductScratch scratch;
  ThreadTeam alone(1);
  Product product = product_of(a, b, beside, DType::kFloat32);
  product.first = {before.data(), kSize, 2};
  scratch.multiply(product, alone);
  product.c = in_place.data();
  product.first.data = in_place.data();
  scratch.multiply(product, alone);
  EXPECT_EQ(beside, in_place);
}

TEST(PackedProduct, ThreadsDoNotChangeABit) {
  const Stored x{normal_values<float>(11, 150 * 700), 150, 700, false};
  const Stored transposed{x.values, 700, 150, true};
  for (const bool symmetric : {false, true}) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      std::vector<float> expected;
      for (const int threads : {1, 2, 3, 7}) {
        ThreadTeam team(threads);
        ProductScratch scratch;
        std::vector<float> c(150 * 150);
        Product product = product_of(x, transposed, c, type);
        product.symmetric = symmetric;
        scratch.multiply(product, team);
        if (threads == 1) {
          expected = c;
        }
        EXPECT_EQ(c, expected) << threads;
      }
    }
  }
}

TEST(PackedProduct, NothingBesideTheResultIsWritten) {
  constexpr std::int64_t kRows = 17;
  constexpr std::int64_t kCols = 19;
  constexpr std::int64_t kStride = 40;
  const Stored a{normal_values<float>(12, kRows * 30), kRows, 30, false};
  const Stored b{normal_values<float>(13, 30 * kCols), 30, kCols, false};
  std::vector<float> c(kRows * kStride, 7);
  ProductScratch scratch;
  ThreadTeam alone(1);
  Product product = product_of(a, b, c, DType::kFloat32);
  product.stride = kStride;
  scratch.multiply(product, alone);
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = kCols; j < kStride; ++j) {
      ASSERT_EQ(c[static_cast<std::size_t>(i * kStride + j)], 7);
    }
  }
}

TEST(PackedProduct, Bf16OperandsRoundToNearestEven) {
  ProductScratch scratch;
  ThreadTeam alone(1);
  // Halfway between two bf16: to the even one. A little more: up.
  const float cases[][2] = {
      {1 + 0x1p-8F, 1}, {1 + 0x3p-8F, 1 + 0x4p-8F}, {1 + 0x1p-8F + 0x1p-20F, 1 + 0x2p-8F}};
  for (const auto& [value, expected] : cases) {
    const Stored a{{value}, 1, 1, false};
    const Stored one{{1}, 1, 1, false};
    std::vector<float> c(1);
    scratch.multiply(product_of(a, one, c, DType::kBFloat16), alone);
    EXPECT_EQ(c[0], expected);
    scratch.multiply(product_of(one, a, c, DType::kBFloat16), alone);
    EXPECT_EQ(c[0], expected);
  }
}

// Rows 2^30 elements apart in memory that is only promised: any 32-bit offset would miss the third.
TEST(PackedProduct, OffsetsBeyondTwoToThe31Work) {
  constexpr std::int64_t kStride = std::int64_t{1} << 30;
  constexpr std::size_t kBytes = (std::size_t{2} << 30) * 4 + 4096;
  void* memory = mmap(
      nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    GTEST_SKIP() << "no address space for 8 GiB";
  }
  auto* x = static_cast<float*>(memory);
  for (std::int64_t i = 0; i < 3; ++i) {
    x[i * kStride] = static_cast<float>(i + 1);
    x[i * kStride + 1] = static_cast<float>(10 * (i + 1));
  }
  ProductScratch scratch;
  ThreadTeam alone(1);
  std::vector<float> c(9);
  Product product;
  product.m = product.n = 3;
  product.k = 2;
  product.a = {x, kStride, false};
  product.b = {x, kStride, true};
  product.symmetric = true;
  product.c = c.data();
  product.stride = 3;
  scratch.multiply(product, alone);
  munmap(memory, kBytes);
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t j = 0; j < 3; ++j) {
      const auto expected = static_cast<float>(101 * (i + 1) * (j + 1));
      EXPECT_EQ(c[static_cast<std::size_t>(i * 3 + j)], expected);
    }
  }
}

TEST(ThreadTeam, EveryTaskRunsOnceWhateverTheNumberOfMembers) {
  for (const int members : {1, 2, 5}) {
    ThreadTeam team(members);
    EXPECT_EQ(team.members(), members);
    for (const std::int64_t tasks : {0, 1, 3, 100}) {
      std::vector<int> runs(static_cast<std::size_t>(tasks), 0);
      team.run(tasks, [&](std::int64_t task, int member) {
        EXPECT_GE(member, 0);
        EXPECT_LT(member, members);
        ++runs[static_cast<std::size_t>(task)];
      });
      EXPECT_EQ(runs, std::vector<int>(static_cast<std::size_t>(tasks), 1));
    }
  }
}

TEST(ThreadTeam, AFailureOfATaskReachesTheCallerAfterTheOthersHaveRun) {
  for (const int members : {1, 3}) {
    ThreadTeam team(members);
    std::vector<int> runs(10, 0);
    const auto task = [&](std::int64_t number, int /*member*/) {
      ++runs[static_cast<std::size_t>(number)];
      if (number == 9) {
        throw std::runtime_error("ninth");
      }
    };
    EXPECT_THROW(team.run(10, task), std::runtime_error);
    EXPECT_EQ(runs, std::vector<int>(10, 1));
    EXPECT_NO_THROW(team.run(3, [](std::int64_t, int) {}));
  }
}

TEST(ThreadTeam, WorkOfOneRunIsSeenByTheNext) {
  ThreadTeam team(3);
  std::vector<std::int64_t> values(64, 0);
  for (int round = 0; round < 200; ++round) {
    // Element i is next touched by whoever takes the other task.
    team.run(64, [&](std::int64_t task, int /*member*/) {
      ++values[static_cast<std::size_t>((task + round) % 64)];
    });
  }
  EXPECT_EQ(values, std::vector<std::int64_t>(64, 200));
}

}  // namespace
}  // namespace muster::kernels
