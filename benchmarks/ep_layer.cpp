// SPDX-License-Identifier: Apache-2.0
// Claims: a balanced expert layer takes the same time whatever the routing is.
//   claim ep_skew_flatness                   forward + backward at maxvio 20 over maxvio 0.2
//   claim ep_alltoall_skew_slowdown          the same ratio with an ordinary all-to-all
//   claim ep_speedup_over_alltoall_maxvio20  ordinary over balanced at maxvio 20
//   claim ep_speedup_over_unbalanced_maxvio20  the same movement without balancing over balanced
//   claim ep_break_even_tokens_maxvio<V>     fewest tokens per rank, of those tried, from which on
//                                            balancing is faster than the same movement without it;
//                                            0 if it never is
// Method: 2 rank processes of one thread, fp32, a whole layer (plan, dispatch, experts, combine and
// back, expert copies and their gradients included), 64 experts of 512 x 256, 2 per token, drawn
// from lognormal popularities. All kinds and skews of a token count take turns in one group
// (harness.h); each is timed from one barrier to the next on the slowest rank.
#include "benchmarks/harness.h"
#include "tests/support/forked_ranks.h"

#include <muster/comm/backends.h>
#include <muster/common/random.h>
#include <muster/parallel/experts/layer.h>
#include <muster/parallel/experts/synthetic_routing.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace muster::parallel {
namespace {

using bench::must;
using bench::Series;

constexpr int kRanks = 2;
constexpr int kExperts = 64;
constexpr int kTopK = 2;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kFfn = 256;
constexpr std::uint64_t kSeed = 1234;
constexpr std::array kSkews{0.2, 1.0, 2.0, 5.0, 10.0, 20.0};
constexpr std::array<std::int64_t, 3> kTokens{128, 512, 2048};
constexpr std::int64_t kClaimTokens = 2048;

enum class Kind : std::uint8_t { kBalanced, kUnbalanced, kAllToAll };
constexpr std::array kKinds{Kind::kBalanced, Kind::kUnbalanced, Kind::kAllToAll};

Deadline soon() {
  return Deadline::after(std::chrono::seconds{60});
}

ExpertLayerOptions options_of(Kind kind) {
  ExpertLayerOptions options;
  EpShape& shape = options.exchange.shape;
  shape.ranks = kRanks;
  shape.experts = kExperts;
  shape.top_k = kTopK;
  shape.tokens_max = *std::max_element(kTokens.begin(), kTokens.end());
  if (kind == Kind::kUnbalanced) {
    options.exchange.balance.mode = EpBalanceMode::kNone;
  }
  options.exchange.hidden = kHidden;
  options.ffn = kFfn;
  return options;
}

void fill(std::span<float> values, std::uint64_t stream) {
  Random random{kSeed, stream};
  for (float& value : values) {
    value = static_cast<float>(random.uniform() - 0.5) * 0.1F;
  }
}

std::span<float> floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};  // NOLINT
}

// One layer of a kind with its own weights and memory.
struct BenchLayer {
  std::unique_ptr<ExpertGroup> group;
  std::vector<std::vector<float>> own;
  std::unique_ptr<ExpertLayer> layer;
};

Expected<BenchLayer> make_layer(Kind kind, comm::Communicator& ranks) {
  constexpr std::size_t kElements = kExperts / kRanks * kHidden * kFfn;
  BenchLayer made;
  std::array<std::span<float>, 6> memory;  // gate, up, down, then their gradients
  if (kind == Kind::kAllToAll) {
    for (std::span<float>& one : memory) {
      one = made.own.emplace_back(kElements);
    }
  } else {
    MUSTER_ASSIGN_OR_RETURN(
        made.group,
        ExpertGroup::create(ranks, options_of(kind), 6 * kElements * sizeof(float), soon()));
    for (std::span<float>& one : memory) {
      MUSTER_ASSIGN_OR_RETURN(const auto bytes, made.group->allocate(kElements * sizeof(float)));
      one = floats(bytes);
    }
    MUSTER_RETURN_IF_ERROR(made.group->seal(soon()));
  }
  for (std::size_t at = 0; at < 3; ++at) {
    fill(memory[at], at);
  }
  if (kind == Kind::kAllToAll) {
    MUSTER_ASSIGN_OR_RETURN(
        made.layer,
        make_all_to_all_layer(
            ranks,
            options_of(kind),
            {memory[0], memory[1], memory[2], memory[3], memory[4], memory[5]}));
  } else {
    MUSTER_ASSIGN_OR_RETURN(
        made.layer,
        made.group->make_layer(
            "layer",
            {memory[0].data(), memory[3].data()},
            {memory[1].data(), memory[4].data()},
            {memory[2].data(), memory[5].data()}));
  }
  return made;
}

