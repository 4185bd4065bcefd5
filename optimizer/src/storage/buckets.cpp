#include "optimizer/src/storage/buckets.h"

#include <algorithm>
#include <utility>

namespace muster::optimizer {

RegionBuckets::RegionBuckets(
    std::vector<Region*> regions, std::size_t parameters, std::unique_ptr<Mover> mover)
    : bucket_of_(parameters, 0), ready_(parameters, false), mover_(std::move(mover)) {
  for (Region* region : regions) {
    const auto& segments = region->plan().segments;
    for (std::size_t segment = 0; segment < segments.size(); ++segment) {
      const auto& placed = segments[segment].parameters;
      Bucket bucket;
      bucket.region = region;
      bucket.segment = segment;
      bucket.last_parameter = placed.empty() ? 0 : *std::max_element(placed.begin(), placed.end());
      buckets_.push_back(bucket);
    }
  }
  // Backward finishes the last parameters first, whatever region they are in.
  std::stable_sort(buckets_.begin(), buckets_.end(), [](const Bucket& a, const Bucket& b) {
    return a.last_parameter > b.last_parameter;
  });
  for (std::size_t at = 0; at < buckets_.size(); ++at) {
    for (const std::size_t parameter :
         buckets_[at].region->plan().segments[buckets_[at].segment].parameters) {
      bucket_of_[parameter] = at;
    }
  }
  reset_step();
}

void RegionBuckets::reset_step() {
  launched_ = 0;
  std::fill(ready_.begin(), ready_.end(), false);
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.region->plan().segments[bucket.segment].parameters.size();
  }
}

Status RegionBuckets::reduce_one(Bucket& bucket, Deadline deadline) {
  // A sum can hide what went in (Inf - Inf is one NaN, a kernel may drop NaN): look first.
  bucket.nonfinite =
      bucket.region->holders().size() > 1 ? bucket.region->count_nonfinite(bucket.segment) : 0;
  return bucket.region->reduce(bucket.segment, deadline).context("reducing gradients");
}

void RegionBuckets::launch_complete() {
  while (launched_ < buckets_.size() && buckets_[launched_].missing == 0) {
    Bucket& bucket = buckets_[launched_++];
    // When it must be there is known only to reduce(), which aborts what is late.
    last_reduce_ticket_ =
        mover_->submit(false, [this, &bucket] { return reduce_one(bucket, Deadline{}); });
  }
}

void RegionBuckets::gradient_ready(std::size_t parameter) {
  if (mover_ == nullptr || parameter >= ready_.size() || ready_[parameter]) {
    return;
  }
  ready_[parameter] = true;
  --buckets_[bucket_of_[parameter]].missing;
  launch_complete();
}

Status RegionBuckets::reduce(Deadline deadline) {
  if (mover_ == nullptr) {
    for (Bucket& bucket : buckets_) {
      MUSTER_RETURN_IF_ERROR(reduce_one(bucket, deadline));
    }
    return {};
  }
  for (Bucket& bucket : buckets_) {
    bucket.missing = 0;
  }
  launch_complete();
  Status moved = mover_->wait(last_reduce_ticket_, deadline);
  reset_step();
  return moved.context("waiting for gradients");
}

void RegionBuckets::begin_gather(Deadline deadline) {
  if (mover_ == nullptr || is_gathering_) {
    return;
  }
  is_gathering_ = true;
  // Forward reads the first parameters first.
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    bucket->gather_ticket =
        mover_->submit(true, [region = bucket->region, segment = bucket->segment, deadline] {
          return region->gather(segment, deadline).context("gathering parameters");
        });
  }
}

Status RegionBuckets::wait_gathered(std::size_t parameter, Deadline deadline) {
  if (!is_gathering_ || parameter >= bucket_of_.size()) {
    return {};
  }
  return mover_->wait(buckets_[bucket_of_[parameter]].gather_ticket, deadline)
      .context("waiting for parameters");
}

Status RegionBuckets::gather(Deadline deadline) {
  if (mover_ == nullptr) {
    for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
      MUSTER_RETURN_IF_ERROR(
          bucket->region->gather(bucket->segment, deadline).context("gathering parameters"));
    }
    return {};
  }
  begin_gather(deadline);
  is_gathering_ = false;
  return buckets_.empty() ? Status{}
                          : mover_->wait(buckets_.front().gather_ticket, deadline)
                                .context("waiting for parameters");
}

std::int64_t RegionBuckets::nonfinite_before_reduction() const {
  std::int64_t count = 0;
  for (const Bucket& bucket : buckets_) {
    count += bucket.nonfinite;
  }
  return count;
}

double RegionBuckets::reduce_bytes() const {
  double bytes = 0;
  for (const Bucket& bucket : buckets_) {
    bytes += bucket.region->reduce_bytes(bucket.segment);
  }
  return bytes;
}

double RegionBuckets::gather_bytes() const {
  double bytes = 0;
  for (const Bucket& bucket : buckets_) {
    bytes += bucket.region->gather_bytes(bucket.segment);
  }
  return bytes;
}

std::int64_t RegionBuckets::reduce_count() const {
  return std::count_if(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) {
    return bucket.region->holders().size() > 1;
  });
}

std::int64_t RegionBuckets::gather_count() const {
  return std::count_if(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) {
    return bucket.region->holders().size() > 1 &&
           !bucket.region->plan().segments[bucket.segment].counts.empty();
  });
}

}  // namespace muster::optimizer
