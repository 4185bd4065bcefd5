// SPDX-License-Identifier: Apache-2.0
// Access to the values of a frame: a registered schema whose columns were looked up once.
#pragma once

#include <muster/common/ids.h>
#include <muster/common/telemetry.h>
#include <muster/detect/detector.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace muster::collector {

// Immutable after construction; shared between the writer and readers of /metrics.
class SchemaView {
 public:
  explicit SchemaView(MetricSchema schema);

  [[nodiscard]] const MetricSchema& schema() const { return schema_; }

  // Columns of kind kDelta: summed up for /metrics.
  [[nodiscard]] const std::vector<std::uint32_t>& delta_columns() const { return delta_columns_; }

  // The rank's row of the EP wait matrix, [EP ranks]; empty when it sends none.
  [[nodiscard]] std::vector<double> wait_row(const SampleFrame& frame) const;

  // The job's view of the step; nullopt when the schema has neither loss nor gradient norm.
  // `frame` must have a value for every column.
  [[nodiscard]] std::optional<detect::StepObservation> observe(
      Generation generation, const SampleFrame& frame) const;

 private:
  struct LogitColumn {
    std::uint32_t id{0};
    int layer{-1};
    int head{-1};
  };

  // Columns of one layer.
  struct AttentionColumns {
    std::optional<std::uint32_t> mode;
    std::optional<std::uint32_t> query_reach;
    std::optional<std::uint32_t> block_reach;
  };

  struct ExpertColumns {
    std::optional<std::uint32_t> rank_imbalance;
    std::optional<std::uint32_t> maxvio;
  };

  void add_layer(const MetricDescriptor& metric);
  void add_wait(const MetricDescriptor& metric);

  MetricSchema schema_;
  std::vector<std::uint32_t> delta_columns_;
  std::optional<std::uint32_t> loss_;
  std::optional<std::uint32_t> gradient_norm_;
  std::optional<std::uint32_t> nonfinite_count_;
  std::optional<std::uint32_t> step_skipped_;
  std::vector<LogitColumn> logits_;
  std::map<int, AttentionColumns> attention_;        // By layer.
  std::map<int, ExpertColumns> experts_;             // By layer.
  std::vector<std::optional<std::uint32_t>> waits_;  // By EP rank.
};

}  // namespace muster::collector