// Tokens of one count, their routing at every skew, and what a pass writes.
struct Batch {
  std::vector<float> x, y, dx, dgates, gates;
  std::vector<std::vector<std::int32_t>> choices;  // of each skew
};

Expected<Batch> make_batch(std::int64_t tokens, int rank) {
  const auto entries = static_cast<std::size_t>(tokens * kTopK);
  Batch batch;
  batch.x.resize(static_cast<std::size_t>(tokens * kHidden));
  fill(batch.x, 10 + static_cast<std::uint64_t>(rank));
  batch.y.resize(batch.x.size());
  batch.dx.resize(batch.x.size());
  batch.dgates.resize(entries);
  batch.gates.assign(entries, 0.5F);
  for (const double skew : kSkews) {
    MUSTER_ASSIGN_OR_RETURN(
        const SyntheticRouting routing, SyntheticRouting::create(kExperts, kTopK, skew, kSeed));
    routing.draw(
        static_cast<std::uint64_t>(rank),
        static_cast<std::uint64_t>(tokens),
        batch.choices.emplace_back(entries));
  }
  return batch;
}

// Whether balancing pays at a skew and a token count, as far as the interval says.
enum class Pays : std::uint8_t { kNo, kYes, kUnknown };

class Bench {
 public:
  explicit Bench(comm::Communicator& ranks) : ranks_(ranks) {}

  Expected<std::string> run() {
    for (const Kind kind : kKinds) {
      MUSTER_ASSIGN_OR_RETURN(BenchLayer made, make_layer(kind, ranks_));
      layers_.push_back(std::move(made));
    }
    std::string text;
    for (std::size_t at = 0; at < kTokens.size(); ++at) {
      MUSTER_ASSIGN_OR_RETURN(Batch batch, make_batch(kTokens[at], ranks_.rank()));
      text += run_tokens(kTokens[at], batch, pays_[at]);
    }
    for (std::size_t skew = 0; skew < kSkews.size(); ++skew) {
      text += break_even(skew);
    }
    return text;
  }

 private:
  // Index of a variant: kinds of a skew are neighbours.
  static std::size_t at(std::size_t skew, std::size_t kind) { return skew * kKinds.size() + kind; }

