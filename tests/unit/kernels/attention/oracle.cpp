// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/attention/oracle.h"

#include <limits>

namespace muster::kernels::test {

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Row {
  std::size_t sequence;
  std::int64_t head;
  std::int64_t query;  // in its sequence
};

// One query against all keys of its sequence.
struct Weights {
  std::vector<std::int64_t> keys;  // visible ones
  Values logits;                   // before softcap
  Values slopes;                   // d capped / d logit
  Values weights;
  double lse{kMinusInfinity};
  double max_logit{kMinusInfinity};
  double logit_size{0};
};

std::size_t query_at(const OracleProblem& p, const Row& row) {
  return static_cast<std::size_t>(
      ((p.cu_q[row.sequence] + row.query) * p.heads + row.head) * p.head_dim);
}

std::size_t key_at(const OracleProblem& p, const Row& row, std::int64_t key) {
  const std::int64_t kv_head = row.head / (p.heads / p.kv_heads);
  return static_cast<std::size_t>(
      ((p.cu_k[row.sequence] + key) * p.kv_heads + kv_head) * p.head_dim);
}

std::size_t lse_at(const OracleProblem& p, const Row& row) {
  return static_cast<std::size_t>(row.head * p.cu_q.back() + p.cu_q[row.sequence] + row.query);
}

bool sees(const OracleProblem& p, const Row& row, std::int64_t key) {
  const std::int64_t queries = p.cu_q[row.sequence + 1] - p.cu_q[row.sequence];
  const std::int64_t keys = p.cu_k[row.sequence + 1] - p.cu_k[row.sequence];
  if (p.causal && key > row.query + keys - queries) {
    return false;
  }
  return !p.visible || p.visible(static_cast<std::int64_t>(row.sequence), row.head, row.query, key);
}

Weights weigh(const OracleProblem& p, const Row& row, const Values& q, const Values& k) {
  Weights w;
  const std::int64_t keys = p.cu_k[row.sequence + 1] - p.cu_k[row.sequence];
  Values capped;
  for (std::int64_t key = 0; key < keys; ++key) {
    if (!sees(p, row, key)) {
      continue;
    }
    double sum = 0;
    double size = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(p.head_dim); ++d) {
      const double term = q[query_at(p, row) + d] * k[key_at(p, row, key) + d];
      sum += term;
      size += std::abs(term);
    }
    const double bias = p.bias ? p.bias(row.head, row.query, key) : 0;
    const double logit = p.scale * sum + bias;
    const double tangent = p.softcap > 0 ? std::tanh(logit / p.softcap) : 0;
    w.keys.push_back(key);
    w.logits.push_back(logit);
    w.slopes.push_back(1 - tangent * tangent);
    capped.push_back(p.softcap > 0 ? p.softcap * tangent : logit);
    w.max_logit = std::max(w.max_logit, logit);
    const double bias_size = std::isfinite(bias) ? std::abs(bias) : 0;
    w.logit_size = std::max(w.logit_size, std::abs(p.scale) * size + bias_size);
  }
  const double largest =
      capped.empty() ? kMinusInfinity : *std::max_element(capped.begin(), capped.end());
  if (largest == kMinusInfinity) {
    w.weights.assign(capped.size(), 0);
    return w;
  }
  double total = 0;
  for (const double x : capped) {
    w.weights.push_back(std::exp(x - largest));
    total += w.weights.back();
  }
  for (double& weight : w.weights) {
    weight /= total;
  }
  w.lse = largest + std::log(total);
  return w;
}

void for_each_row(const OracleProblem& p, const std::function<void(const Row&)>& work) {
  for (std::size_t s = 0; s + 1 < p.cu_q.size(); ++s) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      for (std::int64_t query = 0; query < p.cu_q[s + 1] - p.cu_q[s]; ++query) {
        work({s, head, query});
      }
    }
  }
}

double largest_of(const Values& values) {
  double result = 0;
  for (const double x : values) {
    result = std::max(result, std::abs(x));
  }
  return result;
}

}  // namespace

OracleForward oracle_forward(
    const OracleProblem& p, const Values& q, const Values& k, const Values& v) {
  OracleForward r;
  r.out.assign(q.size(), 0);
  r.lse.assign(static_cast<std::size_t>(p.heads * p.cu_q.back()), kMinusInfinity);
  r.max_logit.assign(static_cast<std::size_t>(p.heads), kMinusInfinity);
  r.size = largest_of(v);
  for_each_row(p, [&](const Row& row) {
    const Weights w = weigh(p, row, q, k);
    for (std::size_t i = 0; i < w.keys.size(); ++i) {
      for (std::size_t d = 0; d < static_cast<std::size_t>(p.head_dim); ++d) {
        r.out[query_at(p, row) + d] += w.weights[i] * v[key_at(p, row, w.keys[i]) + d];
      }
    }
    r.lse[lse_at(p, row)] = w.lse;
    double& most = r.max_logit[static_cast<std::size_t>(row.head)];
    most = std::max(most, w.max_logit);
    r.logit_size = std::max(r.logit_size, w.logit_size);
  });
  return r;
}

OracleBackward oracle_backward(
    const OracleProblem& p,
    const Values& q,
    const Values& k,
    const Values& v,
    const Values& dout,
    const Values& dlse) {
  OracleBackward r{Values(q.size()), Values(k.size()), Values(v.size())};
  OracleBackward sizes = r;
  const auto dims = static_cast<std::size_t>(p.head_dim);
  for_each_row(p, [&](const Row& row) {
    const Weights w = weigh(p, row, q, k);
    const std::size_t at = query_at(p, row);
    Values products(w.keys.size());
    double delta = dlse.empty() ? 0 : -dlse[lse_at(p, row)];
    double product_size = std::abs(delta);
    for (std::size_t i = 0; i < w.keys.size(); ++i) {
      double size = 0;
      for (std::size_t d = 0; d < dims; ++d) {
        const double term = dout[at + d] * v[key_at(p, row, w.keys[i]) + d];
        products[i] += term;
        size += std::abs(term);
      }
      delta += w.weights[i] * products[i];
      product_size = std::max(product_size, size);
    }
    for (std::size_t i = 0; i < w.keys.size(); ++i) {
      const double factor = w.weights[i] * w.slopes[i] * p.scale;
      const double slope = factor * (products[i] - delta);
      const double size = std::abs(factor) * 2 * product_size;
      const std::size_t to = key_at(p, row, w.keys[i]);
      for (std::size_t d = 0; d < dims; ++d) {
        r.dq[at + d] += slope * k[to + d];
        r.dk[to + d] += slope * q[at + d];
        r.dv[to + d] += w.weights[i] * dout[at + d];
        sizes.dq[at + d] += size * std::abs(k[to + d]);
        sizes.dk[to + d] += size * std::abs(q[at + d]);
        sizes.dv[to + d] += w.weights[i] * std::abs(dout[at + d]);
      }
    }
  });
  r.dq_size = largest_of(sizes.dq);
  r.dk_size = largest_of(sizes.dk);
  r.dv_size = largest_of(sizes.dv);
  return r;
}

}  // namespace muster::kernels::test
