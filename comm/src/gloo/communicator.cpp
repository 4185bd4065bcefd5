// SPDX-License-Identifier: Apache-2.0
#include "comm/src/gloo/communicator.h"

#include <muster/comm/backends.h>
#include <muster/common/text.h>

#include <gloo/transport/tcp/device.h>

#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <exception>
#include <new>

namespace muster::comm {

namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

void GlooCommunicator::AlignedDelete::operator()(std::byte* memory) const {
  ::operator delete(memory, kAlignment);
}

Expected<std::unique_ptr<Communicator>> GlooCommunicator::connect(Parts parts, Deadline deadline) {
  MUSTER_ASSIGN_OR_RETURN(
      GlooMesh mesh, connect_gloo_mesh(parts.device, parts.options, *parts.family, deadline));
  const std::vector<std::string> store_files = mesh.store_files;
  std::unique_ptr<GlooCommunicator> communicator{
      new GlooCommunicator{std::move(parts), std::move(mesh)}};
  MUSTER_RETURN_IF_ERROR(communicator->barrier(deadline));
  for (const std::string& file : store_files) {
    ::unlink(file.c_str());  // All have read it; a left-over file would do no harm.
  }
  return std::unique_ptr<Communicator>{std::move(communicator)};
}

GlooCommunicator::GlooCommunicator(Parts parts, GlooMesh mesh)
    : parts_(std::move(parts)),
      mesh_(std::move(mesh)),
      self_(static_cast<std::size_t>(parts_.options.rank)),
      size_(static_cast<std::size_t>(parts_.options.size)),
      watch_key_(parts_.family->watch(std::move(mesh_.links))),
      frames_(size_),
      is_waited_for_(size_) {}

GlooCommunicator::~GlooCommunicator() {
  parts_.family->release(watch_key_);
}

GlooCommunicator::Frame& GlooCommunicator::begin(CallKind kind) {
  Frame& frame = frames_[self_];
  frame.record = CallRecord{};
  frame.record.index = ++call_count_;
  frame.record.kind = kind;
  round_count_ = 0;
  return frame;
}

void GlooCommunicator::place(Frame& frame, const void* data, std::size_t bytes) {
  frame.record.placement = bytes <= kInlineBytes ? Placement::kInline : Placement::kDirect;
  if (bytes > 0 && bytes <= kInlineBytes) {
    std::memcpy(frame.payload, data, bytes);
  }
}

bool GlooCommunicator::all_inline() const {
  return std::all_of(frames_.begin(), frames_.end(), [](const Frame& frame) {
    return frame.record.placement == Placement::kInline;
  });
}

Status GlooCommunicator::enter(Deadline deadline) {
  std::vector<Piece> outgoing;
  std::vector<Piece> incoming;
  for (std::size_t step = 1; step < size_; ++step) {
    const std::size_t r = (self_ + step) % size_;
    outgoing.push_back({r, reinterpret_cast<std::byte*>(&frames_[self_]), sizeof(Frame)});
    incoming.push_back({r, reinterpret_cast<std::byte*>(&frames_[r]), sizeof(Frame)});
  }
  MUSTER_RETURN_IF_ERROR(transfer(outgoing, incoming, deadline));
  std::vector<const CallRecord*> calls;
  for (const Frame& frame : frames_) {
    calls.push_back(&frame.record);
  }
  return is_agreed(calls) ? Status{} : fail(disagreement(calls, mesh_.names));
}

Status GlooCommunicator::fail(const Status& error) {
  parts_.family->abort(error);
  return parts_.family->failure();
}

Status GlooCommunicator::refuse(std::string_view why) {
  return fail(invalid_argument(std::string{why} + " on " + mesh_.names[self_]));
}

Status GlooCommunicator::barrier(Deadline deadline) {
  begin(CallKind::kBarrier);
  return enter(deadline);
}

Expected<std::span<std::byte>> GlooCommunicator::allocate_bytes(
    std::size_t size, Deadline deadline) {
  Frame& frame = begin(CallKind::kAllocate);
  frame.record.count = size;
  std::unique_ptr<std::byte, AlignedDelete> memory{static_cast<std::byte*>(
      ::operator new(std::max<std::size_t>(size, 1), kAlignment, std::nothrow))};
  frame.record.refused = memory == nullptr ? 1 : 0;
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  for (std::size_t r = 0; r < size_; ++r) {
    if (frames_[r].record.refused != 0) {
      return fail(resource_exhausted(
          mesh_.names[r], " has no memory for ", frames_[r].record.count, " bytes"));
    }
  }
  std::memset(memory.get(), 0, size);
  allocations_.push_back(std::move(memory));
  return std::span{allocations_.back().get(), size};
}

Expected<std::unique_ptr<Communicator>> GlooCommunicator::split(
    int color, int key, Deadline deadline) {
  Frame& frame = begin(CallKind::kSplit);
  frame.record.root = color;
  frame.record.key = key;
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  std::vector<std::size_t> members;
  for (std::size_t r = 0; r < size_; ++r) {
    if (frames_[r].record.root == color) {
      members.push_back(r);
    }
  }
  std::stable_sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
    return frames_[a].record.key < frames_[b].record.key;
  });
  Parts parts = parts_;
  parts.options.rank =
      static_cast<int>(std::find(members.begin(), members.end(), self_) - members.begin());
  parts.options.size = static_cast<int>(members.size());
  parts.options.prefix += concat("/split-", call_count_, "/color-", color);
  auto child = connect(std::move(parts), deadline);
  if (!child) {
    return fail(child.status());
  }
  return child;
}

