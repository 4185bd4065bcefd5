// SPDX-License-Identifier: Apache-2.0
// Claim: dispatch moves tokens between ranks about as fast as memory can be copied.
//   claim ep_dispatch_memcpy_fraction   wire bytes of a dispatch (a row per token and other rank
//                                       that computes it, 4 bytes per choice: see
//                                       docs/concepts/experts.md) per second, over those of memcpy
//                                       into the peer's chunk (in one piece or row by row,
//                                       whichever is faster that turn), 2 processes that both
//                                       copy; every token leaves its rank
// Method: rows of 2,048 bf16. Dispatch and memcpy take turns in one group (harness.h); each is
// timed from one barrier to the next on the slowest rank. The report also has uniform routing,
// where most of what moves stays on the rank: there the bytes of the local passes (own rows, copies
// of a token's further choices) are counted with the wire's, as on one host both are the same
// memory.
#include "benchmarks/harness.h"
#include "tests/support/forked_ranks.h"

#include <muster/comm/backends.h>
#include <muster/common/random.h>
#include <muster/parallel/experts/exchange.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace muster::parallel {

namespace {

using bench::must;
using bench::Series;

constexpr int kRanks = 2;
constexpr std::int64_t kHidden = 2048;
constexpr std::size_t kCopyBytes = std::size_t{32} << 20;

struct Workload {
  const char* name;
  int experts;
  int top_k;
  std::int64_t tokens;
  bool leaves;  // every choice is one of the other rank's experts
};

constexpr std::array kWorkloads{
    Workload{"every token leaves, top 1", 8, 1, 8192, true},
    Workload{"uniform, top 2 of 64", 64, 2, 8192, false},
    Workload{"uniform, top 8 of 64", 64, 8, 2048, false}};

Deadline soon() {
  return Deadline::after(std::chrono::seconds{60});
}

EpExchangeOptions options_of(const Workload& workload) {
  EpExchangeOptions options;
  options.shape.ranks = kRanks;
  options.shape.experts = workload.experts;
  options.shape.top_k = workload.top_k;
  options.shape.tokens_max = workload.tokens;
  options.hidden = kHidden;
  options.type = DType::kBFloat16;
  options.numerics = EpNumerics::kWireExact;
  return options;
}

std::vector<std::int32_t> choices_of(const Workload& workload, int rank) {
  Random random{1234, static_cast<std::uint64_t>(rank)};
  const int local = workload.experts / kRanks;
  std::vector<std::int32_t> choices;
  for (std::int64_t t = 0; t < workload.tokens; ++t) {
    std::vector<std::int32_t> token;
    while (std::cmp_less(token.size(), workload.top_k)) {
      const auto all = static_cast<std::uint64_t>(workload.leaves ? local : workload.experts);
      const auto drawn = static_cast<std::int32_t>(random.below(all));
      const std::int32_t expert = workload.leaves ? drawn + (1 - rank) * local : drawn;
      if (std::find(token.begin(), token.end(), expert) == token.end()) {
        token.push_back(expert);
      }
    }
    choices.insert(choices.end(), token.begin(), token.end());
  }
  return choices;
}

class Bench {
 public:
  Bench(comm::Communicator& ranks, comm::SymmetricHeap& heap, std::size_t target)
      : ranks_(ranks), heap_(heap), target_(target) {}

  Expected<std::string> run(const Workload& workload, EpExchange& exchange) {
    const std::vector<std::int32_t> choices = choices_of(workload, ranks_.rank());
    const std::vector<float> gates(choices.size(), 0.5F);
    std::vector<std::byte> x(static_cast<std::size_t>(workload.tokens * kHidden * 2));
    std::vector<std::byte> y(x.size());
    std::memset(x.data(), 0x3F, x.size());
    std::memset(y.data(), 0, y.size());
    EpPlan plan{exchange.options().shape, exchange.options().balance};
    MUSTER_RETURN_IF_ERROR(exchange.make_plan(choices, plan, soon()));
    EpRows received;
    double combine_seconds = 0;  // of the last dispatch's rows
    const auto dispatch = [&] {
      const double seconds =
          time([&] { return exchange.dispatch(plan, x, gates, received, soon()); });
      combine_seconds = time([&] {
        const Status combined = exchange.combine(plan, received.rows, {}, y, {}, soon());
        return combined.ok() ? heap_.barrier("combined", soon()) : combined;
      });
      return seconds;
    };
    static_cast<void>(exchange.take_event(plan));
    dispatch();
    const EpEvent event = exchange.take_event(plan);
    const double wire = largest(static_cast<double>(event.bytes_out));
    const double all = largest(static_cast<double>(event.bytes_out + event.bytes_local));
    return measure(workload, dispatch, combine_seconds, wire, all);
  }

