// SPDX-License-Identifier: Apache-2.0
// Claims: samples that one core ingests per second, and the latency of a long chart's query.
//
//   collector_ingest_samples_per_s  frames of 200 floats from 8 ranks: stored, committed every 1600
//                                   frames and transposed into chunks, all in the measured wall
//                                   time of one thread
//   chart_query_1e6_ms              one series of 1e6 steps, decimated to 2000 buckets, processor
//                                   time
#include "benchmarks/harness.h"

#include <muster/common/clock.h>
#include <muster/common/random.h>
#include <muster/store/query.h>
#include <muster/store/store.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace {

using muster::Expected;
using muster::Identity;
using muster::MetricSchema;
using muster::SampleFrame;
using muster::Status;
using muster::bench::must;
using muster::bench::Series;
using muster::store::Query;
using muster::store::Store;
using Seconds = std::chrono::duration<double>;

constexpr std::int32_t kRanks = 8;
constexpr std::size_t kMetrics = 200;
constexpr std::int64_t kBatch = 200;  // Frames of one rank per add_frames.
constexpr std::int64_t kSteps = 24'600;
constexpr std::int64_t kChartSteps = 1'000'000;

MetricSchema make_schema(std::size_t count) {
  MetricSchema schema;
  for (std::size_t i = 0; i < count; ++i) {
    muster::MetricDescriptor& metric = schema.metrics.emplace_back();
    metric.id = static_cast<std::uint32_t>(i);
    metric.name = "metric";
    metric.index = static_cast<std::int32_t>(i);
  }
  return schema;
}

// Noise like that of real training scalars: a compressor finds little in it.
std::vector<SampleFrame> make_frames(std::size_t metrics, std::int64_t count) {
  muster::Random random{7};
  std::vector<SampleFrame> frames(static_cast<std::size_t>(count));
  for (SampleFrame& frame : frames) {
    for (std::size_t i = 0; i < metrics; ++i) {
      frame.values.push_back(static_cast<float>(2.0 + 0.02 * random.normal()));
    }
  }
  return frames;
}

Status add(
    Store& store,
    const Identity& identity,
    std::uint64_t schema_hash,
    std::int64_t first_step,
    std::vector<SampleFrame>& frames) {
  for (std::size_t i = 0; i < frames.size(); ++i) {
    frames[i].step = first_step + static_cast<std::int64_t>(i);
  }
  return store.add_frames(
      identity, schema_hash, static_cast<std::uint64_t>(first_step) + 1, frames);
}

Expected<double> measure_ingest(const std::filesystem::path& file, const muster::Clock& clock) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::open(file, clock));
  const MetricSchema schema = make_schema(kMetrics);
  std::vector<Identity> ranks;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    ranks.push_back({"ingest", muster::Generation{1}, muster::Rank{rank}, "a"});
    MUSTER_RETURN_IF_ERROR(store->open_session(ranks.back(), kRanks).status());
    MUSTER_RETURN_IF_ERROR(store->register_schema(ranks.back(), schema));
  }
  std::vector<SampleFrame> frames = make_frames(kMetrics, kBatch);
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t step = 0; step < kSteps; step += kBatch) {
    for (const Identity& rank : ranks) {
      MUSTER_RETURN_IF_ERROR(add(*store, rank, schema.hash(), step, frames));
    }
    MUSTER_RETURN_IF_ERROR(store->compact().status());
    MUSTER_RETURN_IF_ERROR(store->commit());
  }
  bool more = true;
  while (more) {
    MUSTER_ASSIGN_OR_RETURN(more, store->compact());
    MUSTER_RETURN_IF_ERROR(store->commit());
  }
  const Seconds elapsed = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(store->counters().samples) / elapsed.count();
}

Status fill_chart(const std::filesystem::path& file, const muster::Clock& clock) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::open(file, clock));
  const MetricSchema schema = make_schema(4);
  const Identity rank{"chart", muster::Generation{1}, muster::Rank{0}, "a"};
  MUSTER_RETURN_IF_ERROR(store->open_session(rank, 1).status());
  MUSTER_RETURN_IF_ERROR(store->register_schema(rank, schema));
  std::vector<SampleFrame> frames = make_frames(4, 1000);
  for (std::int64_t step = 0; step < kChartSteps; step += 1000) {
    MUSTER_RETURN_IF_ERROR(add(*store, rank, schema.hash(), step, frames));
    MUSTER_RETURN_IF_ERROR(store->compact().status());
    MUSTER_RETURN_IF_ERROR(store->commit());
  }
  return {};
}

void show(Series& series) {
  series.run();
  std::printf("%s", series.report().c_str());
}

double value_of(const Expected<double>& value) {
  must(value.status());
  return *value;
}

void claim_ingest(const std::filesystem::path& folder, const muster::Clock& clock) {
  Series series("ingest", {.budget_s = 25}, Series::Time::kWall);
  series.add_measured("samples per second", [&] {
    const std::filesystem::path file = folder / "ingest.db";
    const double rate = value_of(measure_ingest(file, clock));
    for (const char* suffix : {"", "-wal", "-shm"}) {
      std::filesystem::remove(file.string() + suffix);
    }
    return rate;
  });
  series.add_figure(
      {.name = "collector_ingest_samples_per_s", .tolerance = 0.1, .digits = 0},
      [](std::span<const double> s) { return s[0]; });
  show(series);
}

void claim_chart(const std::filesystem::path& file, const muster::Clock& clock) {
  must(fill_chart(file, clock));
  const auto query = Query::open(file);
  must(query.status());
  const auto all = (*query)->series("chart");
  must(all.status());
  const std::int64_t id = all->front().series_id;
  Series series("chart of 1e6 steps", {.budget_s = 10, .rounds_min = 20}, Series::Time::kThread);
  series.add("query", [&] {
    const auto range = (*query)->range("chart", id, 1, 0, -1, 2000);
    must(range.status());
    must(
        range->buckets.size() < 1000
            ? muster::internal_error("the chart came back with too few buckets")
            : Status{});
  });
  series.add_figure(
      {.name = "chart_query_1e6_ms", .tolerance = 0.1},
      [](std::span<const double> s) { return 1e3 * s[0]; });
  show(series);
}

}  // namespace

int main() {
  const muster::SystemClock clock;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("muster_bench_" + muster::random_hex_id());
  std::filesystem::create_directories(folder);
  claim_ingest(folder, clock);
  claim_chart(folder / "c.db", clock);
  std::filesystem::remove_all(folder);
  return 0;
}