void GlooCommunicator::abort(std::string_view reason) {
  parts_.family->abort(muster::aborted(std::string{reason}));
}

// --- backends.h ---

bool gloo_is_available() {
  return true;
}

namespace {

std::string interface_names() {
  std::string names;
  struct if_nameindex* const all = ::if_nameindex();
  for (auto* one = all; one != nullptr && one->if_index != 0; ++one) {
    names += concat(names.empty() ? "" : ", ", one->if_name);
  }
  if (all != nullptr) {
    ::if_freenameindex(all);
  }
  return names;
}

// Gloo's CreateDevice reads a null pointer for a name that does not resolve.
Status check_interface(const std::string& name) {
  if (::if_nametoindex(name.c_str()) != 0) {
    return {};
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (error == 0) {
    ::freeaddrinfo(found);
    return {};
  }
  return invalid_argument(
      "MUSTER_GLOO_INTERFACE must be an interface (",
      interface_names(),
      ") or an address of this host, got \"",
      name,
      "\" (",
      ::gai_strerror(error),
      ")");
}

Status check_gloo(const ConnectOptions& options) {
  if (options.size < 1 || options.size > kRankMax) {
    return invalid_argument(
        "world size must be between 1 and ", kRankMax, " with gloo, got ", options.size);
  }
  if (options.rank < 0 || options.rank >= options.size) {
    return invalid_argument(
        "rank must be between 0 and ", options.size - 1, ", got ", options.rank);
  }
  if (::access(options.gloo_store_path.c_str(), R_OK | W_OK | X_OK) != 0) {
    return not_found(
        "gloo store \"" + options.gloo_store_path +
        "\": needs a folder that this rank may write and all hosts share");
  }
  return check_interface(options.gloo_interface);
}

}  // namespace

Expected<std::unique_ptr<Communicator>> connect_gloo(
    const ConnectOptions& options, Deadline deadline) {
  MUSTER_RETURN_IF_ERROR(check_gloo(options));

  // Gloo writes to sockets whose other end may be dead; that must be an error, not our end.
  struct sigaction action {};

  if (::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
  GlooCommunicator::Parts parts;
  try {
    gloo::transport::tcp::attr attributes;
    if (::if_nametoindex(options.gloo_interface.c_str()) != 0) {
      attributes.iface = options.gloo_interface;
    } else {
      attributes.hostname = options.gloo_interface;
    }
    parts.device = gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    return invalid_argument(
        "gloo cannot bind to interface or address \"" + options.gloo_interface +
        "\": " + error.what());
  }
  MUSTER_ASSIGN_OR_RETURN(parts.family, GlooFamily::create());
  parts.options = {options.rank, options.size, options.gloo_store_path, options.session};
  return GlooCommunicator::connect(std::move(parts), deadline);
}

}  // namespace muster::comm
