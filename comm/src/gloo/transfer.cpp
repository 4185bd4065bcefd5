// SPDX-License-Identifier: Apache-2.0
#include "comm/src/gloo/communicator.h"

#include <gloo/transport/unbound_buffer.h>

#include <exception>
#include <stdexcept>

namespace muster::comm {

namespace {

using UnboundBuffer = gloo::transport::UnboundBuffer;
using Buffers = std::vector<std::unique_ptr<UnboundBuffer>>;

// Apart from the slots of Gloo's own algorithms, whose first byte is small. A call has few rounds.
std::uint64_t slot_of(std::uint64_t call, std::uint64_t round) {
  return (std::uint64_t{0x40} << 56) | (call & 0xFFFFFFFFFFF) << 4 | (round & 0xF);
}

void interrupt_all(const Buffers& sending, const Buffers& receiving) {
  for (const auto& buffer : sending) {
    buffer->abortWaitSend();
  }
  for (const auto& buffer : receiving) {
    buffer->abortWaitRecv();
  }
}

// True if data has arrived; called after a failure. A wait that was interrupted, or timed out,
// still reports what is complete; the first one may only consume the interruption.
bool has_completed(UnboundBuffer& buffer) {
  constexpr std::chrono::milliseconds kAtOnce{1};
  try {
    return buffer.waitRecv(kAtOnce) || buffer.waitRecv(kAtOnce);
  } catch (const std::exception&) {
    return false;
  }
}

void require_completion(bool completed) {
  if (!completed) {
    throw std::runtime_error("interrupted");
  }
}

}  // namespace

// One round of the call in progress. Waits for one peer after the other, so that the late one
// is known.
Status GlooCommunicator::transfer(
    std::span<const Piece> outgoing, std::span<const Piece> incoming, Deadline deadline) {
  Buffers sending;
  Buffers receiving;
  for (const Piece& piece : outgoing) {
    sending.push_back(mesh_.context->createUnboundBuffer(piece.data, piece.size));
  }
  for (const Piece& piece : incoming) {
    receiving.push_back(mesh_.context->createUnboundBuffer(piece.data, piece.size));
  }
  if (!parts_.family->enter(watch_key_, [&] { interrupt_all(sending, receiving); })) {
    return parts_.family->failure();
  }
  const std::uint64_t slot = slot_of(call_count_, round_count_++);
  Status status;
  try {
    is_waited_for_.assign(size_, false);
    for (std::size_t i = 0; i < incoming.size(); ++i) {
      receiving[i]->recv(static_cast<int>(incoming[i].peer), slot);
      is_waited_for_[incoming[i].peer] = true;
    }
    for (std::size_t i = 0; i < outgoing.size(); ++i) {
      sending[i]->send(static_cast<int>(outgoing[i].peer), slot);
    }
    for (std::size_t i = 0; i < incoming.size(); ++i) {
      require_completion(receiving[i]->waitRecv(gloo_timeout(deadline)));
      is_waited_for_[incoming[i].peer] = false;
    }
    for (std::size_t i = 0; i < outgoing.size(); ++i) {
      is_waited_for_[outgoing[i].peer] = true;
      require_completion(sending[i]->waitSend(gloo_timeout(deadline)));
      is_waited_for_[outgoing[i].peer] = false;
    }
  } catch (const std::exception& error) {
    for (std::size_t i = 0; i < incoming.size(); ++i) {
      if (is_waited_for_[incoming[i].peer] && has_completed(*receiving[i])) {
        is_waited_for_[incoming[i].peer] = false;
      }
    }
    status = explain(error.what(), deadline);
  }
  parts_.family->leave(watch_key_);
  return status.ok() ? status : fail(status);
}

Status GlooCommunicator::explain(const char* what, Deadline deadline) {
  const std::string call = to_string(CallName{own().record.kind, own().record.index});
  if (deadline.expired()) {
    std::string peers;
    for (std::size_t r = 0; r < size_; ++r) {
      if (is_waited_for_[r]) {
        peers += (peers.empty() ? "" : ", ") + mesh_.names[r];
      }
    }
    return deadline_exceeded(
        peers + (round_count_ == 1 ? " did not arrive at " : " stopped in the middle of ") + call +
        (round_count_ == 1 ? " in time" : ""));
  }
  std::string closed = parts_.family->closed_peers(watch_key_);
  GlooFamily::settle();
  closed = closed.empty() ? parts_.family->closed_peers(watch_key_) : closed;
  return unavailable(call + ": " + (closed.empty() ? std::string{what} : closed));
}

}  // namespace muster::comm
