// SPDX-License-Identifier: Apache-2.0
// Exact attention of one random problem, in tensors fenced by inaccessible pages.
#pragma once

#include "tests/unit/kernels/attention/fence.h"
#include "tests/unit/kernels/attention/oracle.h"

#include <muster/kernels/attention.h>

#include <string>
#include <type_traits>

namespace muster::kernels::test {

struct AttentionCase {
  std::vector<std::int64_t> queries{1};  // of each sequence
  std::vector<std::int64_t> keys{};      // empty: as queries
  int heads{1};
  int kv_heads{1};
  int head_dim{8};
  bool causal{true};
  double softcap{0};
  bool bias{false};
  int threads{1};
  std::uint64_t seed{1};
  double spread{1};  // of q and k

  [[nodiscard]] std::string name() const {
    std::string text = "queries";
    for (const auto n : queries) {
      text += ' ' + std::to_string(n);
    }
    text += ", keys";
    for (const auto n : keys.empty() ? queries : keys) {
      text += ' ' + std::to_string(n);
    }
    return text + ", heads " + std::to_string(heads) + " of " + std::to_string(kv_heads) +
           ", head_dim " + std::to_string(head_dim) + (causal ? ", causal" : ", all") +
           (bias ? ", bias" : "") + ", softcap " + std::to_string(softcap) + ", threads " +
           std::to_string(threads) + ", seed " + std::to_string(seed);
  }
};

inline std::vector<std::int64_t> cumulative(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> result{0};
  for (const auto n : lengths) {
    result.push_back(result.back() + n);
  }
  return result;
}

// E: float, double or std::uint16_t for bf16.
template <typename E>
class AttentionRun {
 public:
  using Lse = std::conditional_t<std::is_same_v<E, double>, double, float>;
  static constexpr DType kType = std::is_same_v<E, double>  ? DType::kFloat64
                                 : std::is_same_v<E, float> ? DType::kFloat32
                                                            : DType::kBFloat16;
  static constexpr double kCanary = 77;

  explicit AttentionRun(const AttentionCase& c, bool at_end = true)
      : config(c),
        cu_q(cumulative(c.queries)),
        cu_k(cumulative(c.keys.empty() ? c.queries : c.keys)),
        q(q_size(), E{}, at_end),
        k(k_size(), E{}, at_end),
        v(k_size(), E{}, at_end),
        out(q_size(), element_of<E>(kCanary), at_end),
        lse(lse_size(), Lse{77}, at_end),
        dout(q_size(), E{}, at_end),
        dq(q_size(), element_of<E>(kCanary), at_end),
        dk(k_size(), element_of<E>(kCanary), at_end),
        dv(k_size(), element_of<E>(kCanary), at_end),
        max_logit(static_cast<std::size_t>(c.heads), 77),
        nonfinite_rows(static_cast<std::size_t>(c.heads), 77) {
    q.set(normal_values(c.seed, size(q), c.spread));
    k.set(normal_values(c.seed + 1, size(k), c.spread));
    v.set(normal_values(c.seed + 2, size(v)));
    dout.set(normal_values(c.seed + 3, size(dout)));
    if (c.bias) {
      const Values values = normal_values(c.seed + 4, c.heads * longest_q() * longest_k());
      bias.assign(values.begin(), values.end());
    }
  }

  [[nodiscard]] AttentionProblem problem() const {
    AttentionProblem p;
    p.type = kType;
    p.heads = config.heads;
    p.kv_heads = config.kv_heads;
    p.head_dim = config.head_dim;
    p.cu_q = cu_q;
    p.cu_k = cu_k;
    p.causal = config.causal;
    p.softcap = config.softcap;
    p.bias = bias.empty() ? nullptr : bias.data();
    p.bias_head_stride = longest_q() * longest_k();
    p.bias_row_stride = longest_k();
    p.threads = config.threads;
    return p;
  }

  [[nodiscard]] Status forward() {
    return attention_forward(
        problem(),
        {{q.data()}, {k.data()}, {v.data()}},
        {{out.data()}, lse.data()},
        {max_logit, nonfinite_rows});
  }

  [[nodiscard]] Status backward(const Lse* dlse = nullptr) {
    return attention_backward(
        problem(),
        {{q.data()}, {k.data()}, {v.data()}},
        {{out.data()}, lse.data(), {dout.data()}, dlse, {dq.data()}, {dk.data()}, {dv.data()}});
  }

  void run() {
    const Status forwards = forward();
    ASSERT_TRUE(forwards.ok()) << forwards.to_string();
    const Status backwards = backward();
    ASSERT_TRUE(backwards.ok()) << backwards.to_string();
  }

  [[nodiscard]] OracleProblem oracle() const {
    OracleProblem o{
        config.heads,
        config.kv_heads,
        config.head_dim,
        cu_q,
        cu_k,
        config.causal,
        1 / std::sqrt(static_cast<double>(config.head_dim)),
        config.softcap,
        {},
        {}};
    if (!bias.empty()) {
      o.bias = [this](std::int64_t head, std::int64_t row, std::int64_t key) {
        return static_cast<double>(
            bias[static_cast<std::size_t>((head * longest_q() + row) * longest_k() + key)]);
      };
    }
    return o;
  }

  // Element (token, head, 0) of a tensor like q.
  [[nodiscard]] std::size_t at(std::int64_t token, std::int64_t head = 0) const {
    return static_cast<std::size_t>((token * config.heads + head) * config.head_dim);
  }

  // Element (token, head, 0) of a tensor like k.
  [[nodiscard]] std::size_t key_at(std::int64_t token, std::int64_t head = 0) const {
    return static_cast<std::size_t>((token * config.kv_heads + head) * config.head_dim);
  }

  AttentionCase config;
  std::vector<std::int64_t> cu_q;
  std::vector<std::int64_t> cu_k;
  Fenced<E> q;
  Fenced<E> k;
  Fenced<E> v;
  Fenced<E> out;
  Fenced<Lse> lse;
  Fenced<E> dout;
  Fenced<E> dq;
  Fenced<E> dk;
  Fenced<E> dv;
  std::vector<float> max_logit;
  std::vector<std::int64_t> nonfinite_rows;
  std::vector<float> bias;

 private:
  template <typename X>
  static std::int64_t size(const Fenced<X>& tensor) {
    return static_cast<std::int64_t>(tensor.size());
  }

  [[nodiscard]] std::size_t q_size() const {
    return static_cast<std::size_t>(cu_q.back() * config.heads * config.head_dim);
  }

  [[nodiscard]] std::size_t k_size() const {
    return static_cast<std::size_t>(cu_k.back() * config.kv_heads * config.head_dim);
  }

  [[nodiscard]] std::size_t lse_size() const {
    return static_cast<std::size_t>(cu_q.back() * config.heads);
  }

  [[nodiscard]] std::int64_t longest_q() const {
    return *std::max_element(config.queries.begin(), config.queries.end());
  }

  [[nodiscard]] std::int64_t longest_k() const {
    const auto& lengths = config.keys.empty() ? config.queries : config.keys;
    return *std::max_element(lengths.begin(), lengths.end());
  }
};

// Largest |a - b|; NaN where one is and the other is not, infinities of one sign equal each other.
inline double largest_difference(const Values& a, const Values& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) {
      continue;
    }
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) {
      largest = difference;
    }
  }
  return largest;
}

}  // namespace muster::kernels::test
