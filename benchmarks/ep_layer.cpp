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
// from lognormal popularities. All kinds and skews take turns in one run, so that drift hits all
// alike; each is timed from one barrier to the next on the slowest rank; figures are medians of 9
// turns, ratios medians of the ratios of each turn.
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

constexpr int kRanks = 2;
constexpr int kExperts = 64;
constexpr int kTopK = 2;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kFfn = 256;
constexpr int kTurns = 7;
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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds of every turn of one kind at one skew and token count.
using Key = std::pair<std::int64_t, std::size_t>;  // tokens, index of the skew
using Times = std::map<Key, std::array<std::vector<double>, kKinds.size()>>;

class Bench {
 public:
  explicit Bench(comm::Communicator& ranks) : ranks_(ranks) {}

  Status run() {
    for (const Kind kind : kKinds) {
      MUSTER_ASSIGN_OR_RETURN(BenchLayer made, make_layer(kind, ranks_));
      layers_.push_back(std::move(made));
    }
    for (const std::int64_t tokens : kTokens) {
      MUSTER_RETURN_IF_ERROR(run_tokens(tokens));
    }
    return {};
  }

  [[nodiscard]] const Times& times() const { return times_; }

  // Returns the plan's counters at a skew, by token count.
  [[nodiscard]] const std::map<Key, EpEvent>& events() const { return events_; }

 private:
  Status run_tokens(std::int64_t tokens) {
    const auto entries = static_cast<std::size_t>(tokens * kTopK);
    std::vector<float> x(static_cast<std::size_t>(tokens * kHidden));
    fill(x, 10 + static_cast<std::uint64_t>(ranks_.rank()));
    std::vector<float> y(x.size());
    std::vector<float> dx(x.size());
    std::vector<float> dgates(entries);
    const std::vector<float> gates(entries, 0.5F);
    std::vector<std::vector<std::int32_t>> choices;
    for (const double skew : kSkews) {
      MUSTER_ASSIGN_OR_RETURN(
          const SyntheticRouting routing, SyntheticRouting::create(kExperts, kTopK, skew, kSeed));
      routing.draw(
          static_cast<std::uint64_t>(ranks_.rank()),
          static_cast<std::uint64_t>(tokens),
          choices.emplace_back(entries));
    }
    for (int turn = -2; turn < kTurns; ++turn) {  // two to warm up
      for (std::size_t skew = 0; skew < kSkews.size(); ++skew) {
        for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
          ExpertLayer& layer = *layers_[kind].layer;
          double seconds = 0;
          MUSTER_RETURN_IF_ERROR(ranks_.barrier(soon()));
          const auto start = std::chrono::steady_clock::now();
          MUSTER_RETURN_IF_ERROR(layer.forward(
              std::as_bytes(std::span{x}),
              choices[skew],
              gates,
              std::as_writable_bytes(std::span{y}),
              soon()));
          MUSTER_RETURN_IF_ERROR(layer.backward(
              std::as_bytes(std::span{y}), std::as_writable_bytes(std::span{dx}), dgates, soon()));
          seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
          MUSTER_RETURN_IF_ERROR(
              ranks_.all_reduce(std::span<double>{&seconds, 1}, comm::ReduceOp::kMax, soon()));
          if (turn >= 0) {
            times_[{tokens, skew}][kind].push_back(seconds);
          }
          if (kKinds[kind] == Kind::kBalanced) {
            events_[{tokens, skew}] = layer.event();
          }
        }
      }
    }
    return {};
  }

  comm::Communicator& ranks_;
  std::vector<BenchLayer> layers_;
  Times times_;
  std::map<Key, EpEvent> events_;
};

double ratio(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> ratios;
  for (std::size_t turn = 0; turn < above.size(); ++turn) {
    ratios.push_back(above[turn] / below[turn]);
  }
  return median(std::move(ratios));
}

class Report {
 public:
  explicit Report(const Bench& bench) : times_(bench.times()), events_(bench.events()) {}

  [[nodiscard]] std::string text() {
    table();
    const auto& flat = times_.at({kClaimTokens, 0});
    const auto& skewed = times_.at({kClaimTokens, kSkews.size() - 1});
    claim("ep_skew_flatness", ratio(skewed[0], flat[0]));
    claim("ep_alltoall_skew_slowdown", ratio(skewed[2], flat[2]));
    claim("ep_speedup_over_alltoall_maxvio20", ratio(skewed[2], skewed[0]));
    claim("ep_speedup_over_unbalanced_maxvio20", ratio(skewed[1], skewed[0]));
    for (std::size_t skew = 0; skew < kSkews.size(); ++skew) {
      text_ << "claim ep_break_even_tokens_maxvio" << kSkews[skew] << ' ' << break_even(skew)
            << '\n';
    }
    return std::move(text_).str();
  }

 private:
  void claim(const char* name, double value) {
    std::array<char, 128> line{};
    std::snprintf(line.data(), line.size(), "claim %s %.3f\n", name, value);
    text_ << line.data();
  }

  void table() {
    text_ << " tokens  maxvio   found    rho copies  balanced ms same path ms  alltoall ms\n";
    for (const auto& [key, kinds] : times_) {
      const EpEvent& event = events_.at(key);
      std::array<char, 256> line{};
      std::snprintf(
          line.data(),
          line.size(),
          "%7lld %7.1f %7.2f %6.3f %6lld %12.2f %12.2f %12.2f\n",
          static_cast<long long>(key.first),
          kSkews.at(key.second),
          event.max_violation,
          event.rank_imbalance,
          static_cast<long long>(event.copies),
          median(kinds[0]) * 1e3,
          median(kinds[1]) * 1e3,
          median(kinds[2]) * 1e3);
      text_ << line.data();
    }
  }

  // From these tokens on balancing always won.
  [[nodiscard]] std::int64_t break_even(std::size_t skew) const {
    std::int64_t fewest = 0;
    for (auto tokens = kTokens.rbegin(); tokens != kTokens.rend(); ++tokens) {
      const auto& kinds = times_.at({*tokens, skew});
      if (ratio(kinds[1], kinds[0]) <= 1) {
        break;
      }
      fewest = *tokens;
    }
    return fewest;
  }

  const Times& times_;
  const std::map<Key, EpEvent>& events_;
  std::ostringstream text_;
};

Status run_rank(comm::Communicator& ranks, std::string& report) {
  Bench bench{ranks};
  MUSTER_RETURN_IF_ERROR(bench.run());
  report = Report{bench}.text();
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
