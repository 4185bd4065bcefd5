// SPDX-License-Identifier: Apache-2.0
#include <muster/common/signals.h>

#include <csignal>

namespace muster {

bool ignores_signal(int number) {
  struct sigaction action {};

  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void handle_signal(int number, void (*handler)(int), int flags) {
  if (ignores_signal(number)) {
    return;
  }

  struct sigaction action {};

  action.sa_handler = handler;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = flags;
  ::sigaction(number, &action, nullptr);
}

}  // namespace muster
