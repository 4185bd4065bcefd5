// SPDX-License-Identifier: Apache-2.0
// A blocking connection to a collector, every call with a deadline.
//
// Not thread-safe; belongs to one thread.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/expected.h>
#include <muster/common/file.h>
#include <muster/wire/codec.h>
#include <muster/wire/messages.h>

#include <string>

namespace muster::launcher {

class WireClient {
 public:
  // Connects to "HOST:PORT", sends `hello` and receives the welcome. kInvalidArgument for an
  // invalid address, kUnavailable if the connection is refused, kFailedPrecondition with the
  // collector's reason if it refuses the peer.
  [[nodiscard]] static Expected<WireClient> connect(
      const std::string& address, const wire::Hello& hello, Deadline deadline);

  [[nodiscard]] Status send(const wire::Message& message, Deadline deadline);

  // Returns the next message. kDeadlineExceeded if none arrived, kUnavailable if the connection was
  // closed.
  [[nodiscard]] Expected<wire::Message> receive(Deadline deadline);

  [[nodiscard]] const wire::Welcome& welcome() const { return welcome_; }

 private:
  explicit WireClient(FileDescriptor socket) : socket_(std::move(socket)) {}

  FileDescriptor socket_;
  wire::FrameReader reader_;
  wire::Welcome welcome_;
};

}  // namespace muster::launcher
