// SPDX-License-Identifier: Apache-2.0
// Router, dispatch, experts that scale their rows, combine, and all of it backwards, on ranks that
// are threads.
#include "parallel/src/experts/all_to_all/all_to_all.h"

#include "tests/support/deadlines.h"
#include "tests/unit/kernels/numbers.h"

#include <muster/comm/backends.h>
#include <muster/parallel/experts/router.h>

#include <functional>
#include <numeric>
#include <thread>

namespace muster::parallel {
namespace {

using kernels::test::dot;
using kernels::test::expect_gradient;
using kernels::test::normal_values;
using kernels::test::Values;
using muster::test::soon;

constexpr std::int64_t kExperts = 8;
constexpr std::int64_t kTopK = 2;
constexpr std::int64_t kDim = 5;
constexpr std::int64_t kTokens = 12;  // over all ranks

void on_ranks(int ranks, const std::function<void(comm::Communicator&)>& body) {
  auto group = comm::make_local_group(ranks);
  std::vector<std::thread> threads;
  threads.reserve(group.size());
  for (auto& rank : group) {
    threads.emplace_back([&body, &rank] { body(*rank); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

const RouterOptions kRouter{.experts = kExperts, .top_k = kTopK};

void choose(std::span<const double> logits, Values& scores, Values& gates, Routing& routing) {
  routing.experts = kExperts;
  routing.top_k = kTopK;
  routing.tokens = static_cast<std::int64_t>(logits.size()) / kExperts;
  routing.expert.resize(gates.size());
  std::vector<std::int32_t> counts(kExperts);
  route<double>(kRouter, routing.tokens, logits, {}, scores, routing.expert, gates, counts);
  routing.counts.assign(counts.begin(), counts.end());
}

struct Model {
  Values logits = normal_values(1, kTokens* kExperts);
  Values x = normal_values(2, kTokens* kDim);
  Values scales = normal_values(3, kExperts);  // expert e multiplies its rows by scales[e]
  Values dy = normal_values(4, kTokens* kDim);
};

struct Gradients {
  Values dlogits = Values(kTokens * kExperts);
  Values dx = Values(kTokens * kDim);
  Values dscales = Values(kExperts);
};

// One rank's share of the model: contiguous tokens, contiguous experts.
class Shard {
 public:
  Shard(const Model& model, comm::Communicator& ep)
      : model_(model),
        ep_(ep),
        tokens_(kTokens / ep.size()),
        experts_(kExperts / ep.size()),
        first_token_(tokens_ * ep.rank()),
        first_expert_(experts_ * ep.rank()),
        scores_(static_cast<std::size_t>(tokens_ * kExperts)),
        gates_(static_cast<std::size_t>(tokens_ * kTopK)) {}

  Status forward(Values& y) {
    const auto elements = static_cast<std::size_t>(tokens_ * kExperts);
    choose({model_.logits.data() + first_token_ * kExperts, elements}, scores_, gates_, routing_);
    MUSTER_RETURN_IF_ERROR(make_dispatch_plan(routing_, ep_, soon(), plan_));
    MUSTER_RETURN_IF_ERROR(
        dispatch(routing_, plan_, model_.x.data() + first_token_ * kDim, kDim, rows_, ep_, soon()));
    Values outputs = rows_;
    scale_rows(outputs);
    return combine(
        routing_,
        plan_,
        outputs,
        gates_.data(),
        kDim,
        returned_,
        y.data() + first_token_ * kDim,
        ep_,
        soon());
  }

  Status backward(Gradients& g) {
    Values dgates(gates_.size());
    Values drows;
    MUSTER_RETURN_IF_ERROR(combine_backward(
        routing_,
        plan_,
        model_.dy.data() + first_token_ * kDim,
        gates_.data(),
        returned_,
        kDim,
        dgates.data(),
        drows,
        ep_,
        soon()));
    for_each_row([&](std::size_t expert, std::size_t element) {
      g.dscales[expert] += drows[element] * rows_[element];
    });
    scale_rows(drows);
    MUSTER_RETURN_IF_ERROR(dispatch_backward(
        routing_, plan_, drows, kDim, g.dx.data() + first_token_ * kDim, ep_, soon()));
    route_backward<double>(
        kRouter,
        tokens_,
        scores_,
        routing_.expert,
        gates_,
        dgates,
        {g.dlogits.data() + first_token_ * kExperts, scores_.size()});
    return {};
  }

  [[nodiscard]] const Values& rows() const { return rows_; }

 private:
  // f(global expert, element of the grouped rows)
  void for_each_row(const std::function<void(std::size_t, std::size_t)>& f) const {
    for (std::int64_t e = 0; e < experts_; ++e) {
      const auto at = static_cast<std::size_t>(e);
      for (std::int64_t i = plan_.expert_offsets[at] * kDim;
           i < plan_.expert_offsets[at + 1] * kDim;
           ++i) {
        f(static_cast<std::size_t>(first_expert_ + e), static_cast<std::size_t>(i));
      }
    }
  }

  void scale_rows(Values& rows) const {
    for_each_row(
        [&](std::size_t expert, std::size_t element) { rows[element] *= model_.scales[expert]; });
  }

  const Model& model_;
  comm::Communicator& ep_;
  std::int64_t tokens_;
  std::int64_t experts_;
  std::int64_t first_token_;
  std::int64_t first_expert_;
  Values scores_;
  Values gates_;
  Routing routing_;
  DispatchPlan plan_;
  Values rows_;
  Values returned_;
};

Values run_forward(const Model& model, int ranks) {
  Values y(kTokens * kDim, 99);
  on_ranks(ranks, [&](comm::Communicator& ep) {
    const Status status = Shard(model, ep).forward(y);
    EXPECT_TRUE(status.ok()) << status.to_string();
  });
  return y;
}

Gradients run_backward(const Model& model, int ranks) {
  Gradients g;
  Values y(kTokens * kDim);
  on_ranks(ranks, [&](comm::Communicator& ep) {
    Shard shard(model, ep);
    const Status forward = shard.forward(y);
    EXPECT_TRUE(forward.ok()) << forward.to_string();
    const Status backward = shard.backward(g);
    EXPECT_TRUE(backward.ok()) << backward.to_string();
  });
  return g;
}

TEST(Dispatch, CombineMixesScaledTokens) {
  const Model model;
  const Values y = run_forward(model, 1);
  Routing routing;
  Values scores(model.logits.size());
  Values gates(kTokens * kTopK);
  choose(model.logits, scores, gates, routing);
  for (std::size_t t = 0; t < kTokens; ++t) {
    double factor = 0;
    for (std::size_t c = t * kTopK; c < (t + 1) * kTopK; ++c) {
      factor += gates[c] * model.scales[static_cast<std::size_t>(routing.expert[c])];
    }
    for (std::size_t d = 0; d < kDim; ++d) {
      EXPECT_NEAR(y[t * kDim + d], factor * model.x[t * kDim + d], 1e-14);
    }
  }
}

TEST(Dispatch, ResultDoesNotDependOnTheNumberOfRanks) {
  const Model model;
  const Values one = run_forward(model, 1);
  const Gradients backward = run_backward(model, 1);
  for (const int ranks : {2, 4}) {
    EXPECT_EQ(run_forward(model, ranks), one) << ranks;
    const Gradients g = run_backward(model, ranks);
    EXPECT_EQ(g.dx, backward.dx) << ranks;
    EXPECT_EQ(g.dlogits, backward.dlogits) << ranks;
    EXPECT_EQ(g.dscales, backward.dscales) << ranks;
  }
}

TEST(Dispatch, GradientsAgreeWithDifferences) {
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    Model model;
    const Gradients g = run_backward(model, ranks);
    const auto loss = [&] { return dot(run_forward(model, ranks), model.dy); };
    expect_gradient(model.logits, g.dlogits, loss);
    expect_gradient(model.x, g.dx, loss);
    expect_gradient(model.scales, g.dscales, loss);
  }
}

TEST(Dispatch, RowsLieByExpertThenRankThenToken) {
  // x holds the token number; every rank's rows must be the same slice of the one-rank order.
  Model model;
  for (std::size_t i = 0; i < model.x.size(); ++i) {
    model.x[i] = static_cast<double>(i / kDim);
  }
  std::vector<Values> rows(5);
  on_ranks(1, [&](comm::Communicator& ep) {
    Shard shard(model, ep);
    Values y(kTokens * kDim);
    EXPECT_TRUE(shard.forward(y).ok());
    rows[4] = shard.rows();
  });
  Values y(kTokens * kDim);
  on_ranks(4, [&](comm::Communicator& ep) {
    Shard shard(model, ep);
    EXPECT_TRUE(shard.forward(y).ok());
    rows[static_cast<std::size_t>(ep.rank())] = shard.rows();
  });
  Values joined;
  for (std::size_t r = 0; r < 4; ++r) {
    joined.insert(joined.end(), rows[r].begin(), rows[r].end());
  }
  EXPECT_EQ(joined, rows[4]);
}

TEST(Dispatch, SurvivesAllTokensOnOneExpert) {
  Model model;
  for (std::size_t t = 0; t < kTokens; ++t) {
    model.logits[t * kExperts + 7] = 50;
    model.logits[t * kExperts + 6] = 40;
  }
  EXPECT_EQ(run_forward(model, 4), run_forward(model, 1));
}

TEST(Dispatch, DispatchBackwardAddsToDx) {
  const Model model;
  Gradients g = run_backward(model, 1);
  const Values once = g.dx;
  Values y(kTokens * kDim);
  on_ranks(1, [&](comm::Communicator& ep) {
    Shard shard(model, ep);
    EXPECT_TRUE(shard.forward(y).ok());
    EXPECT_TRUE(shard.backward(g).ok());
  });
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_NEAR(g.dx[i], 2 * once[i], 1e-13);
  }
}

TEST(DispatchPlan, RefusesExpertsThatDoNotDivide) {
  on_ranks(2, [](comm::Communicator& ep) {
    Routing routing{.tokens = 0, .experts = 3, .top_k = 1, .expert = {}, .counts = {0, 0, 0}};
    DispatchPlan plan;
    const Status status = make_dispatch_plan(routing, ep, soon(), plan);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("3 experts"), std::string::npos);
  });
}

TEST(DispatchPlan, RefusesCountsThatDoNotAddUp) {
  on_ranks(1, [](comm::Communicator& ep) {
    Routing routing{.tokens = 1, .experts = 2, .top_k = 1, .expert = {0}, .counts = {0, 0}};
    DispatchPlan plan;
    EXPECT_EQ(make_dispatch_plan(routing, ep, soon(), plan).code(), StatusCode::kInvalidArgument);
  });
}

TEST(Dispatch, AcceptsRanksWithoutTokens) {
  on_ranks(2, [](comm::Communicator& ep) {
    Routing routing{.tokens = 0, .experts = 4, .top_k = 2, .expert = {}, .counts = {0, 0, 0, 0}};
    DispatchPlan plan;
    EXPECT_TRUE(make_dispatch_plan(routing, ep, soon(), plan).ok());
    EXPECT_EQ(plan.rows_received, 0);
    std::vector<float> rows;
    EXPECT_TRUE(dispatch<float>(routing, plan, nullptr, 4, rows, ep, soon()).ok());
    EXPECT_TRUE(rows.empty());
  });
}

TEST(Dispatch, CombineRefusesRowsOfTheWrongSize) {
  on_ranks(1, [](comm::Communicator& ep) {
    Routing routing{.tokens = 1, .experts = 1, .top_k = 1, .expert = {0}, .counts = {1}};
    DispatchPlan plan;
    ASSERT_TRUE(make_dispatch_plan(routing, ep, soon(), plan).ok());
    const float gate = 1;
    float y = 0;
    std::vector<float> returned;
    const Status status = combine<float>(routing, plan, {1, 2}, &gate, 1, returned, &y, ep, soon());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  });
}

TEST(Dispatch, AbortedCommunicatorIsReportedWithItsReason) {
  on_ranks(1, [](comm::Communicator& ep) {
    ep.abort("peer lost");
    Routing routing{.tokens = 1, .experts = 1, .top_k = 1, .expert = {0}, .counts = {1}};
    DispatchPlan plan;
    const Status status = make_dispatch_plan(routing, ep, soon(), plan);
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("peer lost"), std::string::npos);
  });
}

}  // namespace
}  // namespace muster::parallel
