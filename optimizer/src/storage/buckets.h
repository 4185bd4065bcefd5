// The buckets of all regions in one order that every rank keeps, moved on the training thread or,
// while forward and backward run, on a thread of their own.
//
// Thread-safety: one thread calls. With a mover, gradients of a bucket belong to it from the last
// gradient_ready to the end of reduce, values from begin_gather to wait_gathered.
#pragma once

#include "optimizer/src/storage/comm_thread.h"
#include "optimizer/src/storage/param_buffer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace muster::optimizer {

class RegionBuckets {
 public:
  // `regions` must outlive it and not move. `mover` null: everything happens in reduce and gather.
  RegionBuckets(std::vector<Region*> regions, std::size_t parameters, std::unique_ptr<Mover> mover);

  void gradient_ready(std::size_t parameter);
  [[nodiscard]] Status reduce(Deadline deadline);
  void begin_gather(Deadline deadline);
  [[nodiscard]] Status wait_gathered(std::size_t parameter, Deadline deadline);
  [[nodiscard]] Status gather(Deadline deadline);

  // NaN and infinities in this rank's own gradients, before the last reduction; 0 where there is
  // nobody to reduce with.
  [[nodiscard]] std::int64_t nonfinite_before_reduction() const;

  // One reduction or gathering of everything, as this rank hands it on.
  [[nodiscard]] double reduce_bytes() const;
  [[nodiscard]] double gather_bytes() const;
  [[nodiscard]] std::int64_t reduce_count() const;
  [[nodiscard]] std::int64_t gather_count() const;

 private:
  struct Bucket {
    Region* region{nullptr};
    std::size_t segment{0};
    std::size_t last_parameter{0};
    std::size_t missing{0};          // parameters whose gradients are not complete
    std::int64_t nonfinite{0};       // of the last reduction
    std::uint64_t gather_ticket{0};  // of the gathering under way
  };

  [[nodiscard]] Status reduce_one(Bucket& bucket, Deadline deadline);
  void launch_complete();
  void reset_step();

  std::vector<Bucket> buckets_;         // in launch order
  std::vector<std::size_t> bucket_of_;  // [parameters]
  std::vector<bool> ready_;             // [parameters]
  std::size_t launched_{0};             // buckets of this step handed to the mover
  std::uint64_t last_reduce_ticket_{0};
  bool is_gathering_{false};
  std::unique_ptr<Mover> mover_;  // last: its thread uses all of the above
};

}  // namespace muster::optimizer
