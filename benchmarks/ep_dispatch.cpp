// SPDX-License-Identifier: Apache-2.0
// Claim: dispatch moves tokens between ranks about as fast as memory can be copied.
//   claim ep_dispatch_memcpy_fraction   wire bytes of a dispatch (a row per token and other rank
//                                       that computes it, 4 bytes per choice: see
//                                       docs/concepts/experts.md) per second, over those of memcpy
//                                       into the peer's chunk (in one piece or row by row,
//                                       whichever is faster that turn), 2 processes that both
//                                       copy; every token leaves its rank
// Method: rows of 2,048 bf16. Dispatch, combine and memcpy take turns in one run, so that drift
// hits all alike; each is timed from one barrier to the next on the slowest rank; medians of 15
// turns. The table also has uniform routing, where most of what moves stays on the rank: there the
// bytes of the local passes (own rows, copies of a token's further choices) are counted with the
// wire's, as on one host both are the same memory.
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
#include <string>
#include <vector>

namespace muster::parallel {

namespace {

constexpr int kRanks = 2;
constexpr int kTurns = 15;
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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Timings of one workload on one rank.
struct Measured {
  std::int64_t wire_bytes{0};  // of the rank with most
  std::int64_t all_bytes{0};
  std::vector<double> dispatch_s, combine_s, memcpy_rate;
};

class Bench {
 public:
  Bench(comm::Communicator& ranks, comm::SymmetricHeap& heap, std::size_t target)
      : ranks_(ranks), heap_(heap), target_(target) {}

  Status run(const Workload& workload, EpExchange& exchange, Measured& measured) {
    const int rank = ranks_.rank();
    const std::vector<std::int32_t> choices = choices_of(workload, rank);
    const std::vector<float> gates(choices.size(), 0.5F);
    std::vector<std::byte> x(static_cast<std::size_t>(workload.tokens * kHidden * 2));
    std::vector<std::byte> y(x.size());
    std::memset(x.data(), 0x3F, x.size());
    std::memset(y.data(), 0, y.size());
    EpPlan plan{exchange.options().shape, exchange.options().balance};
    MUSTER_RETURN_IF_ERROR(exchange.make_plan(choices, plan, soon()));
    EpRows received;
    for (int turn = -2; turn < kTurns; ++turn) {  // two to warm up
      double copy = 0;
      double copy_rows = 0;
      double dispatch = 0;
      double combine = 0;
      MUSTER_RETURN_IF_ERROR(time(copy, [&] { return copy_all(kCopyBytes); }));
      MUSTER_RETURN_IF_ERROR(time(copy_rows, [&] { return copy_all(kHidden * 2); }));
      static_cast<void>(exchange.take_event(plan));
      MUSTER_RETURN_IF_ERROR(
          time(dispatch, [&] { return exchange.dispatch(plan, x, gates, received, soon()); }));
      const EpEvent event = exchange.take_event(plan);
      const auto combine_all = [&] {
        const Status combined = exchange.combine(plan, received.rows, {}, y, {}, soon());
        return combined.ok() ? heap_.barrier("combined", soon()) : combined;
      };
      MUSTER_RETURN_IF_ERROR(time(combine, combine_all));
      std::array<double, 2> most{
          static_cast<double>(event.bytes_out),
          static_cast<double>(event.bytes_out + event.bytes_local)};
      MUSTER_RETURN_IF_ERROR(
          ranks_.all_reduce(std::span<double>{most}, comm::ReduceOp::kMax, soon()));
      measured.wire_bytes = static_cast<std::int64_t>(most[0]);
      measured.all_bytes = static_cast<std::int64_t>(most[1]);
      if (turn >= 0) {
        measured.memcpy_rate.push_back(static_cast<double>(kCopyBytes) / std::min(copy, copy_rows));
        measured.dispatch_s.push_back(dispatch);
        measured.combine_s.push_back(combine);
      }
    }
    return {};
  }

 private:
  // Into the peer's chunk, `piece` bytes at a time.
  Status copy_all(std::size_t piece) {
    for (std::size_t i = 0; i < kCopyBytes; i += piece) {
      std::memcpy(heap_.pointer(1 - ranks_.rank(), target_ + i), source_.data() + i, piece);
    }
    return heap_.barrier("copy", soon());
  }

  // From a barrier until the slowest rank has returned.
  template <typename Action>
  Status time(double& seconds, const Action& action) {
    MUSTER_RETURN_IF_ERROR(heap_.barrier("start", soon()));
    const auto start = std::chrono::steady_clock::now();
    MUSTER_RETURN_IF_ERROR(action());
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return ranks_.all_reduce(std::span<double>{&seconds, 1}, comm::ReduceOp::kMax, soon());
  }

  comm::Communicator& ranks_;
  comm::SymmetricHeap& heap_;
  std::size_t target_;
  std::vector<std::byte> source_{kCopyBytes, std::byte{0x3F}};
};

std::string report(const Workload& workload, const Measured& measured) {
  const double rate = median(measured.memcpy_rate);
  const double dispatch = median(measured.dispatch_s);
  const double wire = static_cast<double>(measured.wire_bytes);
  const double all = static_cast<double>(measured.all_bytes);
  // Turn by turn, so that what else the machine does hits both sides of a ratio.
  std::vector<double> fractions;
  for (std::size_t i = 0; i < measured.dispatch_s.size(); ++i) {
    fractions.push_back(wire / measured.dispatch_s[i] / measured.memcpy_rate[i]);
  }
  const double fraction = median(fractions);
  std::array<char, 512> text{};
  std::snprintf(
      text.data(),
      text.size(),
      "%-26s memcpy %6.2f GB/s  dispatch %8.3f ms  wire %6.1f MB (%.2f of memcpy)"
      "  with local passes %6.1f MB (%.2f)  combine %8.3f ms\n",
      workload.name,
      rate / 1e9,
      dispatch * 1e3,
      wire / 1e6,
      fraction,
      all / 1e6,
      fraction * all / wire,
      median(measured.combine_s) * 1e3);
  std::string result = text.data();
  if (workload.leaves) {
    std::snprintf(text.data(), text.size(), "claim ep_dispatch_memcpy_fraction %.2f\n", fraction);
    result += text.data();
  }
  return result;
}

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
    Measured measured;
    MUSTER_RETURN_IF_ERROR(bench.run(workload, *exchange, measured));
    reports += report(workload, measured);
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
