// SPDX-License-Identifier: Apache-2.0
// Resident memory of a call.
#pragma once

#include "tests/unit/kernels/attention/fence.h"

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>

namespace muster::kernels::test {

// Returns the kibibytes of a line of /proc/self/status, or -1 without such a line.
inline std::int64_t status_kib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) {
      return std::stoll(line.substr(name.size() + 1));
    }
  }
  return -1;
}

// Bytes by which resident memory rose at most while `work` ran. -1, and `work` did not run, where
// that cannot be known: under a sanitizer, whose own memory would count, or without the system's
// peak counter.
inline std::int64_t peak_growth(const std::function<void()>& work) {
  if (kSanitized) {
    return -1;
  }
  {
    std::ofstream reset("/proc/self/clear_refs");
    reset << 5 << std::flush;  // sets the peak to what is resident now
    if (!reset) {
      return -1;
    }
  }
  const std::int64_t before = status_kib("VmRSS");
  work();
  const std::int64_t peak = status_kib("VmHWM");
  return before < 0 || peak < 0 ? -1 : (peak - before) * 1024;
}

}  // namespace muster::kernels::test
