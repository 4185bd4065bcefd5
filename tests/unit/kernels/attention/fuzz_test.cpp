// SPDX-License-Identifier: Apache-2.0
// Random problems against the oracle in fenced memory. A failure is shrunk to a small problem and
// printed; MUSTER_FUZZ_SEED and MUSTER_FUZZ_CASES ask for others and more.
#include "tests/unit/kernels/attention/case.h"

#include <cstdlib>
#include <functional>
#include <optional>

namespace muster::kernels {
namespace {

using test::AttentionCase;
using test::AttentionRun;
using test::largest_difference;
using test::Values;

std::int64_t from_environment(const char* name, std::int64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoll(text);
}

// Returns a description of the first error, or nothing. Tolerances as in flash_attention_test.cpp.
template <typename E>
std::optional<std::string> problem_with(const AttentionCase& config, bool at_end) {
  AttentionRun<E> run(config, at_end);
  if (const Status s = run.forward(); !s.ok()) {
    return s.to_string();
  }
  if (const Status s = run.backward(); !s.ok()) {
    return s.to_string();
  }
  const auto oracle = run.oracle();
  const Values q = run.q.values();
  const Values k = run.k.values();
  const Values v = run.v.values();
  const auto forward = oracle_forward(oracle, q, k, v);
  const auto backward = oracle_backward(oracle, q, k, v, run.dout.values(), {});
  const double half = std::is_same_v<E, std::uint16_t> ? 0x1p-8 : 0;
  const double unit = 8 * 0x1p-24 * (2 + forward.logit_size);
  const double slope = 2 * unit + 2 * half;
  const auto differs = [](const Values& a, const Values& b, double tolerance) {
    return !(largest_difference(a, b) <= tolerance);
  };
  if (differs(run.out.values(), forward.out, (unit + half) * forward.size)) {
    return "out";
  }
  if (differs(run.lse.values(), forward.lse, unit)) {
    return "lse";
  }
  if (differs(
          Values(run.max_logit.begin(), run.max_logit.end()),
          forward.max_logit,
          unit + 0x1p-23 * forward.logit_size)) {
    return "max_logit";
  }
  if (differs(run.dq.values(), backward.dq, slope * backward.dq_size)) {
    return "dq";
  }
  if (differs(run.dk.values(), backward.dk, slope * backward.dk_size)) {
    return "dk";
  }
  if (differs(run.dv.values(), backward.dv, slope * backward.dv_size)) {
    return "dv";
  }
  return std::nullopt;
}

AttentionCase random_case(Random& random) {
  const auto up_to = [&](std::uint64_t n) { return static_cast<std::int64_t>(random.below(n)); };
  AttentionCase c;
  c.seed = random.below(100000);
  c.kv_heads = static_cast<int>(1 + up_to(3));
  c.heads = c.kv_heads * static_cast<int>(1 + up_to(4));
  c.head_dim = static_cast<int>(up_to(4) == 0 ? 8 + up_to(249) : 8 * (1 + up_to(8)));
  c.causal = up_to(4) != 0;
  c.softcap = up_to(5) == 0 ? 5 : 0;
  c.bias = up_to(5) == 0;
  c.threads = static_cast<int>(1 + up_to(2));
  c.queries.clear();
  const bool same = up_to(2) == 0;
  const std::int64_t sequences = 1 + up_to(3);
  for (std::int64_t s = 0; s < sequences; ++s) {
    c.queries.push_back(up_to(5) == 0 ? 0 : 1 + up_to(up_to(3) == 0 ? 300 : 60));
    if (!same) {
      c.keys.push_back(up_to(6) == 0 ? 0 : 1 + up_to(up_to(3) == 0 ? 300 : 60));
    }
  }
  return c;
}

// Problems that are a little smaller.
std::vector<AttentionCase> smaller(const AttentionCase& c) {
  std::vector<AttentionCase> result;
  const auto add = [&](auto change) {
    AttentionCase other = c;
    change(other);
    result.push_back(other);
  };
  for (std::size_t s = 0; s < c.queries.size(); ++s) {
    const auto at = static_cast<std::ptrdiff_t>(s);
    if (c.queries.size() > 1) {
      add([&](AttentionCase& o) {
        o.queries.erase(o.queries.begin() + at);
        if (!o.keys.empty()) {
          o.keys.erase(o.keys.begin() + at);
        }
      });
    }
    for (const std::int64_t less : {c.queries[s] / 2, std::int64_t{1}}) {
      if (less > 0) {
        add([&](AttentionCase& o) { o.queries[s] = o.queries[s] - less; });
        if (!c.keys.empty() && c.keys[s] >= less) {
          add([&](AttentionCase& o) { o.keys[s] = o.keys[s] - less; });
        }
      }
    }
  }
  if (c.heads > c.kv_heads) {
    add([](AttentionCase& o) { o.heads = o.kv_heads; });
  }
  if (c.kv_heads > 1) {
    add([](AttentionCase& o) {
      o.heads = o.heads / o.kv_heads;
      o.kv_heads = 1;
    });
    add([](AttentionCase& o) {
      o.heads -= o.heads / o.kv_heads;
      --o.kv_heads;
    });
  }
  if (c.head_dim > 8) {
    add([](AttentionCase& o) { o.head_dim = std::max(8, o.head_dim / 2); });
    add([](AttentionCase& o) { o.head_dim = o.head_dim - 1; });
  }
  add([](AttentionCase& o) { o.bias = false; });
  add([](AttentionCase& o) { o.softcap = 0; });
  add([](AttentionCase& o) { o.threads = 1; });
  return result;
}

// A small case that still `fails`, by greedy descent.
AttentionCase shrunk(
    AttentionCase failing, const std::function<bool(const AttentionCase&)>& fails) {
  bool moved = true;
  for (int steps = 0; moved && steps < 200; ++steps) {
    moved = false;
    for (const AttentionCase& candidate : smaller(failing)) {
      if (candidate.name() != failing.name() && fails(candidate)) {
        failing = candidate;
        moved = true;
        break;
      }
    }
  }
  return failing;
}

template <typename E>
void fuzz(std::uint64_t seed) {
  Random random(seed);
  const std::int64_t cases = from_environment("MUSTER_FUZZ_CASES", test::kSanitized ? 6 : 30);
  for (std::int64_t i = 0; i < cases; ++i) {
    const AttentionCase config = random_case(random);
    const bool at_end = i % 2 == 0;
    if (problem_with<E>(config, at_end)) {
      const AttentionCase small = shrunk(config, [at_end](const AttentionCase& tried) {
        return problem_with<E>(tried, at_end).has_value();
      });
      FAIL() << "seed " << seed << " case " << i << ": " << config.name()
             << "\nshrunk: " << small.name()
             << "\nwrong: " << problem_with<E>(small, at_end).value_or("nothing");
    }
  }
}

TEST(FlashFuzz, FloatAgreesWithTheOracleOnRandomProblems) {
  fuzz<float>(static_cast<std::uint64_t>(from_environment("MUSTER_FUZZ_SEED", 1)));
}

TEST(FlashFuzz, AFailureIsShrunkToTheSmallestThatFails) {
  AttentionCase failing{.queries = {90, 17, 50}, .keys = {80, 30, 7}, .heads = 6, .kv_heads = 3};
  failing.head_dim = 100;
  failing.softcap = 3;
  failing.bias = true;
  failing.threads = 2;
  const AttentionCase least = shrunk(failing, [](const AttentionCase& tried) {
    return tried.queries[0] >= 12 && tried.heads >= 2 && tried.head_dim > 20;
  });
  EXPECT_EQ(least.queries, (std::vector<std::int64_t>{12}));
  EXPECT_EQ(least.keys, (std::vector<std::int64_t>{0}));
  EXPECT_EQ(least.heads, 2);
  EXPECT_EQ(least.kv_heads, 2);  // with one, or one query head for each, it would be one head
  EXPECT_EQ(least.head_dim, 21);
  EXPECT_FALSE(least.bias);
  EXPECT_EQ(least.softcap, 0);
  EXPECT_EQ(least.threads, 1);
}

TEST(FlashFuzz, BFloat16AgreesWithTheOracleOnRandomProblems) {
  fuzz<std::uint16_t>(static_cast<std::uint64_t>(from_environment("MUSTER_FUZZ_SEED", 2)));
}

}  // namespace
}  // namespace muster::kernels
