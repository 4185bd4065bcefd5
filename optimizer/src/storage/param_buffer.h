// The memory of one region and its collectives.
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
struct RegionCommunicators {
  comm::Communicator* memory;   // owns the buffers; creation is collective over it
  comm::Communicator* holders;  // for what happens inside the update
  comm::Communicator* buckets;  // reduces and gathers; the only one a second thread may use
};

class Region {
 public:
  [[nodiscard]] static Expected<Region> create(
      RegionPlan plan,
      const Routing& routing,
      const RegionCommunicators& communicators,
      const OptimizerOptions& options,
      Deadline deadline);

  // Of segment `index`: afterwards the gradients of what this rank stores are sums over the
  // holders, the others unspecified. Nothing to do for one holder.
  [[nodiscard]] Status reduce(std::size_t index, Deadline deadline);
  // Afterwards this rank sees what every holder stores. Nothing to do for one holder, or when every
  // holder stores everything.
  [[nodiscard]] Status gather(std::size_t index, Deadline deadline);

  // Bytes this rank hands on in a ring, plan.h.
  [[nodiscard]] double reduce_bytes(std::size_t index) const;
  [[nodiscard]] double gather_bytes(std::size_t index) const;

  // NaN and infinities in this rank's gradients of a segment's parameters.
  [[nodiscard]] std::int64_t count_nonfinite(std::size_t index) const;

  [[nodiscard]] const RegionPlan& plan() const { return plan_; }

  [[nodiscard]] comm::Communicator& holders() const { return *holders_; }

  [[nodiscard]] bool is_narrow() const { return plan_.key.dtype != FloatType::kFloat32; }

  [[nodiscard]] std::span<float> values() const { return values_; }  // fp32 regions

  [[nodiscard]] std::span<std::uint16_t> values16() const { return values16_; }  // the others

  [[nodiscard]] std::span<float> gradients() const { return gradients_; }

 private:
  // Where a parameter lies in the region.
  struct Extent {
    std::size_t begin;
    std::size_t size;
  };

  Region(RegionPlan plan, const Routing& routing, const RegionCommunicators& communicators);

  [[nodiscard]] double ring_bytes(std::size_t elements, std::size_t width) const;

  RegionPlan plan_;
  std::vector<std::vector<Extent>> extents_;  // [segments]
  comm::Communicator* holders_;
  comm::Communicator* buckets_;
  std::span<float> values_;
  std::span<std::uint16_t> values16_;
  std::span<float> gradients_;
};

}  // namespace muster::optimizer