  std::string run_tokens(std::int64_t tokens, Batch& batch, std::array<Pays, kSkews.size()>& pays) {
    using Seconds = std::span<const double>;
    const bool is_claimed = tokens == kClaimTokens;
    Series series(
        std::to_string(tokens) + " tokens",
        {.budget_s = is_claimed ? 40.0 : 10.0, .rounds_min = 9},
        Series::Time::kWall,
        bench::Machine::system(),
        [this](double value) { return reduced(value, comm::ReduceOp::kSum); });
    for (std::size_t skew = 0; skew < kSkews.size(); ++skew) {
      for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
        series.add_measured("pass", [this, &batch, skew, kind] { return pass(batch, skew, kind); });
      }
    }
    for (std::size_t skew = 0; skew < kSkews.size(); ++skew) {
      series.add_figure(
          {.name = "unbalanced over balanced", .tolerance = 1, .is_claim = false},
          [=](Seconds s) { return s[at(skew, 1)] / s[at(skew, 0)]; });
    }
    constexpr std::size_t kLast = kSkews.size() - 1;
    const auto claim = [&](const char* name, std::size_t above, std::size_t below) {
      series.add_figure(
          {.name = name, .tolerance = 0.06}, [=](Seconds s) { return s[above] / s[below]; });
    };
    if (is_claimed) {
      claim("ep_skew_flatness", at(kLast, 0), at(0, 0));
      claim("ep_alltoall_skew_slowdown", at(kLast, 2), at(0, 2));
      claim("ep_speedup_over_alltoall_maxvio20", at(kLast, 2), at(kLast, 0));
      claim("ep_speedup_over_unbalanced_maxvio20", at(kLast, 1), at(kLast, 0));
    }
    series.run();
    for (std::size_t skew = 0; skew < kSkews.size(); ++skew) {
      pays[skew] = judge(series, skew);
    }
    return table(tokens, series) + series.report();
  }

  // Seconds of a forward and backward pass on the slowest rank.
  double pass(Batch& batch, std::size_t skew, std::size_t kind) {
    ExpertLayer& layer = *layers_[kind].layer;
    must(ranks_.barrier(soon()));
    const auto start = std::chrono::steady_clock::now();
    must(layer.forward(
        std::as_bytes(std::span{batch.x}),
        batch.choices[skew],
        batch.gates,
        std::as_writable_bytes(std::span{batch.y}),
        soon()));
    must(layer.backward(
        std::as_bytes(std::span{batch.y}),
        std::as_writable_bytes(std::span{batch.dx}),
        batch.dgates,
        soon()));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (kKinds[kind] == Kind::kBalanced) {
      events_[skew] = layer.event();
    }
    return reduced(seconds, comm::ReduceOp::kMax);
  }

  double reduced(double value, comm::ReduceOp operation) {
    must(ranks_.all_reduce(std::span<double>{&value, 1}, operation, soon()));
    return value;
  }

  // Within 1 % of 1 a new process may decide otherwise.
  static Pays judge(const Series& series, std::size_t skew) {
    const bench::Interval ratio = series.interval(skew);
    if (!series.is_settled(skew) || (ratio.low < 1.01 && ratio.high > 0.99)) {
      return Pays::kUnknown;
    }
    return ratio.low >= 1.01 ? Pays::kYes : Pays::kNo;
  }

  std::string table(std::int64_t tokens, const Series& series) {
    std::string text =
        " tokens  maxvio   found    rho copies  balanced ms same path ms  alltoall ms\n";
    for (std::size_t skew = 0; skew < kSkews.size(); ++skew) {
      const EpEvent& event = events_.at(skew);
      std::array<char, 256> line{};
      std::snprintf(
          line.data(),
          line.size(),
          "%7lld %7.1f %7.2f %6.3f %6lld %12.2f %12.2f %12.2f\n",
          static_cast<long long>(tokens),
          kSkews.at(skew),
          event.max_violation,
          event.rank_imbalance,
          static_cast<long long>(event.copies),
          series.median_seconds(at(skew, 0)) * 1e3,
          series.median_seconds(at(skew, 1)) * 1e3,
          series.median_seconds(at(skew, 2)) * 1e3);
      text += line.data();
    }
    return text;
  }

  // From these tokens on balancing always paid.
  [[nodiscard]] std::string break_even(std::size_t skew) const {
    std::ostringstream name;
    name << "ep_break_even_tokens_maxvio" << kSkews.at(skew);
    std::int64_t fewest = 0;
    for (std::size_t tokens = kTokens.size(); tokens-- > 0;) {
      const Pays pays = pays_.at(tokens).at(skew);
      if (pays == Pays::kUnknown) {
        return bench::noisy_line(name.str());
      }
      if (pays == Pays::kNo) {
        break;
      }
      fewest = kTokens.at(tokens);
    }
    return "claim " + name.str() + " " + std::to_string(fewest) + " ± 0\n";
  }

  comm::Communicator& ranks_;
  std::vector<BenchLayer> layers_;
  std::map<std::size_t, EpEvent> events_;  // of the balanced pass, by skew
  std::array<std::array<Pays, kSkews.size()>, kTokens.size()> pays_{};
};

Status run_rank(comm::Communicator& ranks, std::string& report) {
  Bench bench{ranks};
  MUSTER_ASSIGN_OR_RETURN(report, bench.run());
  return {};
}

}  // namespace
}  // namespace muster::parallel

int main() {
  using namespace muster;
  const std::string session = "bench-ep-layer-" + random_hex_id();
  const auto reports = test::run_ranks(
      parallel::kRanks,
      [&](int rank) {
        comm::ConnectOptions options;
        options.rank = rank;
        options.size = parallel::kRanks;
        options.session = session;
        auto ranks = comm::connect_shm(options, parallel::soon());
        std::string text;
        const Status status = ranks ? parallel::run_rank(**ranks, text) : ranks.status();
        return status.ok() ? text : text + status.to_string() + "\n";
      },
      std::chrono::seconds{240});
  std::printf(
      "2 processes, %d experts of %lld x %lld fp32, %d per token, forward + backward\n%s",
      parallel::kExperts,
      static_cast<long long>(parallel::kHidden),
      static_cast<long long>(parallel::kFfn),
      parallel::kTopK,
      reports.at(0).c_str());
  return 0;
}
