// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/moba/oracle.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

namespace muster::kernels::test {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> result{0};
  for (const std::int64_t length : lengths) {
    result.push_back(result.back() + length);
  }
  return result;
}

struct Place {
  std::int64_t q_begin;
  std::int64_t queries;
  std::int64_t k_begin;
  std::int64_t keys;
};

std::vector<Place> places(const MobaSetup& setup) {
  const auto cu_q = setup.cu_q();
  const auto cu_k = setup.cu_k();
  std::vector<Place> result;
  for (std::size_t i = 0; i + 1 < cu_q.size(); ++i) {
    result.push_back({cu_q[i], cu_q[i + 1] - cu_q[i], cu_k[i], cu_k[i + 1] - cu_k[i]});
  }
  return result;
}

double dot_rows(const double* a, const double* b, int dim) {
  return std::inner_product(a, a + dim, b, 0.0);
}

// One query of one head.
struct Query {
  const MobaSetup& setup;
  const MobaNumbers& numbers;
  int head;
  Place place;
  std::int64_t row;
  const Values* means;  // [blocks, dim] of its keys

  [[nodiscard]] int group() const { return setup.heads / setup.kv_heads; }

  [[nodiscard]] std::size_t q_at(int other_head) const {
    return static_cast<std::size_t>(((place.q_begin + row) * setup.heads + other_head) * setup.dim);
  }

  [[nodiscard]] std::size_t k_at(std::int64_t key) const {
    return static_cast<std::size_t>(
        ((place.k_begin + key) * setup.kv_heads + head / group()) * setup.dim);
  }

  [[nodiscard]] std::int64_t position() const { return row + place.keys - place.queries; }

  [[nodiscard]] std::int64_t blocks() const {
    return (place.keys + setup.options.block - 1) / setup.options.block;
  }

  [[nodiscard]] std::int64_t current() const {
    return setup.causal && position() >= 0 ? position() / setup.options.block : -1;
  }

  // Blocks that may be chosen besides the current one.
  [[nodiscard]] std::int64_t candidates() const {
    return setup.causal ? std::max<std::int64_t>(current(), 0) : blocks();
  }

  [[nodiscard]] double score(std::int64_t block) const {
    const double* mean = &(*means)[static_cast<std::size_t>(block * setup.dim)];
    if (!setup.options.share_in_group) {
      return dot_rows(&numbers.q[q_at(head)], mean, setup.dim);
    }
    double sum = 0;
    const int first = head / group() * group();
    for (int h = first; h < first + group(); ++h) {
      sum += dot_rows(&numbers.q[q_at(h)], mean, setup.dim);
    }
    return sum;
  }

  [[nodiscard]] std::vector<std::int32_t> choose() const {
    std::vector<std::pair<double, std::int32_t>> scored;
    std::vector<std::int32_t> chosen;
    std::int64_t left = setup.options.top_k;
    if (current() >= 0) {
      chosen.push_back(static_cast<std::int32_t>(current()));
    }
    left -= setup.causal ? 1 : 0;
    const bool neighbour = setup.options.force_neighbour && current() > 0 && left > 0;
    if (neighbour) {
      chosen.push_back(static_cast<std::int32_t>(current() - 1));
      --left;
    }
    for (std::int64_t b = 0; b < candidates() - (neighbour ? 1 : 0); ++b) {
      const double value = score(b);
      if (!std::isnan(value)) {
        scored.emplace_back(value, static_cast<std::int32_t>(b));
      }
    }
    std::sort(scored.rbegin(), scored.rend());  // ties: the larger block first
    for (std::size_t i = 0; i < scored.size() && static_cast<std::int64_t>(i) < left; ++i) {
      chosen.push_back(scored[i].second);
    }
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }
};

// Means of the blocks of a sequence, of the kv head of `head`.
Values block_means(
    const MobaSetup& setup, const MobaNumbers& numbers, int head, const Place& place) {
  const Query first{setup, numbers, head, place, 0, nullptr};
  const auto dim = static_cast<std::size_t>(setup.dim);
  Values means(static_cast<std::size_t>(first.blocks()) * dim, 0);
  for (std::int64_t key = 0; key < place.keys; ++key) {
    const std::int64_t begin = key / setup.options.block * setup.options.block;
    const std::int64_t count = std::min(setup.options.block, place.keys - begin);
    double* mean = &means[static_cast<std::size_t>(key / setup.options.block) * dim];
    for (std::size_t c = 0; c < dim; ++c) {
      mean[c] += numbers.k[first.k_at(key) + c] / static_cast<double>(count);
    }
  }
  return means;
}

