#include "context/ring.h"

#include "context/pair.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::kernels {

namespace {

// Sends `data` to the next rank and has the previous one's in its place, `incoming` elements.
Status pass_on(
    const ContextCall& call,
    std::int64_t incoming,
    std::vector<float>& data,
    std::int64_t ContextTraffic::*counter) {
  const auto size = static_cast<std::size_t>(call.world.size());
  const auto rank = static_cast<std::size_t>(call.world.rank());
  if (size == 1) {
    return {};
  }
  std::vector<std::size_t> send(size, 0);
  std::vector<std::size_t> receive(size, 0);
  send[(rank + 1) % size] = data.size();
  receive[(rank + size - 1) % size] = static_cast<std::size_t>(incoming);
  std::vector<float> next(static_cast<std::size_t>(incoming));
  MUSTER_RETURN_IF_ERROR(call.world.all_to_all(
      std::span<const float>(data), send, std::span<float>(next), receive, call.deadline));
  data = std::move(next);
  if (call.traffic != nullptr) {
    call.traffic->*counter += incoming * static_cast<std::int64_t>(sizeof(float));
  }
  return {};
}

// Whose shard this rank holds in a step; it came from the rank before.
int origin_of(const ContextCall& call, int step) {
  return (call.world.rank() + call.world.size() - step % call.world.size()) % call.world.size();
}

std::vector<float> keys_and_values(const ContextTensors& tensors) {
  std::vector<float> both(tensors.k.begin(), tensors.k.end());
  both.insert(both.end(), tensors.v.begin(), tensors.v.end());
  return both;
}

// visit(queries, keys, relation) for the pairs of segments that have something to see.
template <typename Visit>
Status each_pair(const ContextCall& call, int origin, const Visit& visit) {
  for (const ContextSegment& queries : call.plan.segments(call.world.rank())) {
    for (const ContextSegment& keys : call.plan.segments(origin)) {
      const auto relation = context_relation(queries, keys, call.problem.causal);
      if (relation != ContextRelation::kNothing) {
        MUSTER_RETURN_IF_ERROR(visit(queries, keys, relation == ContextRelation::kDiagonal));
      }
    }
  }
  return {};
}

class Forward {
 public:
  Forward(
      const ContextCall& call,
      std::span<const float> q,
      std::span<float> out,
      std::span<float> lse,
      bool count)
      : call_(call),
        sizes_(call),
        q_(q),
        out_(out),
        lse_(lse),
        count_(count),
        counts_(sizes_.heads),
        pair_counts_(sizes_.heads),
        bad_(count ? lse.size() : 0, 0) {
    std::fill(out.begin(), out.end(), 0.0F);
    std::fill(lse.begin(), lse.end(), -std::numeric_limits<float>::infinity());
  }

  Status step(int origin, const std::vector<float>& held) {
    const float* k = held.data();
    const float* v = held.data() + held.size() / 2;
    return each_pair(call_, origin, [&](const auto& queries, const auto& keys, bool diagonal) {
      const std::int64_t at = keys.local * sizes_.kv_row;
      return pair(queries, keys, diagonal, k + at, v + at);
    });
  }

  ContextCounts counts() {
    std::fill(counts_.nonfinite_rows.begin(), counts_.nonfinite_rows.end(), 0);
    for (std::size_t i = 0; i < bad_.size(); ++i) {
      counts_.nonfinite_rows[i / static_cast<std::size_t>(sizes_.rows)] += bad_[i];
    }
    return counts_;
  }

 private:
  Status pair(
      const ContextSegment& queries,
      const ContextSegment& keys,
      bool diagonal,
      const float* k,
      const float* v) {
    const PairProblem problem(call_.problem, queries.rows(), keys.rows(), diagonal);
    std::vector<float> part(static_cast<std::size_t>(queries.rows() * sizes_.q_row));
    std::vector<float> part_lse(static_cast<std::size_t>(queries.rows() * sizes_.heads));
    MUSTER_RETURN_IF_ERROR(flash_attention_forward(
        problem.get(),
        {q_.data() + queries.local * sizes_.q_row},
        {k},
        {v},
        {part.data()},
        part_lse.data(),
        count_ ? pair_counts_.spans() : AttentionStatistics{}));
    if (count_) {
      MUSTER_RETURN_IF_ERROR(take_counts(queries, keys, diagonal, k, v));
    }
    auto lse = segment_lse(lse_, queries, sizes_);
    merge_partial_attention(
        queries.rows(),
        call_.problem.heads,
        call_.problem.head_dim,
        out_.data() + queries.local * sizes_.q_row,
        lse.data(),
        part.data(),
        part_lse.data());
    put_segment_lse(lse, queries, sizes_, lse_);
    return {};
  }

  // A row may go wrong in more than one pair and counts once, so that it takes to know which rows
  // they were: each is asked alone, which only happens when something is wrong.
  Status take_counts(
      const ContextSegment& queries,
      const ContextSegment& keys,
      bool diagonal,
      const float* k,
      const float* v) {
    counts_.add(pair_counts_);
    const auto& found = pair_counts_.nonfinite_rows;
    if (std::all_of(found.begin(), found.end(), [](std::int64_t n) { return n == 0; })) {
      return {};
    }
    std::vector<float> out(static_cast<std::size_t>(sizes_.q_row));
    std::vector<float> lse(static_cast<std::size_t>(sizes_.heads));
    ContextCounts row_counts(sizes_.heads);
    for (std::int64_t row = 0; row < queries.rows(); ++row) {
      const PairProblem problem(call_.problem, 1, diagonal ? row + 1 : keys.rows(), false);
      MUSTER_RETURN_IF_ERROR(flash_attention_forward(
          problem.get(),
          {q_.data() + (queries.local + row) * sizes_.q_row},
          {k},
          {v},
          {out.data()},
          lse.data(),
          row_counts.spans()));
      for (std::int64_t head = 0; head < sizes_.heads; ++head) {
        if (row_counts.nonfinite_rows[static_cast<std::size_t>(head)] > 0) {
          bad_[static_cast<std::size_t>(head * sizes_.rows + queries.local + row)] = 1;
        }
      }
    }
    return {};
  }

