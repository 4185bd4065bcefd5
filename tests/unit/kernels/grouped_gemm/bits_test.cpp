// SPDX-License-Identifier: Apache-2.0
// What does not change a bit of grouped products, and what they do not touch.
#include "tests/unit/kernels/grouped_gemm/case.h"

#include <muster/common/check.h>

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>

namespace muster::kernels {
namespace {

using test::Layout;
using test::Sizes;
using test::Tensor;
using test::uniform_values;

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16};
constexpr std::int64_t kIn = 100;
constexpr std::int64_t kOut = 70;

struct Outputs {
  std::vector<std::byte> y;
  std::vector<std::byte> dx;
  std::vector<float> gradients;

  bool operator==(const Outputs&) const = default;
};

struct Inputs {
  Tensor x;
  Tensor dy;
  Tensor weights;

  Inputs(DType type, std::int64_t rows, std::int64_t groups)
      : x(type, uniform_values(1, rows * kIn)),
        dy(type, uniform_values(2, rows * kOut)),
        weights(type, uniform_values(3, groups * kIn * kOut)) {}

  [[nodiscard]] Outputs run(DType type, const RowGroups& groups, int threads) const {
    const GroupedProblem problem{groups, kIn, kOut, type, threads};
    Outputs out{
        std::vector<std::byte>(dy.bytes().size(), std::byte{1}),
        std::vector<std::byte>(x.bytes().size(), std::byte{1}),
        std::vector<float>(groups.begins.size() * kIn * kOut, 0.25F)};
    grouped_forward(problem, x.data(), weights.data(), out.y.data());
    grouped_dgrad(problem, dy.data(), weights.data(), out.dx.data(), false);
    grouped_wgrad(problem, x.data(), dy.data(), out.gradients.data());
    return out;
  }
};

const Sizes kSkewed{1, 700, 0, 3, 14, 15, 90, 2};

TEST(GroupedProductBits, AreTheSameForAnyNumberOfThreads) {
  const Layout layout(kSkewed, 8, 1);
  for (const DType type : kTypes) {
    const Inputs inputs(type, layout.total, std::ssize(kSkewed));
    const Outputs expected = inputs.run(type, layout.groups(), 1);
    for (const int threads : {2, 3, 7}) {
      EXPECT_EQ(inputs.run(type, layout.groups(), threads), expected) << threads;
    }
  }
}

// Every row alone, its group's others away: as many groups of one row, which all have its matrix.
TEST(GroupedProductBits, OfARowDoNotDependOnTheRowsAndGroupsAroundIt) {
  const Layout layout(kSkewed, 1, 0);
  for (const DType type : kTypes) {
    const Inputs inputs(type, layout.total, std::ssize(kSkewed));
    const Outputs expected = inputs.run(type, layout.groups(), 1);
    for (const std::int64_t row : {0, 1, 13, 350, 700, 701, 704, 717, 733, 800, 824}) {
      Sizes begins(kSkewed.size());
      Sizes rows(kSkewed.size());
      std::size_t group = 0;
      while (row >= layout.begins[group] + layout.rows[group]) {
        ++group;
      }
      begins[group] = row;
      rows[group] = 1;
      Sizes ends = begins;
      ends[group] = row + 1;
      const Outputs alone = inputs.run(type, {begins, rows, ends}, 1);
      const auto same = [&](const auto& a, const auto& b, std::int64_t columns) {
        const std::int64_t size = size_bytes(type, columns);
        return std::equal(
            a.begin() + row * size, a.begin() + (row + 1) * size, b.begin() + row * size);
      };
      EXPECT_TRUE(same(alone.y, expected.y, kOut)) << "row " << row << ' ' << to_string(type);
      EXPECT_TRUE(same(alone.dx, expected.dx, kIn)) << "row " << row << ' ' << to_string(type);
    }
  }
}

TEST(GroupedProductBits, OfAGradientDoNotDependOnOtherGroups) {
  const Layout layout(kSkewed, 1, 0);
  for (const DType type : kTypes) {
    const Inputs inputs(type, layout.total, std::ssize(kSkewed));
    const Outputs expected = inputs.run(type, layout.groups(), 1);
    for (std::size_t group = 0; group < kSkewed.size(); ++group) {
      Sizes rows(kSkewed.size());
      rows[group] = kSkewed[group];
      const Outputs alone = inputs.run(type, {layout.begins, rows, layout.ends}, 1);
      const auto first = static_cast<std::ptrdiff_t>(group) * kIn * kOut;
      EXPECT_TRUE(std::equal(
          alone.gradients.begin() + first,
          alone.gradients.begin() + first + kIn * kOut,
          expected.gradients.begin() + first));
    }
  }
}

TEST(GroupedProductBits, AddingUpInputGradientsRoundsOnceMore) {
  const Layout layout({5, 600}, 4, 0);
  const Inputs inputs(DType::kFloat32, layout.total, 2);
  const GroupedProblem problem{layout.groups(), kIn, kOut, DType::kFloat32, 2};
  std::vector<float> plain(static_cast<std::size_t>(layout.total * kIn));
  std::vector<float> added(plain.size(), 3);
  grouped_dgrad(problem, inputs.dy.data(), inputs.weights.data(), plain.data(), false);
  grouped_dgrad(problem, inputs.dy.data(), inputs.weights.data(), added.data(), true);
  for (std::int64_t row = 0; row < layout.total; ++row) {
    const bool padding = row >= 5 && row < 8;
    for (std::int64_t i = row * kIn; i < (row + 1) * kIn; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(added[at], padding ? 0 : 3 + plain[at]) << "row " << row;
    }
  }
}

TEST(GroupedProductBits, ANanStaysInItsRowAndItsGroupsGradient) {
  const Layout layout({20, 30, 1}, 1, 0);
  for (const DType type : kTypes) {
    Inputs inputs(type, layout.total, 3);
    constexpr std::int64_t kRow = 25;
    inputs.x.set(kRow * kIn + 3, std::numeric_limits<float>::quiet_NaN());
    std::vector<double> zeros(static_cast<std::size_t>(layout.total * kOut));
    Tensor y(type, zeros);
    const GroupedProblem problem{layout.groups(), kIn, kOut, type, 1};
    grouped_forward(problem, inputs.x.data(), inputs.weights.data(), y.data());
    for (std::int64_t i = 0; i < layout.total * kOut; ++i) {
      ASSERT_EQ(std::isnan(y.at(i)), i / kOut == kRow) << i;
    }
    std::vector<float> gradients(3 * kIn * kOut);
    grouped_wgrad(problem, inputs.x.data(), inputs.dy.data(), gradients.data());
    for (std::int64_t i = 0; i < std::ssize(gradients); ++i) {
      const bool touched = i / (kIn * kOut) == 1 && i % kIn == 3;
      ASSERT_EQ(std::isnan(gradients[static_cast<std::size_t>(i)]), touched) << i;
    }
  }
}

TEST(GroupedProductBits, ResultsInBf16AreRoundedOnceToNearestEven) {
  constexpr std::int64_t kDepth = 7168;
  const Sizes begins{0};
  const Sizes one{1};
  const auto product = [&](const std::vector<double>& weights) {
    const auto depth = std::ssize(weights);
    const Tensor x(DType::kBFloat16, std::vector<double>(weights.size(), 1));
    const Tensor w(DType::kBFloat16, weights);
    Tensor y(DType::kBFloat16, {0});
    const GroupedProblem problem{{begins, one, one}, depth, 1, DType::kBFloat16, 1};
    grouped_forward(problem, x.data(), w.data(), y.data());
    return y.at(0);
  };
  // Halfway between neighbours 2^-7 apart.
  EXPECT_EQ(product({1, 0x1p-8}), 1);
  EXPECT_EQ(product({1, 0x3p-8}), 1 + 0x4p-8);
  // Neighbours are 2 apart, and no block of a few thousand terms adds a half of that.
  std::vector<double> weights(kDepth, 0x1p-11);
  weights[0] = 256;
  EXPECT_EQ(product(weights), 260);  // 256 + 7167 / 2048 = 259.4995
}

TEST(GroupedProductBits, NoGroupsAreNoWork) {
  for (const int threads : {1, 3}) {
    const GroupedProblem problem{{}, kIn, kOut, DType::kFloat32, threads};
    grouped_forward(problem, nullptr, nullptr, nullptr);
    grouped_dgrad(problem, nullptr, nullptr, nullptr, true);
    grouped_wgrad(problem, nullptr, nullptr, nullptr);
  }
}

TEST(GroupedProductBits, GroupsThatOverlapAreRefused) {
  const Sizes begins{0, 2};
  const Sizes rows{3, 1};
  const Sizes ends{3, 3};
  std::vector<float> values(16);
  const GroupedProblem problem{{begins, rows, ends}, 2, 2, DType::kFloat32, 1};
  EXPECT_THROW(grouped_forward(problem, values.data(), values.data(), values.data()), CheckFailure);
}

// Threads of a call are kept for the next, and a child of fork() has none of them.
TEST(GroupedProductBits, AChildProcessComputesTheSameWithItsOwnThreads) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "new threads in a child of a process with threads";
#endif
  const Layout layout(kSkewed, 1, 0);
  const Inputs inputs(DType::kFloat32, layout.total, std::ssize(kSkewed));
  const Outputs expected = inputs.run(DType::kFloat32, layout.groups(), 3);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    const bool same = inputs.run(DType::kFloat32, layout.groups(), 3) == expected;
    _exit(same ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(inputs.run(DType::kFloat32, layout.groups(), 3), expected);
}

}  // namespace
}  // namespace muster::kernels
