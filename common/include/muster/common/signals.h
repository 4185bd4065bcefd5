// SPDX-License-Identifier: Apache-2.0
// Signal handlers that respect nohup.
#pragma once

namespace muster {

// True if this process ignores `number`, for example SIGHUP under nohup.
[[nodiscard]] bool ignores_signal(int number);

// Installs `handler` for `number`, unless the process ignores that signal: a signal that was
// ignored at the start stays ignored. `flags` are those of sigaction. Async-signal-safe.
void handle_signal(int number, void (*handler)(int), int flags = 0);

}  // namespace muster
