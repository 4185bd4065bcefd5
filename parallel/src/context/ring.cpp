// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/context/ring.h"

#include <algorithm>
#include <limits>

namespace muster::parallel {

namespace {

// Sends `data` to the next rank and replaces it by `incoming` elements of the previous one.
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

// Rank whose shard this rank holds in a step, received from the previous rank.
int origin_of(const ContextCall& call, int step) {
  return (call.world.rank() + call.world.size() - step % call.world.size()) % call.world.size();
}

std::vector<float> keys_and_values(const ContextTensors& tensors) {
  std::vector<float> both(tensors.k.begin(), tensors.k.end());
  both.insert(both.end(), tensors.v.begin(), tensors.v.end());
  return both;
}

// visit(pair, first element of its keys in `held`) for the pairs with visible keys.
template <typename Visit>
Status each_pair(
    const ContextCall& call,
    std::span<const float> q,
    int origin,
    const std::vector<float>& held,
    const Visit& visit) {
  const ContextSizes sizes(call);
  const auto own = call.plan.segments(call.world.rank());
  const float* k = held.data();
  const float* v = k + held.size() / 2;
  for (std::size_t s = 0; s < own.size(); ++s) {
    for (const ContextSegment& keys : call.plan.segments(origin)) {
      const auto relation = context_relation(own[s], keys, call.problem.causal);
      if (relation == ContextRelation::kNothing) {
        continue;
      }
      const std::int64_t at = keys.local * sizes.kv_row;
      const RingPair pair{
          s,
          own[s],
          keys,
          relation == ContextRelation::kDiagonal,
          {{q.data() + own[s].local * sizes.q_row}, {k + at}, {v + at}}};
      MUSTER_RETURN_IF_ERROR(visit(pair, at));
    }
  }
  return {};
}

}  // namespace

Status ring_forward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    const std::function<Status(const RingPair&, const kernels::AttentionOutputs&)>& attend) {
  const ContextSizes sizes(call);
  std::fill(out.begin(), out.end(), 0.0F);
  std::fill(lse.begin(), lse.end(), -std::numeric_limits<float>::infinity());
  const auto merge = [&](const RingPair& pair, std::int64_t /*at*/) -> Status {
    const std::int64_t rows = pair.queries.rows();
    std::vector<float> part(static_cast<std::size_t>(rows * sizes.q_row));
    std::vector<float> part_lse(static_cast<std::size_t>(rows * sizes.heads));
    MUSTER_RETURN_IF_ERROR(attend(pair, {{part.data()}, part_lse.data()}));
    auto merged_lse = segment_lse(lse, pair.queries, sizes);
    kernels::merge_partial_attention(
        rows,
        call.problem.heads,
        call.problem.head_dim,
        out.data() + pair.queries.local * sizes.q_row,
        merged_lse.data(),
        part.data(),
        part_lse.data());
    put_segment_lse(merged_lse, pair.queries, sizes, lse);
    return {};
  };
  std::vector<float> held = keys_and_values(tensors);
  for (int step = 0; step < call.world.size(); ++step) {
    const int origin = origin_of(call, step);
    if (step > 0) {
      const std::int64_t incoming = 2 * call.plan.row_count(origin) * sizes.kv_row;
      MUSTER_RETURN_IF_ERROR(pass_on(call, incoming, held, &ContextTraffic::key_value_bytes));
    }
    MUSTER_RETURN_IF_ERROR(each_pair(call, tensors.q, origin, held, merge));
  }
  return {};
}

Status ring_backward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients,
    const std::function<Status(const RingPair&, const kernels::AttentionGradients&)>& attend) {
  const ContextSizes sizes(call);
  std::fill(gradients.dq.begin(), gradients.dq.end(), 0.0F);
  std::vector<float> held = keys_and_values(tensors);
  // Gradients of the held shard, summed over all ranks that have held it.
  std::vector<float> collected(held.size(), 0.0F);
  const auto add = [&](const RingPair& pair, std::int64_t key) -> Status {
    const std::int64_t at = pair.queries.local * sizes.q_row;
    const std::int64_t q_count = pair.queries.rows() * sizes.q_row;
    const std::int64_t kv_count = pair.keys.rows() * sizes.kv_row;
    std::vector<float> part_q(static_cast<std::size_t>(q_count));
    std::vector<float> part_k(static_cast<std::size_t>(kv_count));
    std::vector<float> part_v(static_cast<std::size_t>(kv_count));
    const auto part_lse = segment_lse(lse, pair.queries, sizes);
    MUSTER_RETURN_IF_ERROR(attend(
        pair,
        {{out.data() + at},
         part_lse.data(),
         {dout.data() + at},
         nullptr,
         {part_q.data()},
         {part_k.data()},
         {part_v.data()}}));
    float* dk = collected.data() + key;
    add_to(gradients.dq.data() + at, part_q.data(), q_count);
    add_to(dk, part_k.data(), kv_count);
    add_to(dk + collected.size() / 2, part_v.data(), kv_count);
    return {};
  };
  const int size = call.world.size();
  for (int step = 0; step <= size; ++step) {
    const int origin = origin_of(call, step);
    const std::int64_t incoming = 2 * call.plan.row_count(origin) * sizes.kv_row;
    if (step > 0 && step < size) {
      MUSTER_RETURN_IF_ERROR(pass_on(call, incoming, held, &ContextTraffic::key_value_bytes));
    }
    if (step > 0) {  // The last pass returns a shard's gradients to its rank.
      MUSTER_RETURN_IF_ERROR(pass_on(call, incoming, collected, &ContextTraffic::gradient_bytes));
    }
    if (step < size) {
      MUSTER_RETURN_IF_ERROR(each_pair(call, tensors.q, origin, held, add));
    }
  }
  std::copy_n(collected.data(), gradients.dk.size(), gradients.dk.data());
  std::copy_n(collected.data() + gradients.dk.size(), gradients.dv.size(), gradients.dv.data());
  return {};
}

}  // namespace muster::parallel
