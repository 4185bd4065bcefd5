// SPDX-License-Identifier: Apache-2.0
#include "comm/src/heap/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

namespace muster::comm {

namespace {

// Several groups of a session may grow its file at the same time; no rank can shrink it.
Status grow(int file, std::uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    return resource_exhausted(  // The system would send a signal.
        "a memory file of ",
        bytes,
        " bytes is over the limit of ",
        limit.rlim_cur,
        " bytes for files of this process; raise it (ulimit -f)");
  }
  while (true) {
    struct stat state {};

    if (::fstat(file, &state) != 0) {
      return io_error("fstat of the memory file", errno);
    }
    if (static_cast<std::uint64_t>(state.st_size) >= bytes) {
      return {};
    }
    // EPERM: a peer has made it longer than that meanwhile.
    if (::ftruncate(file, static_cast<off_t>(bytes)) != 0 && errno != EPERM && errno != EINTR) {
      return io_error(concat("memory file of ", bytes, " bytes"), errno);
    }
  }
}

Expected<HeapFile> create_file(std::uint64_t bytes) {
  auto file = std::make_shared<const FileDescriptor>(::memfd_create("muster-heap", MFD_CLOEXEC));
  if (!file->valid()) {
    return io_error("memfd_create", errno);
  }
  MUSTER_RETURN_IF_ERROR(grow(file->get(), bytes));
  return HeapFile{std::move(file), 0};
}

}  // namespace

Expected<HeapFile> claim_heap_file(Session& session, const HeapShape& shape) {
  const std::uint64_t bytes = shape.file_bytes();
  if (session.ranks_are_threads()) {
    return create_file(bytes);
  }
  const std::uint64_t begin = session.file_bytes() + session.block().claimed_bytes.fetch_add(bytes);
  if (begin > std::numeric_limits<off_t>::max() - bytes) {
    return resource_exhausted("the memory file of this session is full; connect again");
  }
  MUSTER_RETURN_IF_ERROR(grow(session.file()->get(), begin + bytes));
  return HeapFile{session.file(), begin};
}

HeapPages::HeapPages(HeapFile file, const HeapShape& shape, Mapping control, Mapping chunks)
    : file_(std::move(file)),
      shape_(shape),
      control_(std::move(control)),
      chunks_(std::move(chunks)) {}

Expected<std::shared_ptr<HeapPages>> HeapPages::map(HeapFile file, const HeapShape& shape) {
  MUSTER_ASSIGN_OR_RETURN(Mapping control, reserve_address_space(kHeapControlBytes));
  MUSTER_RETURN_IF_ERROR(
      map_file_at(control.begin(), kHeapControlBytes, file.file->get(), file.begin));
  MUSTER_ASSIGN_OR_RETURN(
      Mapping chunks, reserve_address_space(shape.chunk_bytes() + 2 * kPageBytes));
  MUSTER_RETURN_IF_ERROR(map_file_at(
      chunks.begin() + kPageBytes,
      shape.chunk_bytes(),
      file.file->get(),
      file.begin + kHeapControlBytes));
  return std::shared_ptr<HeapPages>{
      new HeapPages(std::move(file), shape, std::move(control), std::move(chunks))};
}

Expected<Mapping> HeapPages::map_view(std::span<const SymmetricHeap::Piece> pieces) const {
  std::size_t bytes = 0;
  for (const SymmetricHeap::Piece& piece : pieces) {
    bytes += piece.bytes;
  }
  MUSTER_ASSIGN_OR_RETURN(Mapping view, reserve_address_space(bytes));
  std::byte* at = view.begin();
  for (const SymmetricHeap::Piece& piece : pieces) {
    const std::uint64_t chunk =
        file_.begin + kHeapControlBytes + static_cast<std::uint64_t>(piece.peer) * shape_.stride;
    MUSTER_RETURN_IF_ERROR(map_file_at(at, piece.bytes, file_.file->get(), chunk + piece.offset));
    at += piece.bytes;
  }
  return view;
}

void HeapPages::give_back() const {
  // A failure costs memory until the session ends, no more.
  [[maybe_unused]] const int result = ::fallocate(
      file_.file->get(),
      FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
      static_cast<off_t>(file_.begin),
      static_cast<off_t>(shape_.file_bytes()));
}

}  // namespace muster::comm
