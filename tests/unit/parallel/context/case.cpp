// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/parallel/context/case.h"

#include <cmath>

namespace muster::parallel::test {

namespace {

Status attend_alone(const ContextCase& c, const ContextNumbers& n, ContextResult& r) {
  kernels::AttentionProblem problem = problem_of(c);
  problem.cu_q = n.cu;
  MUSTER_RETURN_IF_ERROR(kernels::attention_forward(
      problem,
      {{n.q.data()}, {n.k.data()}, {n.v.data()}},
      {{r.out.data()}, r.lse.data()},
      {r.max_logit, r.nonfinite_rows}));
  return kernels::attention_backward(
      problem,
      {{n.q.data()}, {n.k.data()}, {n.v.data()}},
      {{r.out.data()},
       r.lse.data(),
       {n.dout.data()},
       nullptr,
       {r.dq.data()},
       {r.dk.data()},
       {r.dv.data()}});
}

Status moba_alone(const ContextCase& c, const ContextNumbers& n, ContextResult& r) {
  kernels::AttentionProblem problem = problem_of(c);
  problem.cu_q = n.cu;
  kernels::MobaSelection selection;
  MUSTER_RETURN_IF_ERROR(kernels::moba_forward(
      problem,
      *c.moba,
      {{n.q.data()}, {n.k.data()}, {n.v.data()}},
      {},
      {{r.out.data()}, r.lse.data()},
      selection,
      r.moba.spans()));
  r.max_logit = r.moba.max_logit;
  r.nonfinite_rows = r.moba.nonfinite_rows;
  for (int head = 0; head < c.heads; ++head) {
    for (std::int64_t row = 0; row < n.cu.back(); ++row) {
      r.blocks[static_cast<std::size_t>(head)][static_cast<std::size_t>(row)] =
          selection.blocks_of(head, row);
    }
  }
  return kernels::moba_backward(
      problem,
      *c.moba,
      {{n.q.data()}, {n.k.data()}, {n.v.data()}},
      {{r.out.data()},
       r.lse.data(),
       {n.dout.data()},
       nullptr,
       {r.dq.data()},
       {r.dk.data()},
       {r.dv.data()}},
      selection);
}

// One rank's part of a spread run.
struct Shard {
  Shard(const ContextCase& c, const ContextNumbers& n, const ContextPlan& plan, int rank)
      : rows(plan.pack_rows(rank)),
        q_row(std::int64_t{c.heads} * c.dim),
        kv_row(std::int64_t{c.kv_heads} * c.dim),
        q(take_rows(n.q, rows, q_row)),
        k(take_rows(n.k, rows, kv_row)),
        v(take_rows(n.v, rows, kv_row)),
        dout(take_rows(n.dout, rows, q_row)),
        out(q.size(), 77),
        lse(rows.size() * static_cast<std::size_t>(c.heads), 77),
        dq(q.size(), 77),
        dk(k.size(), 77),
        dv(k.size(), 77),
        max_logit(static_cast<std::size_t>(c.heads), 77),
        nonfinite_rows(max_logit.size(), 77),
        moba(c) {}

