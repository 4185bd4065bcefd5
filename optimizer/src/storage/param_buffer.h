// SPDX-License-Identifier: Apache-2.0
// Memory of the values and gradients of a part of the model, with its collectives.
//
// Thread-safety: none. The communicators must outlive it and own its memory.
#pragma once

#include "optimizer/src/layout/layout.h"

#include <muster/comm/communicator.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::optimizer {

// `holders` and `buckets` have the same ranks in the same order.
struct BufferCommunicators {
  comm::Communicator* memory;   // owns the buffers; creation is collective over it
  comm::Communicator* holders;  // for what happens inside the update
  comm::Communicator* buckets;  // reduces and gathers; the only one a second thread may use
};

class ParamBuffer {
 public:
  [[nodiscard]] static Expected<ParamBuffer> create(
      BufferPlan plan,
      const Routing& routing,
      const BufferCommunicators& communicators,
      const OptimizerOptions& options,
      Deadline deadline);

  // Reduces bucket `index`: the gradients of this rank's shards become sums over the holders, all
  // others are unspecified afterwards. Does nothing for one holder.
  [[nodiscard]] Status reduce(std::size_t index, Deadline deadline);
  // Gathers bucket `index`: afterwards this rank has the values of every holder. Does nothing for
  // one holder, or when every holder stores everything.
  [[nodiscard]] Status gather(std::size_t index, Deadline deadline);

  // Bytes this rank sends in a ring (plan.h).
  [[nodiscard]] double reduce_bytes(std::size_t index) const;
  [[nodiscard]] double gather_bytes(std::size_t index) const;

  // NaN and infinities in this rank's gradients of a bucket's parameters.
  [[nodiscard]] std::int64_t count_nonfinite(std::size_t index) const;

  [[nodiscard]] const BufferPlan& plan() const { return plan_; }

  [[nodiscard]] comm::Communicator& holders() const { return *holders_; }

  [[nodiscard]] bool is_narrow() const { return plan_.key.dtype != DType::kFloat32; }

  [[nodiscard]] std::span<float> values() const { return values_; }  // fp32 buffers

  [[nodiscard]] std::span<std::uint16_t> values16() const { return values16_; }  // the others

  [[nodiscard]] std::span<float> gradients() const { return gradients_; }

 private:
  // Position of a parameter in the buffer.
  struct Extent {
    std::size_t begin;
    std::size_t size;
  };

  ParamBuffer(BufferPlan plan, const Routing& routing, const BufferCommunicators& communicators);

  [[nodiscard]] double ring_bytes(std::size_t elements, std::size_t width) const;

  BufferPlan plan_;
  std::vector<std::vector<Extent>> extents_;  // [buckets]
  comm::Communicator* holders_;
  comm::Communicator* buckets_;
  std::span<float> values_;
  std::span<std::uint16_t> values16_;
  std::span<float> gradients_;
};

}  // namespace muster::optimizer
