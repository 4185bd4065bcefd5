// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/parallel/experts/exchange/case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

namespace muster::parallel::testing {

EpExchangeOptions MoveCase::options() const {
  EpExchangeOptions options;
  options.shape = shape;
  options.balance = balance;
  options.hidden = hidden;
  options.type = type;
  options.numerics = numerics;
  return options;
}

void PrintTo(const MoveCase& test, std::ostream* out) {
  *out << test.name << " seed " << test.seed;
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15ULL + b * 0xBF58476D1CE4E5B9ULL + c + 1;
  for (int i = 0; i < 2; ++i) {
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
    x ^= x >> 31U;
  }
  return x;
}

namespace {

int draw(const MoveCase& test, int rank, std::uint64_t i) {
  const auto experts = static_cast<std::uint64_t>(test.shape.experts);
  const auto local = static_cast<std::uint64_t>(test.shape.local_experts());
  const std::uint64_t random = mix(test.seed, static_cast<std::uint64_t>(rank) + 77, i);
  const auto home = static_cast<std::uint64_t>(rank);
  const auto next = (home + 1) % static_cast<std::uint64_t>(test.shape.ranks);
  switch (test.spread) {
    case Spread::kOneExpert:
      return test.shape.experts / 2;
    case Spread::kSkewed:
      return static_cast<int>(std::min(random % experts, (random >> 20U) % (experts + 2)));
    case Spread::kAtHome:
      return static_cast<int>(home * local + random % local);
    case Spread::kAway:
      return static_cast<int>(next * local + random % local);
    case Spread::kUniform:
    case Spread::kDuplicates:
      break;
  }
  return static_cast<int>(random % experts);
}

}  // namespace

std::vector<std::int32_t> choices_of(const MoveCase& test, int rank) {
  const bool distinct = test.spread == Spread::kUniform || test.spread == Spread::kSkewed;
  std::vector<std::int32_t> choices;
  std::uint64_t draws = 0;
  for (int t = 0; t < test.tokens[static_cast<std::size_t>(rank)]; ++t) {
    const auto begin = static_cast<std::ptrdiff_t>(choices.size());
    while (static_cast<std::ptrdiff_t>(choices.size()) - begin < test.shape.top_k) {
      const int expert = draw(test, rank, draws++);
      if (!distinct || std::find(choices.begin() + begin, choices.end(), expert) == choices.end()) {
        choices.push_back(expert);
      }
    }
  }
  return choices;
}

float input(const MoveCase& test, int rank, std::int64_t token, std::int64_t h) {
  const auto where = static_cast<std::uint64_t>(token * test.hidden + h);
  return static_cast<float>(
             static_cast<int>(mix(test.seed + 5, where, static_cast<std::uint64_t>(rank)) % 7)) -
         3;
}

float gate(const MoveCase& test, int rank, std::int64_t token, int choice) {
  const auto where = static_cast<std::uint64_t>(token * test.shape.top_k + choice);
  return static_cast<float>(mix(test.seed + 6, where, static_cast<std::uint64_t>(rank)) >> 40U);
}

float output(const MoveCase& test, int rank, std::int64_t token, int choice, std::int64_t h) {
  const auto where =
      static_cast<std::uint64_t>((token * test.shape.top_k + choice) * test.hidden + h);
  const std::uint64_t random = mix(test.seed + 7, where, static_cast<std::uint64_t>(rank));
  const float value =
      static_cast<float>(static_cast<std::int64_t>(random >> 11U)) * 0x1.0p-53F - 0.5F;
  const float scaled = std::ldexp(value, static_cast<int>(random % 9));
  return test.type == DType::kBFloat16 ? through_bfloat16(scaled) : scaled;
}

std::vector<Origin> origins(const MoveCase& test, const EpPlan& plan, int destination) {
  const EpShape& shape = test.shape;
  std::vector<std::vector<Origin>> of_expert(static_cast<std::size_t>(shape.experts));
  for (int r = 0; r < shape.ranks; ++r) {
    const std::vector<std::int32_t> choices = choices_of(test, r);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const auto top_k = static_cast<std::size_t>(shape.top_k);
      of_expert[static_cast<std::size_t>(choices[i])].push_back(
          {r, static_cast<std::int64_t>(i / top_k), static_cast<int>(i % top_k), choices[i]});
    }
  }
  std::vector<Origin> result(static_cast<std::size_t>(plan.receive_rows));
  const auto groups = static_cast<std::size_t>(shape.group_count());
  const auto experts = static_cast<std::size_t>(shape.experts);
  const auto d = static_cast<std::size_t>(destination);
  for (std::size_t e = 0; e < experts; ++e) {
    std::int64_t before = 0;
    for (std::size_t r = 0; r < d; ++r) {
      before += plan.rows[r * experts + e];
    }
    for (std::int64_t i = 0; i < plan.rows[d * experts + e]; ++i) {
      const auto group = static_cast<std::size_t>(plan.groups[d * experts + e]);
      result[static_cast<std::size_t>(plan.begins[d * groups + group] + i)] =
          of_expert[e][static_cast<std::size_t>(before + i)];
    }
  }
  return result;
}