  std::vector<std::int64_t> rows;
  std::int64_t q_row;
  std::int64_t kv_row;
  Floats q;
  Floats k;
  Floats v;
  Floats dout;
  Floats out;
  Floats lse;
  Floats dq;
  Floats dk;
  Floats dv;
  Floats max_logit;
  std::vector<std::int64_t> nonfinite_rows;
  ContextMobaNumbers moba;
  ContextSelection selection;
};

Status run_shard(
    const ContextCase& c,
    comm::Communicator& world,
    const ContextPlan& plan,
    Shard& s,
    ContextTraffic& forward,
    ContextTraffic& backward) {
  const ContextTensors tensors{s.q, s.k, s.v};
  const ContextGradients gradients{s.dq, s.dk, s.dv};
  const kernels::AttentionStatistics statistics{s.max_logit, s.nonfinite_rows};
  const ContextCall first{world, plan, problem_of(c), soon(), &forward};
  const ContextCall second{world, plan, problem_of(c), soon(), &backward};
  if (c.moba) {
    MUSTER_RETURN_IF_ERROR(context_moba_forward(
        first, c.form, *c.moba, tensors, s.out, s.lse, s.selection, s.moba.spans()));
    return context_moba_backward(
        second, c.form, *c.moba, tensors, s.out, s.lse, s.dout, s.selection, gradients);
  }
  MUSTER_RETURN_IF_ERROR(
      context_attention_forward(first, c.form, tensors, s.out, s.lse, statistics));
  return context_attention_backward(second, c.form, tensors, s.out, s.lse, s.dout, gradients);
}

void collect(
    const ContextCase& c,
    const ContextNumbers& n,
    const ContextPlan& plan,
    int rank,
    const Shard& s,
    ContextResult& r) {
  put_rows(s.out, s.rows, s.q_row, r.out);
  put_rows(s.dq, s.rows, s.q_row, r.dq);
  put_rows(s.dk, s.rows, s.kv_row, r.dk);
  put_rows(s.dv, s.rows, s.kv_row, r.dv);
  for (std::size_t head = 0; head < static_cast<std::size_t>(c.heads); ++head) {
    for (std::size_t i = 0; i < s.rows.size(); ++i) {
      r.lse[head * static_cast<std::size_t>(n.cu.back()) + static_cast<std::size_t>(s.rows[i])] =
          s.lse[head * s.rows.size() + i];
    }
    for (std::size_t g = 0; g < s.selection.choices.size(); ++g) {
      const ContextSegment& segment = plan.segments(rank)[g];
      for (std::int64_t row = 0; row < segment.rows(); ++row) {
        const auto at = static_cast<std::size_t>(segment.local + row);
        r.blocks[head][static_cast<std::size_t>(s.rows[at])] =
            s.selection.choices[g].blocks_of(static_cast<int>(head), row);
      }
    }
  }
}

// Rows of a shard against those of the pack: 8 u (1 + |S|) of the largest value, gradients twice
// that, as sums over many rows.
std::string rows_error(
    const char* name,
    const Floats& shard,
    const Floats& pack,
    const std::vector<std::int64_t>& rows,
    std::int64_t row,
    double unit) {
  const Floats expected = take_rows(pack, rows, row);
  double largest = 0;
  for (const float value : pack) {
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(shard[i]) - static_cast<double>(expected[i]));
    if (!(error <= unit * largest)) {
      return std::string(name) + " element " + std::to_string(i) + " differs by " +
             std::to_string(error);
    }
  }
  return "";
}

}  // namespace

std::string shard_error(
    const ContextCase& c,
    const ContextNumbers& n,
    const ContextResult& one,
    comm::Communicator& world) {
  const auto plan = ContextPlan::create(n.cu, c.ranks, c.order);
  if (!plan) {
    return plan.status().to_string();
  }
  Shard s(c, n, *plan, world.rank());
  ContextTraffic forward;
  ContextTraffic backward;
  const Status status = run_shard(c, world, *plan, s, forward, backward);
  if (!status.ok()) {
    return status.to_string();
  }
  const Floats& max_logit = c.moba ? s.moba.max_logit : s.max_logit;
  if (max_logit != one.max_logit) {
    return "max logit";
  }
  const double most = static_cast<double>(*std::max_element(max_logit.begin(), max_logit.end()));
  const double unit = 8 * 0x1p-24 * (1 + std::abs(most));
  std::string error = rows_error("out", s.out, one.out, s.rows, s.q_row, unit);
  error += rows_error("dq", s.dq, one.dq, s.rows, s.q_row, 2 * unit);
  error += rows_error("dk", s.dk, one.dk, s.rows, s.kv_row, 2 * unit);
  return error + rows_error("dv", s.dv, one.dv, s.rows, s.kv_row, 2 * unit);
}

ContextResult run_alone(const ContextCase& c, const ContextNumbers& n) {
  ContextResult result = empty_result(c, n);
  result.status = c.moba ? moba_alone(c, n, result) : attend_alone(c, n, result);
  return result;
}

ContextResult run_spread(const ContextCase& c, const ContextNumbers& n) {
  ContextResult result = empty_result(c, n);
  const auto plan = ContextPlan::create(n.cu, c.ranks, c.order);
  if (!plan) {
    result.status = plan.status();
    return result;
  }
  std::vector<Shard> shards;
  for (int rank = 0; rank < c.ranks; ++rank) {
    shards.emplace_back(c, n, *plan, rank);
  }
  std::vector<Status> statuses(shards.size());
  run_ranks(c.ranks, [&](comm::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    muster::test::CountingCommunicator counting(world);
    statuses[rank] = run_shard(
        c,
        counting,
        *plan,
        shards[rank],
        result.forward_traffic[rank],
        result.backward_traffic[rank]);
    result.moved_bytes[rank] = counting.counts().moved();
  });
  for (int rank = 0; rank < c.ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (result.status.ok()) {
      result.status = statuses[index];
    }
    collect(c, n, *plan, rank, shards[index], result);
  }
  const Shard& last = shards.back();
  result.moba = last.moba;
  result.max_logit = c.moba ? last.moba.max_logit : last.max_logit;
  result.nonfinite_rows = c.moba ? last.moba.nonfinite_rows : last.nonfinite_rows;
  return result;
}

}  // namespace muster::parallel::test
