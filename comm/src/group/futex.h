// SPDX-License-Identifier: Apache-2.0
// Sleeping on a 32-bit word that other threads or processes change.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace muster::comm {

// Sleeps while `word` holds `expected`, at most `timeout`; may wake early.
void futex_wait(
    std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds timeout);

void futex_wake_all(std::atomic<std::uint32_t>& word);

}  // namespace muster::comm