// f(query) for every query of every head.
template <typename F>
void each_query(const MobaSetup& setup, const MobaNumbers& numbers, const F& f) {
  for (int head = 0; head < setup.heads; ++head) {
    for (const Place& place : places(setup)) {
      const Values means = block_means(setup, numbers, head, place);
      for (std::int64_t row = 0; row < place.queries; ++row) {
        f(Query{setup, numbers, head, place, row, &means});
      }
    }
  }
}

// Explicit mask of the keys that a query attends to.
std::vector<char> visible_keys(const Query& query, const std::vector<std::int32_t>& chosen) {
  std::vector<char> mask(static_cast<std::size_t>(query.place.keys), 0);
  for (std::int64_t key = 0; key < query.place.keys; ++key) {
    const auto block = static_cast<std::int32_t>(key / query.setup.options.block);
    const bool past = !query.setup.causal || key <= query.position();
    mask[static_cast<std::size_t>(key)] =
        past && std::binary_search(chosen.begin(), chosen.end(), block) ? 1 : 0;
  }
  return mask;
}

struct Row {
  Values weights;  // of all keys, 0 where hidden
  Values slopes;   // derivative of softcap
  double lse{-kInfinity};
  double max_raw{-kInfinity};
};

Row softmax_row(const Query& query, const std::vector<char>& mask) {
  const double cap = query.setup.softcap;
  Row row;
  row.weights.assign(mask.size(), 0);
  row.slopes.assign(mask.size(), 1);
  Values logits(mask.size(), -kInfinity);
  double max = -kInfinity;
  for (std::size_t j = 0; j < mask.size(); ++j) {
    if (mask[j] == 0) {
      continue;
    }
    const auto key = static_cast<std::int64_t>(j);
    double logit = query.setup.used_scale() * dot_rows(
                                                  &query.numbers.q[query.q_at(query.head)],
                                                  &query.numbers.k[query.k_at(key)],
                                                  query.setup.dim);
    row.max_raw = logit > row.max_raw ? logit : row.max_raw;
    if (cap > 0) {
      const double t = std::tanh(logit / cap);
      logit = cap * t;
      row.slopes[j] = 1 - t * t;
    }
    logits[j] = logit;
    max = logit > max ? logit : max;
  }
  if (max == -kInfinity) {
    return row;
  }
  double sum = 0;
  for (std::size_t j = 0; j < mask.size(); ++j) {
    row.weights[j] = mask[j] != 0 ? std::exp(logits[j] - max) : 0;
    sum += row.weights[j];
  }
  for (double& weight : row.weights) {
    weight /= sum;
  }
  row.lse = max + std::log(sum);
  return row;
}

void add_gradients(
    const Query& query, const Row& row, const std::vector<char>& mask, OracleResult& result) {
  const std::size_t at = query.q_at(query.head);
  const auto dim = static_cast<std::size_t>(query.setup.dim);
  const double* dout = &query.numbers.dout[at];
  const double delta = dot_rows(&result.out[at], dout, query.setup.dim);
  for (std::size_t j = 0; j < mask.size(); ++j) {
    if (mask[j] == 0) {
      continue;
    }
    const std::size_t key = query.k_at(static_cast<std::int64_t>(j));
    const double dp = dot_rows(dout, &query.numbers.v[key], query.setup.dim);
    const double ds = row.weights[j] * (dp - delta) * row.slopes[j] * query.setup.used_scale();
    for (std::size_t c = 0; c < dim; ++c) {
      result.dv[key + c] += row.weights[j] * dout[c];
      result.dk[key + c] += ds * query.numbers.q[at + c];
      result.dq[at + c] += ds * query.numbers.k[key + c];
    }
  }
}

// max |a - b| over 1 + max |b|, or infinity where one is NaN.
double gap(const Values& a, const Values& b) {
  double largest = a.size() == b.size() ? 0 : kInfinity;
  double size = 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = a[i] == b[i] ? 0 : std::abs(a[i] - b[i]);
    largest = std::isnan(difference) ? kInfinity : std::max(largest, difference);
    size = std::max(size, std::isinf(b[i]) ? 0 : std::abs(b[i]));
  }
  return largest / size;
}

