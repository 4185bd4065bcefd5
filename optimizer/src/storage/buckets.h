// SPDX-License-Identifier: Apache-2.0
// Launches the collectives of the buckets of all buffers in one order, the same on every rank: on
// the training thread, or on a communication thread while forward and backward run.
//
// Thread-safety: called by one thread. The communication thread, if any, owns the gradients of a
// bucket from the last gradient_ready to the end of reduce, and its values from begin_gather to
// wait_gathered.
#pragma once

#include "optimizer/src/storage/comm_thread.h"
#include "optimizer/src/storage/param_buffer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace muster::optimizer {

class BucketScheduler {
 public:
  // `buffers` must outlive it and not move. If `comm_thread` is null, reduce and gather run the
  // collectives.
  BucketScheduler(
      std::vector<ParamBuffer*> buffers,
      std::size_t parameters,
      std::unique_ptr<CommThread> comm_thread);

  void gradient_ready(std::size_t parameter);
  [[nodiscard]] Status reduce(Deadline deadline);
  void begin_gather(Deadline deadline);
  [[nodiscard]] Status wait_gathered(std::size_t parameter, Deadline deadline);
  [[nodiscard]] Status gather(Deadline deadline);

  // Number of NaN and infinities in this rank's own gradients before the last reduction. Zero
  // without other holders.
  [[nodiscard]] std::int64_t nonfinite_before_reduction() const;

  // Bytes this rank sends, and collectives, of one reduction or gathering of all buckets.
  [[nodiscard]] double reduce_bytes() const;
  [[nodiscard]] double gather_bytes() const;
  [[nodiscard]] std::int64_t reduce_count() const;
  [[nodiscard]] std::int64_t gather_count() const;

 private:
  struct BucketState {
    ParamBuffer* buffer{nullptr};
    std::size_t index{0};
    std::size_t last_parameter{0};
    std::size_t missing{0};          // parameters whose gradients are not complete
    std::int64_t nonfinite{0};       // of the last reduction
    std::uint64_t gather_ticket{0};  // of the gathering under way
  };

  [[nodiscard]] Status reduce_one(BucketState& bucket, Deadline deadline);
  void launch_complete();
  void reset_step();

  std::vector<BucketState> buckets_;    // in launch order
  std::vector<std::size_t> bucket_of_;  // [parameters]
  std::vector<bool> ready_;             // [parameters]
  std::size_t launched_{0};             // buckets of this step handed to comm_thread_
  std::uint64_t last_reduce_ticket_{0};
  bool is_gathering_{false};
  std::unique_ptr<CommThread> comm_thread_;  // last: its thread uses all of the above
};

}  // namespace muster::optimizer
