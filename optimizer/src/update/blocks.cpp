// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/update/blocks.h"

#include <muster/optimizer/newton_schulz_sets.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace muster::optimizer {
namespace {

void add_report(
    BlockStatistics& blocks, const kernels::NewtonSchulzReport& report, std::int64_t short_side) {
  BlockStatistics one;
  one.recomputed_blocks = report.recomputed ? 1 : 0;
  one.nonfinite_blocks = report.nonfinite ? 1 : 0;
  if (!report.nonfinite) {
    const double rank = report.effective_rank / static_cast<double>(short_side);
    one.block_count = 1;
    one.direction_norm_sum = report.input_norm;
    one.effective_rank_sum = rank;
    one.effective_rank_min = rank;
    one.orthogonality_error_sum = report.orthogonality_error;
    one.orthogonality_error_max = report.orthogonality_error;
  }
  kernels::combine(kBlockStatistics, blocks, one);
}

// True if the blocks form a batch in memory: one run each, of equal size, adjacent.
bool is_batch(const RoutedParameter& parameter) {
  return std::all_of(
      parameter.blocks.begin(), parameter.blocks.end(), [&](const MatrixBlock& block) {
        return block.runs.size() == 1 && block.rows == parameter.blocks.front().rows;
      });
}

// Copies the runs of a block between its matrix and `packed`.
template <typename Copy>
void for_each_run(const MatrixBlock& block, std::size_t cols, const Copy& copy) {
  std::size_t packed = 0;
  for (const RowRun& run : block.runs) {
    const std::size_t size = static_cast<std::size_t>(run.rows) * cols;
    copy(static_cast<std::size_t>(run.begin) * cols, packed, size);
    packed += size;
  }
}

}  // namespace

Orthogonaliser::Orthogonaliser(const OptimizerOptions& options, std::size_t scratch_elements)
    : coefficients_(newton_schulz_coefficients(options.muon)), scratch_elements_(scratch_elements) {
  options_.coefficients = coefficients_;
  options_.precision = options.muon.precision;
  options_.form = options.muon.form;
  options_.diagnostics = options.statistics;
}

void Orthogonaliser::run(
    std::span<float> work,
    std::span<const WorkMatrix> matrices,
    std::span<GroupUpdateStatistics> statistics) {
  std::vector<Block> adjacent;
  std::vector<Block> scattered;
  for (const WorkMatrix& matrix : matrices) {
    std::vector<Block>& blocks = is_batch(*matrix.parameter) ? adjacent : scattered;
    for (const MatrixBlock& block : matrix.parameter->blocks) {
      const auto row = static_cast<std::size_t>(block.runs.front().begin);
      const std::size_t cols = static_cast<std::size_t>(matrix.parameter->cols);
      blocks.push_back({&matrix, &block, matrix.offset + row * cols});
    }
  }
  std::size_t first = 0;
  while (first < adjacent.size()) {
    const Block& head = adjacent[first];
    const std::size_t cols = static_cast<std::size_t>(head.matrix->parameter->cols);
    const std::size_t size = static_cast<std::size_t>(head.block->rows) * cols;
    std::size_t last = first + 1;
    while (last < adjacent.size() && adjacent[last].block->rows == head.block->rows &&
           adjacent[last].matrix->parameter->cols == head.matrix->parameter->cols &&
           adjacent[last].offset == head.offset + (last - first) * size) {
      ++last;
    }
    run_batch(
        work.subspan(head.offset, (last - first) * size),
        std::span{adjacent}.subspan(first, last - first),
        statistics);
    first = last;
  }
  run_scattered(work, scattered, statistics);
}

void Orthogonaliser::run_batch(
    std::span<float> x,
    std::span<const Block> blocks,
    std::span<GroupUpdateStatistics> statistics) {
  reports_.assign(blocks.size(), {});
  kernels::newton_schulz_batch(
      x,
      static_cast<std::int64_t>(blocks.size()),
      blocks.front().block->rows,
      blocks.front().matrix->parameter->cols,
      options_,
      workspace_,
      reports_);
  const std::size_t size = x.size() / blocks.size();
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    if (reports_[index].nonfinite) {
      const std::span<float> bad = x.subspan(index * size, size);
      std::fill(bad.begin(), bad.end(), std::numeric_limits<float>::quiet_NaN());
    }
    const WorkMatrix& matrix = *blocks[index].matrix;
    if (matrix.counts) {
      add_report(
          statistics[static_cast<std::size_t>(matrix.parameter->group_index)].blocks,
          reports_[index],
          std::min(blocks[index].block->rows, matrix.parameter->cols));
    }
  }
  calls_ += static_cast<std::int64_t>(blocks.size());
}

void Orthogonaliser::run_scattered(
    std::span<float> work,
    std::span<const Block> blocks,
    std::span<GroupUpdateStatistics> statistics) {
  std::vector<Block> sorted{blocks.begin(), blocks.end()};
  const auto shape = [](const Block& block) {
    return std::pair{block.block->rows, block.matrix->parameter->cols};
  };
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Block& a, const Block& b) {
    return shape(a) < shape(b);
  });
  std::size_t first = 0;
  while (first < sorted.size()) {
    const auto cols = static_cast<std::size_t>(sorted[first].matrix->parameter->cols);
    const std::size_t size = static_cast<std::size_t>(sorted[first].block->rows) * cols;
    std::size_t last = first + 1;
    while (last < sorted.size() && shape(sorted[last]) == shape(sorted[first]) &&
           (last - first + 1) * size <= scratch_elements_) {
      ++last;
    }
    gathered_.resize(std::max(gathered_.size(), (last - first) * size));
    const auto move = [&](bool there) {
      for (std::size_t index = first; index < last; ++index) {
        float* packed = gathered_.data() + (index - first) * size;
        float* matrix = work.data() + sorted[index].matrix->offset;
        for_each_run(
            *sorted[index].block,
            cols,
            [&](std::size_t in_matrix, std::size_t in_block, std::size_t run) {
              float* from = there ? matrix + in_matrix : packed + in_block;
              float* to = there ? packed + in_block : matrix + in_matrix;
              std::memcpy(to, from, run * sizeof(float));
            });
      }
    };
    move(true);
    run_batch(
        std::span{gathered_}.first((last - first) * size),
        std::span<const Block>{sorted}.subspan(first, last - first),
        statistics);
    move(false);
    first = last;
  }
}

}  // namespace muster::optimizer