 private:
  std::string measure(
      const Workload& workload,
      const std::function<double()>& dispatch,
      const double& combine_seconds,
      double wire,
      double all) {
    using Seconds = std::span<const double>;
    Series series(
        workload.name,
        {.budget_s = 12, .rounds_min = 15},
        Series::Time::kWall,
        bench::Machine::system(),
        [this](double value) {
          must(ranks_.all_reduce(std::span{&value, 1}, comm::ReduceOp::kSum, soon()));
          return value;
        });
    const auto copy =
        series.add_measured("memcpy", [&] { return time([&] { return copy_all(kCopyBytes); }); });
    const auto rows = series.add_measured(
        "memcpy by rows", [&] { return time([&] { return copy_all(kHidden * 2); }); });
    const auto moved = series.add_measured("dispatch", dispatch);
    const auto combined = series.add_measured("combine", [&] { return combine_seconds; });
    const auto add = [&](const char* name, Series::Formula formula) {
      series.add_figure(
          {.name = name, .tolerance = 0.08, .is_claim = false, .digits = 2}, std::move(formula));
    };
    const auto rate = [=](Seconds s) {
      return static_cast<double>(kCopyBytes) / std::min(s[copy], s[rows]);
    };
    add("memcpy GB/s", [=](Seconds s) { return rate(s) / 1e9; });
    add("dispatch ms", [=](Seconds s) { return s[moved] * 1e3; });
    add("combine ms", [=](Seconds s) { return s[combined] * 1e3; });
    add("of memcpy with local passes", [=](Seconds s) { return all / s[moved] / rate(s); });
    series.add_figure(
        {.name = workload.leaves ? "ep_dispatch_memcpy_fraction" : "of memcpy on the wire",
         .tolerance = 0.08,
         .is_claim = workload.leaves,
         .digits = 2},
        [=](Seconds s) { return wire / s[moved] / rate(s); });
    series.run();
    return series.report();
  }

  // Into the peer's chunk, `piece` bytes at a time.
  Status copy_all(std::size_t piece) {
    for (std::size_t i = 0; i < kCopyBytes; i += piece) {
      std::memcpy(heap_.pointer(1 - ranks_.rank(), target_ + i), source_.data() + i, piece);
    }
    return heap_.barrier("copy", soon());
  }

  // Seconds from a barrier until the slowest rank has returned.
  template <typename Action>
  double time(const Action& action) {
    must(heap_.barrier("start", soon()));
    const auto start = std::chrono::steady_clock::now();
    must(action());
    return largest(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }

  double largest(double value) {
    must(ranks_.all_reduce(std::span<double>{&value, 1}, comm::ReduceOp::kMax, soon()));
    return value;
  }

  comm::Communicator& ranks_;
  comm::SymmetricHeap& heap_;
  std::size_t target_;
  std::vector<std::byte> source_{kCopyBytes, std::byte{0x3F}};
};

Status run_rank(comm::Communicator& ranks, std::string& reports) {
  std::size_t bytes = kCopyBytes + comm::kSymmetricGranularity;
  for (const Workload& workload : kWorkloads) {
    bytes += EpExchange::heap_bytes(options_of(workload));
  }
  MUSTER_ASSIGN_OR_RETURN(auto heap, comm::SymmetricHeap::create(ranks, bytes, soon()));
  MUSTER_ASSIGN_OR_RETURN(
      const std::size_t target, heap->allocate(kCopyBytes, comm::kSymmetricGranularity));
  Bench bench{ranks, *heap, target};
  for (const Workload& workload : kWorkloads) {
    MUSTER_ASSIGN_OR_RETURN(
        auto exchange, EpExchange::create(*heap, nullptr, options_of(workload), soon()));
    MUSTER_ASSIGN_OR_RETURN(const std::string report, bench.run(workload, *exchange));
    reports += report;
  }
  return ranks.barrier(soon());
}

}  // namespace

}  // namespace muster::parallel

int main() {
  const std::string session = "bench-ep-" + muster::random_hex_id();
  const auto reports = muster::test::run_ranks(
      muster::parallel::kRanks,
      [&](int rank) {
        muster::comm::ConnectOptions options;
        options.rank = rank;
        options.size = muster::parallel::kRanks;
        options.session = session;
        auto ranks = muster::comm::connect_shm(options, muster::parallel::soon());
        std::string text;
        const muster::Status status =
            ranks ? muster::parallel::run_rank(**ranks, text) : ranks.status();
        return status.ok() ? text : text + status.to_string() + "\n";
      },
      std::chrono::seconds{120});
  std::printf(
      "2 processes, rows of %lld bf16\n%s",
      static_cast<long long>(muster::parallel::kHidden),
      reports.at(0).c_str());
  return 0;
}
