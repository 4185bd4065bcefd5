// SPDX-License-Identifier: Apache-2.0
// Random problems against the fp64 oracle; a failure is shrunk to a small one before it is shown.
#include "tests/unit/kernels/moba/oracle.h"

#include <algorithm>
#include <functional>

namespace muster::kernels::test {
namespace {

struct FuzzCase {
  MobaSetup setup;
  DType type{DType::kFloat32};
  std::uint64_t seed{0};

  [[nodiscard]] std::string error() const { return moba_error(setup, seed, type); }
};

std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(high - low + 1)));
}

FuzzCase random_case(std::uint64_t seed) {
  Random random(seed);
  FuzzCase result;
  result.seed = seed;
  MobaSetup& setup = result.setup;
  setup.causal = pick(random, 0, 4) != 0;
  const std::int64_t sequences = pick(random, 1, 3);
  const bool cached = pick(random, 0, 3) == 0;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const std::int64_t length = pick(random, 0, 5) == 0 ? 0 : pick(random, 1, 160);
    setup.query_lengths.push_back(length);
    if (cached) {
      setup.key_lengths.push_back(length + pick(random, -10, 60) * (length > 10 ? 1 : 0));
    }
  }
  setup.kv_heads = static_cast<int>(pick(random, 1, 2));
  setup.heads = setup.kv_heads * static_cast<int>(pick(random, 1, 3));
  setup.dim = static_cast<int>(pick(random, 1, 3) == 1 ? 8 * pick(random, 1, 32) : 8);
  setup.options.block = pick(random, 0, 1) == 0 ? pick(random, 1, 20) : pick(random, 1, 100);
  setup.options.top_k = static_cast<int>(pick(random, 1, 5));
  setup.options.force_neighbour = setup.causal && pick(random, 0, 4) == 0;
  setup.options.share_in_group = pick(random, 0, 3) == 0;
  setup.softcap = pick(random, 0, 4) == 0 ? 3 : 0;
  setup.threads = static_cast<int>(pick(random, 1, 3));
  setup.fence_at_end = pick(random, 0, 1) == 0;
  if (pick(random, 0, 19) == 0) {  // long enough for blocks of hundreds
    setup.query_lengths = {pick(random, 400, 1100)};
    setup.key_lengths.clear();
    setup.options.block = pick(random, 64, 512);
    setup.kv_heads = 1;
    setup.heads = static_cast<int>(pick(random, 1, 2));
    setup.dim = 8;
  }
  const std::int64_t type = pick(random, 0, 3);
  result.type = type == 0 ? DType::kBFloat16 : type == 1 ? DType::kFloat64 : DType::kFloat32;
  return result;
}

std::vector<FuzzCase> smaller_cases(const FuzzCase& failing) {
  std::vector<FuzzCase> result;
  const auto propose = [&](const std::function<void(MobaSetup&)>& change) {
    FuzzCase next = failing;
    change(next.setup);
    result.push_back(next);
  };
  const std::size_t count = failing.setup.query_lengths.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (count > 1) {
      propose([i](MobaSetup& s) {
        s.query_lengths.erase(s.query_lengths.begin() + static_cast<std::ptrdiff_t>(i));
        if (!s.key_lengths.empty()) {
          s.key_lengths.erase(s.key_lengths.begin() + static_cast<std::ptrdiff_t>(i));
        }
      });
    }
    propose([i](MobaSetup& s) { s.query_lengths[i] /= 2; });
    propose([i](MobaSetup& s) { s.query_lengths[i] -= s.query_lengths[i] > 0 ? 1 : 0; });
  }
  propose([](MobaSetup& s) { s.key_lengths.clear(); });
  propose([](MobaSetup& s) { s.heads = s.kv_heads; });
  propose([](MobaSetup& s) { s.heads = s.kv_heads = 1; });
  propose([](MobaSetup& s) { s.dim = 8; });
  propose([](MobaSetup& s) { s.options.block = (s.options.block + 1) / 2; });
  propose([](MobaSetup& s) { s.options.top_k -= s.options.top_k > 1 ? 1 : 0; });
  propose([](MobaSetup& s) { s.options.force_neighbour = false; });
  propose([](MobaSetup& s) { s.options.share_in_group = false; });
  propose([](MobaSetup& s) { s.softcap = 0; });
  propose([](MobaSetup& s) { s.threads = 1; });
  return result;
}

std::int64_t size_of(const MobaSetup& setup) {
  return setup.total_q() + setup.total_k() + setup.heads + setup.kv_heads + setup.dim +
         setup.options.block + setup.options.top_k + (setup.options.force_neighbour ? 1 : 0) +
         (setup.options.share_in_group ? 1 : 0) + (setup.softcap > 0 ? 1 : 0) + setup.threads +
         static_cast<std::int64_t>(setup.query_lengths.size());
}

// A smallest case that still `fails`, by greedy descent.
FuzzCase shrink(FuzzCase failing, const std::function<bool(const FuzzCase&)>& fails) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (const FuzzCase& next : smaller_cases(failing)) {
      if (size_of(next.setup) < size_of(failing.setup) && fails(next)) {
        failing = next;
        smaller = true;
        break;
      }
    }
  }
  return failing;
}

TEST(MobaFuzz, RandomProblemsAgreeWithTheOracle) {
  constexpr std::uint64_t kFirst = 1000;
  constexpr std::uint64_t kCases = kSanitized ? 75 : 150;
  for (std::uint64_t seed = kFirst; seed < kFirst + kCases; ++seed) {
    const FuzzCase random = random_case(seed);
    if (random.error().empty()) {
      continue;
    }
    const FuzzCase least =
        shrink(random, [](const FuzzCase& tried) { return !tried.error().empty(); });
    FAIL() << "seed " << seed << ": " << random.setup << "\n  " << random.error() << "\nshrunk to "
           << least.setup << "\n  " << least.error();
  }
}

TEST(MobaFuzz, AFailureIsShrunkToTheSmallestThatFails) {
  FuzzCase failing = random_case(1);
  failing.setup.query_lengths = {90, 17, 50};
  failing.setup.key_lengths.clear();
  failing.setup.options.block = 40;
  const FuzzCase least = shrink(failing, [](const FuzzCase& tried) {
    return tried.setup.total_q() >= 12 && tried.setup.options.block > 2;
  });
  EXPECT_EQ(least.setup.query_lengths, (std::vector<std::int64_t>{12}));
  EXPECT_EQ(least.setup.options.block, 3);
  EXPECT_EQ(least.setup.heads, 1);
}

}  // namespace
}  // namespace muster::kernels::test