std::vector<int> computing_ranks(const MoveCase& test, const EpPlan& plan, int rank) {
  const auto top_k = static_cast<std::size_t>(test.shape.top_k);
  std::vector<int> result(
      static_cast<std::size_t>(test.tokens[static_cast<std::size_t>(rank)]) * top_k, -1);
  for (int d = 0; d < test.shape.ranks; ++d) {
    for (const Origin& origin : origins(test, plan, d)) {
      if (origin.rank == rank) {
        result
            [static_cast<std::size_t>(origin.token) * top_k +
             static_cast<std::size_t>(origin.choice)] = d;
      }
    }
  }
  return result;
}

float through_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) {
    return value;
  }
  const std::uint32_t low = bits & 0xFFFFU;
  std::uint32_t high = bits >> 16U;
  if (low > 0x8000U || (low == 0x8000U && high % 2 == 1)) {
    ++high;
  }
  return std::bit_cast<float>(high << 16U);
}

std::vector<std::byte> encode(DType type, const std::vector<float>& values) {
  const auto size = static_cast<std::size_t>(size_bytes(type));
  std::vector<std::byte> bytes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(
        type == DType::kBFloat16 ? through_bfloat16(values[i]) : values[i]);
    const std::uint32_t stored = type == DType::kBFloat16 ? bits >> 16U : bits;
    std::memcpy(bytes.data() + i * size, &stored, size);
  }
  return bytes;
}

std::vector<float> decode(DType type, std::span<const std::byte> bytes) {
  const auto size = static_cast<std::size_t>(size_bytes(type));
  std::vector<float> values(bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * size, size);
    values[i] = std::bit_cast<float>(type == DType::kBFloat16 ? bits << 16U : bits);
  }
  return values;
}

std::vector<std::byte> rows_of(const MoveCase& test, int rank) {
  std::vector<float> values;
  for (std::int64_t t = 0; t < test.tokens[static_cast<std::size_t>(rank)]; ++t) {
    for (std::int64_t h = 0; h < test.hidden; ++h) {
      values.push_back(input(test, rank, t, h));
    }
  }
  return encode(test.type, values);
}

std::vector<float> gates_of(const MoveCase& test, int rank) {
  std::vector<float> values;
  for (std::int64_t t = 0; t < test.tokens[static_cast<std::size_t>(rank)]; ++t) {
    for (int k = 0; k < test.shape.top_k; ++k) {
      values.push_back(gate(test, rank, t, k));
    }
  }
  return values;
}

