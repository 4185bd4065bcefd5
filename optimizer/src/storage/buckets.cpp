// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/storage/buckets.h"

#include <algorithm>
#include <utility>

namespace muster::optimizer {

BucketScheduler::BucketScheduler(
    std::vector<ParamBuffer*> buffers,
    std::size_t parameters,
    std::unique_ptr<CommThread> comm_thread)
    : bucket_of_(parameters, 0), ready_(parameters, false), comm_thread_(std::move(comm_thread)) {
  for (ParamBuffer* buffer : buffers) {
    const auto& buckets = buffer->plan().buckets;
    for (std::size_t index = 0; index < buckets.size(); ++index) {
      const auto& placed = buckets[index].parameters;
      BucketState bucket;
      bucket.buffer = buffer;
      bucket.index = index;
      bucket.last_parameter = placed.empty() ? 0 : *std::max_element(placed.begin(), placed.end());
      buckets_.push_back(bucket);
    }
  }
  // Backward finishes the last parameters first, whatever buffer they are in.
  std::stable_sort(
      buckets_.begin(), buckets_.end(), [](const BucketState& a, const BucketState& b) {
        return a.last_parameter > b.last_parameter;
      });
  for (std::size_t at = 0; at < buckets_.size(); ++at) {
    for (const std::size_t parameter :
         buckets_[at].buffer->plan().buckets[buckets_[at].index].parameters) {
      bucket_of_[parameter] = at;
    }
  }
  reset_step();
}

void BucketScheduler::reset_step() {
  launched_ = 0;
  std::fill(ready_.begin(), ready_.end(), false);
  for (BucketState& bucket : buckets_) {
    bucket.missing = bucket.buffer->plan().buckets[bucket.index].parameters.size();
  }
}

Status BucketScheduler::reduce_one(BucketState& bucket, Deadline deadline) {
  // A sum can hide its terms (Inf - Inf is one NaN, a kernel may drop NaN), so count first.
  bucket.nonfinite =
      bucket.buffer->holders().size() > 1 ? bucket.buffer->count_nonfinite(bucket.index) : 0;
  return bucket.buffer->reduce(bucket.index, deadline).context("reducing gradients");
}

void BucketScheduler::launch_complete() {
  while (launched_ < buckets_.size() && buckets_[launched_].missing == 0) {
    BucketState& bucket = buckets_[launched_++];
    // Only reduce() knows the deadline; it aborts collectives that are late.
    last_reduce_ticket_ =
        comm_thread_->submit(false, [this, &bucket] { return reduce_one(bucket, Deadline{}); });
  }
}

void BucketScheduler::gradient_ready(std::size_t parameter) {
  if (comm_thread_ == nullptr || parameter >= ready_.size() || ready_[parameter]) {
    return;
  }
  ready_[parameter] = true;
  --buckets_[bucket_of_[parameter]].missing;
  launch_complete();
}

Status BucketScheduler::reduce(Deadline deadline) {
  if (comm_thread_ == nullptr) {
    for (BucketState& bucket : buckets_) {
      MUSTER_RETURN_IF_ERROR(reduce_one(bucket, deadline));
    }
    return {};
  }
  for (BucketState& bucket : buckets_) {
    bucket.missing = 0;
  }
  launch_complete();
  Status moved = comm_thread_->wait(last_reduce_ticket_, deadline);
  reset_step();
  return moved.context("waiting for gradients");
}

void BucketScheduler::begin_gather(Deadline deadline) {
  if (comm_thread_ == nullptr || is_gathering_) {
    return;
  }
  is_gathering_ = true;
  // Forward reads the first parameters first.
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    bucket->gather_ticket =
        comm_thread_->submit(true, [buffer = bucket->buffer, index = bucket->index, deadline] {
          return buffer->gather(index, deadline).context("gathering parameters");
        });
  }
}

Status BucketScheduler::wait_gathered(std::size_t parameter, Deadline deadline) {
  if (!is_gathering_ || parameter >= bucket_of_.size()) {
    return {};
  }
  return comm_thread_->wait(buckets_[bucket_of_[parameter]].gather_ticket, deadline)
      .context("waiting for parameters");
}

Status BucketScheduler::gather(Deadline deadline) {
  if (comm_thread_ == nullptr) {
    for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
      MUSTER_RETURN_IF_ERROR(
          bucket->buffer->gather(bucket->index, deadline).context("gathering parameters"));
    }
    return {};
  }
  begin_gather(deadline);
  is_gathering_ = false;
  return buckets_.empty() ? Status{}
                          : comm_thread_->wait(buckets_.front().gather_ticket, deadline)
                                .context("waiting for parameters");
}

std::int64_t BucketScheduler::nonfinite_before_reduction() const {
  std::int64_t count = 0;
  for (const BucketState& bucket : buckets_) {
    count += bucket.nonfinite;
  }
  return count;
}

double BucketScheduler::reduce_bytes() const {
  double bytes = 0;
  for (const BucketState& bucket : buckets_) {
    bytes += bucket.buffer->reduce_bytes(bucket.index);
  }
  return bytes;
}

double BucketScheduler::gather_bytes() const {
  double bytes = 0;
  for (const BucketState& bucket : buckets_) {
    bytes += bucket.buffer->gather_bytes(bucket.index);
  }
  return bytes;
}

std::int64_t BucketScheduler::reduce_count() const {
  return std::count_if(buckets_.begin(), buckets_.end(), [](const BucketState& bucket) {
    return bucket.buffer->holders().size() > 1;
  });
}

std::int64_t BucketScheduler::gather_count() const {
  return std::count_if(buckets_.begin(), buckets_.end(), [](const BucketState& bucket) {
    return bucket.buffer->holders().size() > 1 &&
           !bucket.buffer->plan().buckets[bucket.index].counts.empty();
  });
}

}  // namespace muster::optimizer
