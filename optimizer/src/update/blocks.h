// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz over the blocks of whole matrices in one buffer. Equal neighbours form one batch in
// place; unequal blocks and those of several runs are gathered by shape first.
#pragma once

#include "optimizer/src/routing/routing.h"

#include <muster/kernels/newton_schulz.h>
#include <muster/optimizer/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace muster::optimizer {

// A matrix of `parameter`, row-major from work[offset].
struct WorkMatrix {
  const RoutedParameter* parameter{nullptr};
  std::size_t offset{0};
  bool counts{true};  // this rank counts it in statistics
};

class Orthogonaliser {
 public:
  // `scratch_elements` bounds the memory of gathered blocks (one block at least).
  Orthogonaliser(const OptimizerOptions& options, std::size_t scratch_elements);

  // Orthogonalises every block in place. A block whose result is not finite becomes all NaN, so
  // that every rank that stores a part of it detects that. `matrices` ascend by offset. Adds to the
  // statistics of the parameters' groups.
  void run(
      std::span<float> work,
      std::span<const WorkMatrix> matrices,
      std::span<GroupUpdateStatistics> statistics);

  // Number of blocks so far.
  [[nodiscard]] std::int64_t calls() const { return calls_; }

 private:
  struct Block {
    const WorkMatrix* matrix;
    const MatrixBlock* block;
    std::size_t offset;  // of its first run in `work`
  };

  void run_batch(
      std::span<float> x,
      std::span<const Block> blocks,
      std::span<GroupUpdateStatistics> statistics);
  void run_scattered(
      std::span<float> work,
      std::span<const Block> blocks,
      std::span<GroupUpdateStatistics> statistics);

  std::vector<kernels::NewtonSchulzStep> coefficients_;
  kernels::NewtonSchulzOptions options_;
  std::size_t scratch_elements_;
  kernels::NewtonSchulzWorkspace workspace_;
  std::vector<kernels::NewtonSchulzReport> reports_;
  std::vector<float> gathered_;
  std::int64_t calls_{0};
};

}  // namespace muster::optimizer
