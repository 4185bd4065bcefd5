// SPDX-License-Identifier: Apache-2.0
#include "comm/src/group/mapping.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace muster::comm {

namespace {

// The error of a refused mapping: ENOMEM stands for two limits.
Status no_address_space(std::size_t bytes, int error) {
  std::string text = concat("mapping ", bytes, " bytes: ", std::strerror(error));
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text += concat(
        "; the address space of this process is limited to ",
        limit.rlim_cur,
        " bytes: raise it (ulimit -v) or ask for less");
  } else if (error == ENOMEM) {
    text += "; ask for less, or raise vm.max_map_count where there are many views";
  }
  return resource_exhausted(std::move(text));
}

}  // namespace

Mapping::~Mapping() {
  if (begin_ != nullptr) {
    ::munmap(begin_, bytes_);
  }
}

Mapping::Mapping(Mapping&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(begin_, other.begin_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Expected<Mapping> reserve_address_space(std::size_t bytes) {
  void* begin =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) {
    return no_address_space(bytes, errno);
  }
  return Mapping{static_cast<std::byte*>(begin), bytes};
}

Status map_file_at(std::byte* at, std::size_t bytes, int file, std::uint64_t offset) {
  const void* begin = ::mmap(
      at,
      bytes,
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
      file,
      static_cast<off_t>(offset));
  return begin == MAP_FAILED ? no_address_space(bytes, errno) : Status{};
}

}  // namespace muster::comm
