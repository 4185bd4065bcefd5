// SPDX-License-Identifier: Apache-2.0
#include "comm/src/group/shm_rendezvous.h"

#include <muster/common/hash.h>

#include <climits>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <vector>

namespace muster::comm {

namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kMagic = 0x324d485352545355;  // Changes with the layout of SessionBlock.

struct Hello {
  std::uint64_t magic;
  std::int32_t rank;
  std::int32_t size;
  std::uint64_t bytes;
};

enum class Answer : std::int32_t { kWelcome, kOtherVersion, kOtherSize, kRankTaken };

struct Address {
  sockaddr_un name{};
  socklen_t length{0};
};

// Abstract names are at most 107 bytes and belong to the machine, so: user and a hash.
Address address_of(const std::string& session) {
  const std::string text = concat("muster/", ::geteuid(), "/", to_hex(hash128(session)));
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, text.data(), text.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

const sockaddr* generic(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.name);
}

// True if `fd` becomes readable before the deadline.
bool wait_readable(int fd, Deadline deadline) {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(
        std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::hours{1}));
    pollfd entry{fd, POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(left.count()));
    if (ready > 0) {
      return true;
    }
    if (deadline.expired() || (ready < 0 && errno != EINTR)) {
      return false;
    }
  }
}

// Abstract names have no permissions: only processes of this user may take part.
bool is_own_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

Status send_answer(int fd, Answer answer, int memory_fd) {
  iovec part{&answer, sizeof answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (answer == Answer::kWelcome) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &memory_fd, sizeof(int));
  }
  return ::sendmsg(fd, &message, MSG_NOSIGNAL) == sizeof answer ? Status{}
                                                                : io_error("sendmsg", errno);
}

struct Received {
  Answer answer{Answer::kWelcome};
  FileDescriptor memory;
};

Expected<Received> receive_answer(int fd) {
  Received received;
  iovec part{&received.answer, sizeof received.answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != sizeof received.answer) {
    return unavailable("rank 0 closed the connection while it handed out the shared memory");
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int memory_fd = -1;
    std::memcpy(&memory_fd, CMSG_DATA(header), sizeof(int));
    received.memory = FileDescriptor{memory_fd};
  }
  return received;
}

// --- rank 0 ---

Expected<FileDescriptor> listen_at(const ConnectOptions& options) {
  FileDescriptor listener{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (!listener.valid()) {
    return io_error("socket", errno);
  }
  const Address address = address_of(options.session);
  if (::bind(listener.get(), generic(address), address.length) != 0) {
    if (errno == EADDRINUSE) {
      return already_exists(
          "another process is rank 0 of session \"" + options.session +
          "\"; end it, or start with a new generation");
    }
    return io_error("bind", errno);
  }
  if (::listen(listener.get(), SOMAXCONN) != 0) {
    return io_error("listen", errno);
  }
  return listener;
}

std::string list_absent(const std::vector<bool>& came) {
  std::string text;
  for (std::size_t r = 0; r < came.size(); ++r) {
    if (!came[r]) {
      text += concat(text.empty() ? "rank " : ", rank ", r);
    }
  }
  return text;
}

Answer judge(
    const Hello& hello,
    const ConnectOptions& options,
    std::uint64_t bytes,
    const std::vector<bool>& came) {
  if (hello.magic != kMagic) {
    return Answer::kOtherVersion;
  }
  if (hello.size != options.size || hello.bytes != bytes || hello.rank < 0 ||
      hello.rank >= options.size) {
    return Answer::kOtherSize;
  }
  return came[static_cast<std::size_t>(hello.rank)] ? Answer::kRankTaken : Answer::kWelcome;
}

Status serve_one(
    int listener,
    const ConnectOptions& options,
    std::uint64_t bytes,
    int memory,
    std::vector<bool>& came,
    Deadline deadline) {
  const FileDescriptor peer{::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)};
  Hello hello{};
  if (!peer.valid() || !is_own_user(peer.get()) || !wait_readable(peer.get(), deadline) ||
      ::recv(peer.get(), &hello, sizeof hello, 0) != sizeof hello) {
    return {};  // A stranger, or a rank that died here: its absence is reported by the deadline.
  }
  const Answer answer = judge(hello, options, bytes, came);
  const Status sent = send_answer(peer.get(), answer, memory);
  if (answer != Answer::kWelcome) {
    return invalid_argument(
        "a process that calls itself rank ",
        hello.rank,
        " of ",
        hello.size,
        " came to session \"",
        options.session,
        "\" of ",
        options.size,
        " ranks; start all ranks with the same program, world size and heap size, each rank once");
  }
  if (sent.ok()) {
    came[static_cast<std::size_t>(hello.rank)] = true;
  }
  return {};
}

