// SPDX-License-Identifier: Apache-2.0
#include "comm/src/gloo/mesh.h"

#include "comm/src/gloo/sockets.h"

#include <muster/common/mutex.h>
#include <muster/common/text.h>

#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/unbound_buffer.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>

namespace muster::comm {

namespace {

using std::chrono::milliseconds;

// gloo::Context leaves it to derived classes to set what it works with.
class MeshContext final : public gloo::Context {
 public:
  MeshContext(
      int rank_in,
      int size_in,
      std::shared_ptr<gloo::transport::Device> device,
      std::shared_ptr<gloo::transport::Context> transport)
      : gloo::Context(rank_in, size_in) {
    device_ = std::move(device);
    transportContext_ = std::move(transport);
  }
};

// Runs `action` when the deadline passes before it is destroyed.
class Watchdog {
 public:
  Watchdog(Deadline deadline, std::function<void()> action)
      : thread_([this, deadline, action = std::move(action)] {
          if (!wait_for_end(Clock::system().now() + gloo_timeout(deadline))) {
            action();
          }
        }) {}

  ~Watchdog() {
    {
      const MutexLock lock{mutex_};
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  Watchdog(Watchdog&&) = delete;
  Watchdog& operator=(Watchdog&&) = delete;

 private:
  // False when `at` has passed first.
  [[nodiscard]] bool wait_for_end(MonotonicTime at) {
    const MutexLock lock{mutex_};
    while (!done_) {
      if (!changed_.wait_until(mutex_, at)) {
        return done_;
      }
    }
    return true;
  }

  Mutex mutex_;
  CondVar changed_;
  bool done_ MUSTER_GUARDED_BY(mutex_){false};
  std::thread thread_;
};

// The record that a rank leaves in the store: its name, and the address at which each peer can
// reach it.
constexpr std::size_t kNameBytes = 96;

using Address = std::vector<char>;

std::string own_name(int rank) {
  std::array<char, 64> host{};
  ::gethostname(host.data(), host.size() - 1);
  return concat("rank ", rank, " (pid ", ::getpid(), " on ", host.data(), ")");
}

// The slot in which peers exchange the ends of their connections. Slots of calls start at call 1.
constexpr std::uint64_t kEndsSlot = std::uint64_t{0x40} << 56;

// All addresses of one transport have the same length; a rank has none for itself.
std::vector<char> encode(const std::string& name, const std::vector<Address>& addresses) {
  std::vector<char> bytes(kNameBytes, '\0');
  std::memcpy(bytes.data(), name.data(), std::min(name.size(), kNameBytes - 1));
  const std::size_t length =
      addresses.size() < 2 ? 0 : std::max(addresses[0].size(), addresses[1].size());
  for (Address address : addresses) {
    address.resize(length);
    bytes.insert(bytes.end(), address.begin(), address.end());
  }
  return bytes;
}

Address decode_address(const std::vector<char>& record, int rank, int size) {
  const std::size_t length = (record.size() - kNameBytes) / static_cast<std::size_t>(size);
  const char* begin = record.data() + kNameBytes + static_cast<std::size_t>(rank) * length;
  return Address{begin, begin + length};
}

std::string text_of(const Address& address) {
  return gloo::transport::tcp::Address{address}.str();
}

class MeshBuilder {
 public:
  MeshBuilder(
      std::shared_ptr<gloo::transport::Device> device,
      const GlooMeshOptions& options,
      Deadline deadline)
      : device_(std::move(device)),
        options_(options),
        deadline_(deadline),
        files_(options.store_path),
        store_(options.prefix, files_),
        transport_(device_->createContext(options.rank, options.size)) {}

  Expected<GlooMesh> build() {
    // Gloo waits five times this long for a connection.
    transport_->setTimeout(gloo_timeout(deadline_) / 5 + milliseconds{1});
    publish();
    MUSTER_RETURN_IF_ERROR(meet());
    connect();
    exchange_ends();
    GlooMesh mesh;
    mesh.context =
        std::make_shared<MeshContext>(options_.rank, options_.size, std::move(device_), transport_);
    for (int r = 0; r < options_.size; ++r) {
      const auto& record = records_[static_cast<std::size_t>(r)];
      mesh.names.emplace_back(record.data());
      if (r != options_.rank) {
        MUSTER_ASSIGN_OR_RETURN(FileDescriptor socket, socket_to(r, mesh.names.back()));
        mesh.links.push_back({mesh.names.back(), std::move(socket)});
      }
    }
    mesh.store_files = files_.getAllKeyFilePaths();
    return mesh;
  }

  // Ends all connections and every wait for one. The pairs must live on for as long as the device:
  // a peer that comes late reaches its listener, which then calls the pair.
  [[nodiscard]] std::shared_ptr<void> give_up() {
    for (int r = 0; r < options_.size; ++r) {
      if (r != options_.rank && transport_->getPair(r) != nullptr) {
        transport_->getPair(r)->close();
      }
    }
    return transport_;
  }

 private:
  void publish() {
    addresses_.resize(static_cast<std::size_t>(options_.size));
    for (int r = 0; r < options_.size; ++r) {
      if (r != options_.rank) {
        addresses_[static_cast<std::size_t>(r)] = transport_->createPair(r)->address().bytes();
      }
    }
    own_record_ = encode(own_name(options_.rank), addresses_);
    store_.set(key(options_.rank), own_record_);
  }

  // All ranks are present before any rank connects, so a missing rank can be named.
  Status meet() {
    for (int r = 0; r < options_.size; ++r) {
      try {
        store_.wait({key(r)}, gloo_timeout(deadline_));
      } catch (const std::exception& error) {
        return deadline_exceeded(
            "rank ",
            r,
            " did not come to the store ",
            options_.store_path,
            " in time (",
            error.what(),
            ")");
      }
      records_.push_back(store_.get(key(r)));
      if (records_.back().size() != own_record_.size()) {
        return invalid_argument(
            "rank ", r, " was started with another world size than ", options_.size);
      }
    }
    return {};
  }

  // Either side of a Gloo connection may wait without a limit; closing the pair ends that.
  void connect() {
    const Watchdog watchdog{deadline_, [this] { std::ignore = give_up(); }};
    for (int r = 0; r < options_.size; ++r) {
      if (r != options_.rank) {
        transport_->getPair(r)->connect(
            decode_address(records_[static_cast<std::size_t>(r)], options_.rank, options_.size));
        if (deadline_.expired()) {  // A closed pair counts as connected.
          throw std::runtime_error(concat("rank ", r, " came too late"));
        }
      }
    }
  }

  // A connected pair names only its local end of the connection, so peers exchange them.
  void exchange_ends() {
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers;
    ends_.resize(addresses_.size());
    for (int r = 0; r < options_.size; ++r) {
      if (r == options_.rank) {
        continue;
      }
      auto& [own, peer] = ends_[static_cast<std::size_t>(r)];
      own = transport_->getPair(r)->address().bytes();
      peer.resize(own.size());
      buffers.push_back(transport_->createUnboundBuffer(own.data(), own.size()));
      buffers.back()->send(r, kEndsSlot);
      buffers.push_back(transport_->createUnboundBuffer(peer.data(), peer.size()));
      buffers.back()->recv(r, kEndsSlot);
    }
    for (std::size_t i = 0; i < buffers.size(); i += 2) {
      buffers[i]->waitSend(gloo_timeout(deadline_));
      buffers[i + 1]->waitRecv(gloo_timeout(deadline_));
    }
  }

  [[nodiscard]] Expected<FileDescriptor> socket_to(int r, const std::string& name) const {
    const auto& [own, peer] = ends_[static_cast<std::size_t>(r)];
    FileDescriptor socket = duplicate_connected_socket(
        gloo::transport::tcp::Address{own}.getSockaddr(),
        gloo::transport::tcp::Address{peer}.getSockaddr());
    if (!socket.valid()) {
      return unavailable(
          "gloo has lost the connection to ",
          name,
          ", or this process cannot find it: no socket goes from ",
          text_of(own),
          " to ",
          text_of(peer));
    }
    return socket;
  }

  [[nodiscard]] static std::string key(int rank) { return concat("rank-", rank); }

  std::shared_ptr<gloo::transport::Device> device_;
  GlooMeshOptions options_;
  Deadline deadline_;
  gloo::rendezvous::FileStore files_;
  gloo::rendezvous::PrefixStore store_;
  std::shared_ptr<gloo::transport::Context> transport_;
  std::vector<Address> addresses_;  // This rank listens here for each peer.
  std::vector<char> own_record_;
  std::vector<std::vector<char>> records_;         // The record of each rank in the store.
  std::vector<std::pair<Address, Address>> ends_;  // Ends of each connection: own, peer's.
};

// Gloo's exceptions as a status. Its stores throw in their constructors, too.
Expected<GlooMesh> build(
    std::optional<MeshBuilder>& builder,
    std::shared_ptr<gloo::transport::Device> device,
    const GlooMeshOptions& options,
    Deadline deadline) {
  try {
    builder.emplace(std::move(device), options, deadline);
    return builder->build();
  } catch (const std::exception& error) {
    if (deadline.expired()) {
      return deadline_exceeded(
          "a rank came to the store but did not connect in time (", error.what(), ")");
    }
    return unavailable("connecting over gloo: ", error.what());
  }
}

}  // namespace

milliseconds gloo_timeout(Deadline deadline) {
  const auto left =
      std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::hours{24});
  return std::max(milliseconds{1}, std::chrono::ceil<milliseconds>(left));
}

Expected<GlooMesh> connect_gloo_mesh(
    std::shared_ptr<gloo::transport::Device> device,
    const GlooMeshOptions& options,
    GlooFamily& family,
    Deadline deadline) {
  std::optional<MeshBuilder> builder;
  Expected<GlooMesh> mesh = build(builder, std::move(device), options, deadline);
  if (!mesh && builder) {
    family.keep(builder->give_up());
  }
  return mesh;
}

}  // namespace muster::comm