std::vector<float> expected_sum(
    const MoveCase& test, const std::vector<int>& ranks_of_choices, int rank, std::int64_t token) {
  const int top_k = test.shape.top_k;
  const bool rounds_on_the_way = test.numerics == EpNumerics::kWireExact;
  const auto rank_of = [&](int k) {
    return ranks_of_choices[static_cast<std::size_t>(token * top_k + k)];
  };
  std::vector<float> result;
  for (std::int64_t h = 0; h < test.hidden; ++h) {
    std::vector<int> done;
    float sum = 0;
    for (int k = 0; k < top_k; ++k) {
      if (std::find(done.begin(), done.end(), rank_of(k)) != done.end()) {
        continue;
      }
      done.push_back(rank_of(k));
      float part = output(test, rank, token, k, h);
      for (int j = k + 1; j < top_k; ++j) {
        part = rank_of(j) == rank_of(k) ? part + output(test, rank, token, j, h) : part;
      }
      part = rounds_on_the_way ? through_bfloat16(part) : part;
      sum = k == 0 ? part : sum + part;
    }
    result.push_back(test.type == DType::kBFloat16 ? through_bfloat16(sum) : sum);
  }
  return result;
}

std::size_t heap_bytes(const MoveCase& test) {
  return EpExchange::heap_bytes(test.options());
}

Mover::Mover(Member& member, const MoveCase& test) : plan(test.shape, test.balance) {
  auto made = EpExchange::create(member.heap, nullptr, test.options(), soon());
  if (!made) {
    error = made.status().to_string();
    return;
  }
  exchange = std::move(*made);
}

std::vector<MoveCase> move_cases() {
  const auto shape = [](int ranks, int experts, int top_k, int padding) {
    EpShape result;
    result.ranks = ranks;
    result.experts = experts;
    result.top_k = top_k;
    result.tokens_max = 24;
    result.padding = padding;
    return result;
  };
  std::vector<MoveCase> cases;
  const auto add = [&](const char* name, const EpShape& s, Spread spread, std::vector<int> tokens) {
    MoveCase test;
    test.name = name;
    test.shape = s;
    test.spread = spread;
    test.tokens = std::move(tokens);
    test.seed = 100 + cases.size();
    cases.push_back(test);
    return cases.size() - 1;
  };
  add("Uniform", shape(2, 8, 2, 1), Spread::kUniform, {24, 24});
  cases[add("Bfloat16", shape(3, 9, 3, 4), Spread::kSkewed, {24, 20, 24})].type = DType::kBFloat16;
  const auto exact = add("WireExact", shape(2, 8, 4, 4), Spread::kDuplicates, {24, 11});
  cases[exact].type = DType::kBFloat16;
  cases[exact].numerics = EpNumerics::kWireExact;
  add("OneExpert", shape(4, 8, 2, 8), Spread::kOneExpert, {24, 24, 24, 24});
  add("AllAtHome", shape(3, 6, 2, 1), Spread::kAtHome, {5, 24, 9});
  add("AllAway", shape(3, 6, 2, 1), Spread::kAway, {5, 24, 9});
  add("UnequalTokensAndAnEmptyRank", shape(4, 8, 3, 2), Spread::kSkewed, {24, 0, 7, 1});
  add("AllRanksEmpty", shape(3, 6, 2, 4), Spread::kUniform, {0, 0, 0});
  add("OneRank", shape(1, 4, 2, 4), Spread::kUniform, {24});
  cases[add("Ordinary", shape(3, 6, 2, 4), Spread::kSkewed, {24, 3, 24})].balance.mode =
      EpBalanceMode::kNone;
  const auto tolerant = add("Tolerant", shape(4, 16, 2, 1), Spread::kSkewed, {24, 24, 24, 24});
  cases[tolerant].balance.mode = EpBalanceMode::kTolerant;
  cases[tolerant].balance.tolerance = 0.25;
  cases[add("Compact", shape(4, 8, 2, 4), Spread::kSkewed, {24, 24, 24, 24})].shape.compact = true;
  cases[add("FewSlots", shape(2, 8, 2, 4), Spread::kAway, {24, 2})].shape.slots = 1;
  // As many choices as there may be: a token's experts repeat and share ranks.
  auto wide = shape(2, 4, 32, 1);
  wide.experts = 32;
  const auto widest = add("ThirtyTwoDuplicates", wide, Spread::kDuplicates, {6, 5});
  cases[widest].type = DType::kBFloat16;
  cases[widest].numerics = EpNumerics::kWireExact;
  return cases;
}

}  // namespace muster::parallel::testing
