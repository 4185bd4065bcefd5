// SPDX-License-Identifier: Apache-2.0
// The pages of a symmetric heap: a control block and one chunk per rank, a range of a memory file.
//
// Where ranks are processes the range is cut from the end of the session's own memory file, whose
// descriptor every rank got when it connected. So there is nothing to hand over per heap, hence
// nothing to wait for and nothing that a crash could leave behind; and a range stays good for the
// ranks that still map it whatever the others do. Where ranks are threads the file belongs to the
// heap.
#pragma once

#include "comm/src/group/mapping.h"
#include "comm/src/group/session.h"
#include "comm/src/heap/control.h"

#include <muster/comm/symmetric_heap.h>
#include <muster/common/file.h>

#include <cstdint>
#include <memory>
#include <span>

namespace muster::comm {

struct HeapShape {
  std::size_t ranks{0};
  std::size_t stride{0};  // Bytes of a chunk.

  [[nodiscard]] std::size_t chunk_bytes() const { return ranks * stride; }

  [[nodiscard]] std::size_t file_bytes() const { return kHeapControlBytes + chunk_bytes(); }
};

// [control][chunk 0][chunk 1]... from `begin` on.
struct HeapFile {
  std::shared_ptr<const FileDescriptor> file;
  std::uint64_t begin{0};
};

// Called by one rank for the whole heap. The range is zeroed and belongs to this heap alone.
[[nodiscard]] Expected<HeapFile> claim_heap_file(Session& session, const HeapShape& shape);

class HeapPages {
 public:
  [[nodiscard]] static Expected<std::shared_ptr<HeapPages>> map(
      HeapFile file, const HeapShape& shape);

  // The first byte of chunk 0. The pages before the first and after the last chunk cannot be
  // touched.
  [[nodiscard]] std::byte* base() const { return chunks_.begin() + kPageBytes; }

  [[nodiscard]] std::size_t stride() const { return shape_.stride; }

  [[nodiscard]] HeapControl& control() const {
    return *reinterpret_cast<HeapControl*>(control_.begin());
  }

  // The pieces back to back once more; they have been checked.
  [[nodiscard]] Expected<Mapping> map_view(std::span<const SymmetricHeap::Piece> pieces) const;

  // Returns the memory to the system while the file lives on. By the last rank that leaves.
  void give_back() const;

 private:
  HeapPages(HeapFile file, const HeapShape& shape, Mapping control, Mapping chunks);

  HeapFile file_;
  HeapShape shape_;
  Mapping control_;
  Mapping chunks_;
};

}  // namespace muster::comm
