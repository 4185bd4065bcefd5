// SPDX-License-Identifier: Apache-2.0
#include <muster/common/aligned_buffer.h>
#include <muster/common/check.h>
#include <muster/common/text.h>

#include <sys/mman.h>

namespace muster {

float* AlignedBuffer::reserve(std::int64_t count) {
  if (count <= size_ && memory_ != nullptr) {
    return memory_.get();
  }
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kLargePage = std::size_t{2} << 20;
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  const std::size_t alignment = bytes >= kLargePage ? kLargePage : kLine;
  const std::size_t rounded = (bytes / alignment + 1) * alignment;
  memory_.reset();  // before the new one is asked for: both at once may be too much
  size_ = 0;
  memory_.reset(static_cast<float*>(std::aligned_alloc(alignment, rounded)));
  MUSTER_CHECK(memory_ != nullptr, concat("no memory for a buffer of ", rounded, " bytes"));
  size_ = count;
  if (alignment == kLargePage) {
    // Panels are read with large strides; advice that is not taken costs a few percent, no more.
    static_cast<void>(madvise(memory_.get(), rounded, MADV_HUGEPAGE));
  }
  return memory_.get();
}

}  // namespace muster