template <typename T>
std::string error_in(const MobaSetup& setup, std::uint64_t seed) {
  const MobaNumbers numbers = rounded_to<T>(random_numbers(setup, seed));
  const MobaRun<T> run = run_moba<T>(setup, numbers);
  if (!run.status.ok()) {
    return run.status.to_string();
  }
  const Choices choices = run.choices(setup);
  // The gate runs in fp32 whatever the type: a sum of dim products of about 1 each.
  const std::string wrong = choice_error(setup, numbers, choices, 1e-4);
  if (!wrong.empty()) {
    return wrong;
  }
  const OracleResult expected = oracle_attention(setup, numbers, choices);
  // fp32: 8 u (1 + |logit|) |v| with logits below 40, gradients twice. bf16: two roundings of
  // 2^-9 relative, of out (which enters delta) and of the result.
  const double unit = sizeof(T) == 8 ? 1e-12 : sizeof(T) == 4 ? 2e-5 : 1e-2;
  const auto compare = [&](const char* name, const Values& got, const Values& want, double limit) {
    const double distance = gap(got, want);
    return distance <= limit ? std::string()
                             : std::string(name) + " differs by " + std::to_string(distance);
  };
  std::string error = compare("out", doubles(run.out), expected.out, unit);
  error += compare("lse", doubles(run.lse), expected.lse, sizeof(T) == 8 ? 1e-12 : 2e-5);
  error += compare("dq", doubles(run.dq), expected.dq, 2 * unit);
  error += compare("dk", doubles(run.dk), expected.dk, 2 * unit);
  error += compare("dv", doubles(run.dv), expected.dv, 2 * unit);
  return error;
}

}  // namespace

std::vector<std::int64_t> MobaSetup::cu_q() const {
  return offsets_of(query_lengths);
}

std::vector<std::int64_t> MobaSetup::cu_k() const {
  return offsets_of(key_lengths.empty() ? query_lengths : key_lengths);
}

double MobaSetup::used_scale() const {
  return scale == 0 ? 1 / std::sqrt(static_cast<double>(dim)) : scale;
}

std::ostream& operator<<(std::ostream& out, const MobaSetup& setup) {
  const auto list = [&out](const char* name, const std::vector<std::int64_t>& lengths) {
    out << name << " {";
    for (const std::int64_t length : lengths) {
      out << length << ' ';
    }
    out << "} ";
  };
  list("queries", setup.query_lengths);
  list("keys", setup.key_lengths);
  return out << "heads " << setup.heads << " kv_heads " << setup.kv_heads << " dim " << setup.dim
             << " block " << setup.options.block << " top_k " << setup.options.top_k
             << " neighbour " << setup.options.force_neighbour << " share "
             << setup.options.share_in_group << " causal " << setup.causal << " softcap "
             << setup.softcap << " threads " << setup.threads;
}

MobaNumbers random_numbers(const MobaSetup& setup, std::uint64_t seed, double scale) {
  const std::int64_t queries = setup.total_q() * setup.heads * setup.dim;
  const std::int64_t keys = setup.total_k() * setup.kv_heads * setup.dim;
  return {
      normal_values(seed, queries, scale),
      normal_values(seed + 1, keys, scale),
      normal_values(seed + 2, keys),
      normal_values(seed + 3, queries)};
}

double oracle_score(
    const MobaSetup& setup,
    const MobaNumbers& numbers,
    int head,
    std::size_t sequence,
    std::int64_t row,
    std::int64_t block) {
  const Place place = places(setup)[sequence];
  const Values means = block_means(setup, numbers, head, place);
  return Query{setup, numbers, head, place, row, &means}.score(block);
}

Choices oracle_choices(const MobaSetup& setup, const MobaNumbers& numbers) {
  Choices result(static_cast<std::size_t>(setup.heads));
  each_query(setup, numbers, [&](const Query& query) {
    result[static_cast<std::size_t>(query.head)].push_back(query.choose());
  });
  return result;
}

