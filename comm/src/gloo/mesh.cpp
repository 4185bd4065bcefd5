#include "comm/src/gloo/mesh.h"

#include "comm/src/gloo/sockets.h"

#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

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
          std::unique_lock lock(mutex_);
          const auto at = std::chrono::steady_clock::now() + gloo_timeout(deadline);
          if (!changed_.wait_until(lock, at, [this] { return done_; })) {
            action();
          }
        }) {}

  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
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
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_{false};
  std::thread thread_;
};

// What a rank leaves in the store: who it is and where each peer can reach it.
constexpr std::size_t kNameBytes = 96;

using Address = std::vector<char>;

std::string own_name(int rank) {
  std::array<char, 64> host{};
  ::gethostname(host.data(), host.size() - 1);
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(::getpid()) + " on " +
         host.data() + ")";
}

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
        store_(options.prefix, files_) {}

  Expected<GlooMesh> build() {
    transport_ = device_->createContext(options_.rank, options_.size);
    // Gloo waits five times this long for a connection.
    transport_->setTimeout(std::max(milliseconds{1}, gloo_timeout(deadline_) / 5));
    publish();
    MUSTER_RETURN_IF_ERROR(meet());
    connect();
    GlooMesh mesh;
    mesh.context =
        std::make_shared<MeshContext>(options_.rank, options_.size, std::move(device_), transport_);
    for (int r = 0; r < options_.size; ++r) {
      const auto& record = records_[static_cast<std::size_t>(r)];
      mesh.names.emplace_back(record.data());
      if (r != options_.rank) {
        mesh.links.push_back({mesh.names.back(), socket_to(r)});
        if (!mesh.links.back().socket.valid()) {
          return unavailable("gloo has already lost the connection to " + mesh.names.back());
        }
      }
    }
    mesh.store_files = files_.getAllKeyFilePaths();
    return mesh;
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

  // Everybody has come before anybody connects, so a rank that is missing can be named.
  Status meet() {
    for (int r = 0; r < options_.size; ++r) {
      try {
        store_.wait({key(r)}, gloo_timeout(deadline_));
      } catch (const std::exception& error) {
        return deadline_exceeded(
            "rank " + std::to_string(r) + " did not come to the store " + options_.store_path +
            " in time (" + error.what() + ")");
      }
      records_.push_back(store_.get(key(r)));
      if (records_.back().size() != own_record_.size()) {
        return invalid_argument(
            "rank " + std::to_string(r) + " was started with another world size than " +
            std::to_string(options_.size));
      }
    }
    return {};
  }

  // The listening side of a Gloo connection waits without a limit; shutting its socket down ends
  // that.
  void connect() {
    const Watchdog watchdog{deadline_, [this] {
                              for (int r = 0; r < options_.size; ++r) {
                                if (r != options_.rank) {
                                  ::shutdown(socket_to(r).get(), SHUT_RDWR);
                                }
                              }
                            }};
    for (int r = 0; r < options_.size; ++r) {
      if (r != options_.rank) {
        transport_->getPair(r)->connect(address_of_peer(r));
      }
    }
  }

  // Where rank r listens for this rank.
  [[nodiscard]] Address address_of_peer(int r) const {
    return decode_address(records_[static_cast<std::size_t>(r)], options_.rank, options_.size);
  }

  [[nodiscard]] FileDescriptor socket_to(int r) const {
    return duplicate_gloo_socket(addresses_[static_cast<std::size_t>(r)], address_of_peer(r));
  }

  [[nodiscard]] static std::string key(int rank) { return "rank-" + std::to_string(rank); }

  std::shared_ptr<gloo::transport::Device> device_;
  GlooMeshOptions options_;
  Deadline deadline_;
  gloo::rendezvous::FileStore files_;
  gloo::rendezvous::PrefixStore store_;
  std::shared_ptr<gloo::transport::Context> transport_;
  std::vector<Address> addresses_;  // Where this rank listens for each peer.
  std::vector<char> own_record_;
  std::vector<std::vector<char>> records_;  // What each rank has left in the store.
};

}  // namespace

milliseconds gloo_timeout(Deadline deadline) {
  const auto left =
      std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::hours{24});
  return std::max(milliseconds{1}, std::chrono::ceil<milliseconds>(left));
}

Expected<GlooMesh> connect_gloo_mesh(
    std::shared_ptr<gloo::transport::Device> device,
    const GlooMeshOptions& options,
    Deadline deadline) {
  try {
    return MeshBuilder{std::move(device), options, deadline}.build();
  } catch (const std::exception& error) {
    if (deadline.expired()) {
      return deadline_exceeded(
          "a rank came to the store but did not connect in time (" + std::string{error.what()} +
          ")");
    }
    return unavailable("connecting over gloo: " + std::string{error.what()});
  }
}

}  // namespace muster::comm