// --- the other ranks ---

Expected<FileDescriptor> connect_to_rank0(const ConnectOptions& options, Deadline deadline) {
  const Address address = address_of(options.session);
  while (true) {
    FileDescriptor socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    if (!socket.valid()) {
      return io_error("socket", errno);
    }
    if (::connect(socket.get(), generic(address), address.length) == 0) {
      return socket;
    }
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
      return io_error("connect", errno);
    }
    if (deadline.expired()) {
      return deadline_exceeded(
          "rank 0 did not open session \"" + options.session + "\" on this host in time");
    }
    const timespec pause{0, 5'000'000};  // There is nothing to wait on before rank 0 is there.
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace

Expected<FileDescriptor> create_shared_memory(std::uint64_t bytes) {
  FileDescriptor memory{::memfd_create("muster", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!memory.valid()) {
    return io_error("memfd_create", errno);
  }
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
    return io_error(concat("shared memory of ", bytes, " bytes"), errno);
  }
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return io_error("sealing the shared memory", errno);
  }
  return memory;
}

Status hand_out_memory(
    const ConnectOptions& options,
    const FileDescriptor& memory,
    std::uint64_t bytes,
    Deadline deadline) {
  if (options.size == 1) {
    return {};
  }
  MUSTER_ASSIGN_OR_RETURN(const FileDescriptor listener, listen_at(options));
  std::vector<bool> came(static_cast<std::size_t>(options.size));
  came[0] = true;
  while (std::find(came.begin(), came.end(), false) != came.end()) {
    if (!wait_readable(listener.get(), deadline)) {
      return deadline_exceeded(
          list_absent(came) + " did not come to session \"" + options.session + "\" in time");
    }
    MUSTER_RETURN_IF_ERROR(serve_one(listener.get(), options, bytes, memory.get(), came, deadline));
  }
  return {};
}

Expected<FileDescriptor> fetch_shared_memory(
    const ConnectOptions& options, std::uint64_t bytes, Deadline deadline) {
  MUSTER_ASSIGN_OR_RETURN(const FileDescriptor socket, connect_to_rank0(options, deadline));
  if (!is_own_user(socket.get())) {
    return unavailable("session \"" + options.session + "\" belongs to a process of another user");
  }
  const Hello hello{kMagic, options.rank, options.size, bytes};
  if (::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
    return unavailable("rank 0 closed the connection before it handed out the shared memory");
  }
  if (!wait_readable(socket.get(), deadline)) {
    return deadline_exceeded("rank 0 did not hand out the shared memory in time");
  }
  MUSTER_ASSIGN_OR_RETURN(Received received, receive_answer(socket.get()));
  switch (received.answer) {
    case Answer::kWelcome:
      if (received.memory.valid()) {
        return std::move(received.memory);
      }
      return resource_exhausted("no file descriptor left for the shared memory");
    case Answer::kOtherVersion:
      return version_mismatch("rank 0 runs another version of muster");
    case Answer::kOtherSize:
      return invalid_argument(
          "rank 0 was started with another world size or heap size than rank ",
          options.rank,
          " of ",
          options.size);
    case Answer::kRankTaken:
      return invalid_argument(
          "there is already a rank ", options.rank, " in session \"", options.session, "\"");
  }
  return internal_error("rank 0 gave an unknown answer");
}

}  // namespace muster::comm