  const ContextCall& call_;
  ContextSizes sizes_;
  std::span<const float> q_;
  std::span<float> out_;
  std::span<float> lse_;
  bool count_;
  ContextCounts counts_;
  ContextCounts pair_counts_;
  std::vector<std::uint8_t> bad_;  // [heads, rows]
};

class Backward {
 public:
  Backward(
      const ContextCall& call,
      std::span<const float> q,
      std::span<const float> out,
      std::span<const float> lse,
      std::span<const float> dout,
      std::span<float> dq)
      : call_(call), sizes_(call), q_(q), out_(out), lse_(lse), dout_(dout), dq_(dq) {
    std::fill(dq.begin(), dq.end(), 0.0F);
  }

  // Adds to what `gradients` of the shard have collected on their way.
  Status step(int origin, const std::vector<float>& held, std::vector<float>& gradients) {
    const std::size_t half = held.size() / 2;
    return each_pair(call_, origin, [&](const auto& queries, const auto& keys, bool diagonal) {
      const auto at = static_cast<std::size_t>(keys.local * sizes_.kv_row);
      return pair(
          queries,
          keys,
          diagonal,
          {held.data() + at},
          {held.data() + half + at},
          gradients.data() + at,
          gradients.data() + half + at);
    });
  }

 private:
  Status pair(
      const ContextSegment& queries,
      const ContextSegment& keys,
      bool diagonal,
      AttentionInput k,
      AttentionInput v,
      float* dk,
      float* dv) {
    const PairProblem problem(call_.problem, queries.rows(), keys.rows(), diagonal);
    const std::int64_t at = queries.local * sizes_.q_row;
    const std::int64_t q_count = queries.rows() * sizes_.q_row;
    const std::int64_t kv_count = keys.rows() * sizes_.kv_row;
    std::vector<float> part_q(static_cast<std::size_t>(q_count));
    std::vector<float> part_k(static_cast<std::size_t>(kv_count));
    std::vector<float> part_v(static_cast<std::size_t>(kv_count));
    const auto lse = segment_lse(lse_, queries, sizes_);
    MUSTER_RETURN_IF_ERROR(flash_attention_backward(
        problem.get(),
        {q_.data() + at},
        k,
        v,
        {out_.data() + at},
        lse.data(),
        {dout_.data() + at},
        nullptr,
        {part_q.data()},
        {part_k.data()},
        {part_v.data()}));
    add_to(dq_.data() + at, part_q.data(), q_count);
    add_to(dk, part_k.data(), kv_count);
    add_to(dv, part_v.data(), kv_count);
    return {};
  }

  const ContextCall& call_;
  ContextSizes sizes_;
  std::span<const float> q_;
  std::span<const float> out_;
  std::span<const float> lse_;
  std::span<const float> dout_;
  std::span<float> dq_;
};

}  // namespace

Status ring_forward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    ContextCounts* counts) {
  const ContextSizes sizes(call);
  Forward forward(call, tensors.q, out, lse, counts != nullptr);
  std::vector<float> held = keys_and_values(tensors);
  for (int step = 0; step < call.world.size(); ++step) {
    if (step > 0) {
      const std::int64_t incoming = 2 * call.plan.row_count(origin_of(call, step)) * sizes.kv_row;
      MUSTER_RETURN_IF_ERROR(pass_on(call, incoming, held, &ContextTraffic::key_value_bytes));
    }
    MUSTER_RETURN_IF_ERROR(forward.step(origin_of(call, step), held));
  }
  if (counts != nullptr) {
    *counts = forward.counts();
  }
  return {};
}

Status ring_backward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients) {
  const ContextSizes sizes(call);
  Backward backward(call, tensors.q, out, lse, dout, gradients.dq);
  std::vector<float> held = keys_and_values(tensors);
  std::vector<float> collected(held.size(), 0.0F);
  const int size = call.world.size();
  for (int step = 0; step <= size; ++step) {
    const std::int64_t incoming = 2 * call.plan.row_count(origin_of(call, step)) * sizes.kv_row;
    if (step > 0 && step < size) {
      MUSTER_RETURN_IF_ERROR(pass_on(call, incoming, held, &ContextTraffic::key_value_bytes));
    }
    if (step > 0) {  // The last pass brings a shard's gradients home.
      MUSTER_RETURN_IF_ERROR(pass_on(call, incoming, collected, &ContextTraffic::gradient_bytes));
    }
    if (step < size) {
      MUSTER_RETURN_IF_ERROR(backward.step(origin_of(call, step), held, collected));
    }
  }
  std::copy_n(collected.data(), gradients.dk.size(), gradients.dk.data());
  std::copy_n(collected.data() + gradients.dk.size(), gradients.dv.size(), gradients.dv.data());
  return {};
}

}  // namespace muster::kernels
