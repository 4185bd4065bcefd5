// SPDX-License-Identifier: Apache-2.0
// SIGTERM and SIGINT become a request that the next step's verdict carries to all ranks.
#include "agent/src/runtime/runtime.h"

#include <muster/common/signals.h>

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace muster::agent {
namespace {

// A signal handler takes no user argument, so its agent is process-wide.
std::atomic<Agent*> preemption_agent{nullptr};
std::atomic<bool> signalled{false};
std::atomic<bool> holding{false};  // the agent does not exist yet
static_assert(std::atomic<Agent*>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void handle(int signal_number) {
  // Service managers signal every process, and launchers pass a SIGTERM on: it is one request,
  // also while the process leaves after its save.
  if (signalled.exchange(true)) {
    if (signal_number == SIGINT) {
      ::_exit(128 + signal_number);
    }
    return;
  }
  Agent* agent = preemption_agent.load();
  if (agent == nullptr && !holding.load()) {
    ::_exit(128 + signal_number);
  }
  if (agent != nullptr) {
    agent->request_preemption();
  }
}

void install_all() {
  handle_signal(SIGTERM, &handle, SA_RESTART);
  handle_signal(SIGINT, &handle, SA_RESTART);
  handle_signal(SIGPIPE, SIG_IGN, SA_RESTART);
}

}  // namespace

void hold_preemption_signals() {
  signalled.store(false);
  holding.store(true);
  install_all();
}

void install_preemption_handlers(Agent& agent) {
  if (!holding.load()) {
    signalled.store(false);
  }
  preemption_agent.store(&agent);
  holding.store(false);
  install_all();
  // A signal between the two stores above reached the agent; a second request is harmless.
  if (signalled.load()) {
    agent.request_preemption();
  }
}

void forget_preemption_agent(const Agent& agent) {
  Agent* expected = preemption_agent.load();
  if (expected == &agent) {
    preemption_agent.compare_exchange_strong(expected, nullptr);
  }
}

}  // namespace muster::agent