std::string choice_error(
    const MobaSetup& setup, const MobaNumbers& numbers, const Choices& choices, double slack) {
  std::string error;
  each_query(setup, numbers, [&](const Query& query) {
    const auto& got = choices[static_cast<std::size_t>(query.head)]
                             [static_cast<std::size_t>(query.place.q_begin + query.row)];
    const std::vector<std::int32_t> want = query.choose();
    if (!error.empty() || got == want) {
      return;
    }
    const auto chose = [](const std::vector<std::int32_t>& blocks, std::int32_t block) {
      return std::binary_search(blocks.begin(), blocks.end(), block);
    };
    double worst = kInfinity;  // of those chosen instead of others
    double best = -kInfinity;  // of those left out instead
    for (std::int32_t b = 0; b < query.blocks(); ++b) {
      if (chose(got, b) && !chose(want, b)) {
        worst = b < query.candidates() ? std::min(worst, query.score(b)) : -kInfinity;
      }
      if (!chose(got, b) && chose(want, b)) {
        best = b == query.current() ? kInfinity : std::max(best, query.score(b));
      }
    }
    if (got.size() != want.size() || !(best - worst <= slack)) {
      error = "head " + std::to_string(query.head) + " row " + std::to_string(query.row) +
              " chose " + std::to_string(got.size()) + " blocks, should choose " +
              std::to_string(want.size()) + "; left out a score of " + std::to_string(best) +
              " for one of " + std::to_string(worst);
    }
  });
  return error;
}

OracleResult oracle_attention(
    const MobaSetup& setup, const MobaNumbers& numbers, const Choices& choices) {
  OracleResult result;
  result.out.assign(numbers.q.size(), 0);
  result.dq.assign(numbers.q.size(), 0);
  result.dk.assign(numbers.k.size(), 0);
  result.dv.assign(numbers.k.size(), 0);
  result.lse.assign(static_cast<std::size_t>(setup.heads * setup.total_q()), -kInfinity);
  result.max_logit.assign(static_cast<std::size_t>(setup.heads), -kInfinity);
  each_query(setup, numbers, [&](const Query& query) {
    const auto token = static_cast<std::size_t>(query.place.q_begin + query.row);
    const auto head = static_cast<std::size_t>(query.head);
    const std::vector<char> mask = visible_keys(query, choices[head][token]);
    const Row row = softmax_row(query, mask);
    result.lse[head * static_cast<std::size_t>(setup.total_q()) + token] = row.lse;
    result.max_logit[head] = std::max(result.max_logit[head], row.max_raw);
    double* out = &result.out[query.q_at(query.head)];
    for (std::size_t j = 0; j < mask.size(); ++j) {
      const std::size_t key = query.k_at(static_cast<std::int64_t>(j));
      for (std::size_t c = 0; mask[j] != 0 && c < static_cast<std::size_t>(setup.dim); ++c) {
        out[c] += row.weights[j] * numbers.v[key + c];
      }
    }
    if (numbers.dout.size() == numbers.q.size()) {
      add_gradients(query, row, mask, result);
    }
  });
  return result;
}

StatisticsStorage::StatisticsStorage(const MobaSetup& setup) {
  const auto heads = static_cast<std::size_t>(setup.heads);
  std::int64_t most = 0;
  for (const Place& place : places(setup)) {
    most = std::max(most, (place.keys + setup.options.block - 1) / setup.options.block);
  }
  selected_max_logit.assign(heads, 1e30F);
  gate_bound.assign(heads, 1e30F);
  norm_bound.assign(heads, 1e30F);
  nonfinite_rows.assign(heads, -7);
  nonfinite_scores.assign(heads, -7);
  block_counts.assign(heads * static_cast<std::size_t>(most), -7);
  sink_share.assign(heads, -7);
  gate_margin.assign(heads, -7);
  gate_margin_rows.assign(heads, -7);
}

MobaStatistics StatisticsStorage::spans() {
  return {
      selected_max_logit,
      gate_bound,
      norm_bound,
      nonfinite_rows,
      nonfinite_scores,
      block_counts,
      sink_share,
      gate_margin,
      gate_margin_rows};
}

std::string moba_error(const MobaSetup& setup, std::uint64_t seed, DType type) {
  return type == DType::kBFloat16  ? error_in<std::uint16_t>(setup, seed)
         : type == DType::kFloat64 ? error_in<double>(setup, seed)
                                   : error_in<float>(setup, seed);
}

}  // namespace muster::kernels::test
