// SPDX-License-Identifier: Apache-2.0
#include <muster/common/check.h>

namespace muster {

void fail_check(const char* expression, const char* file, int line, const std::string& message) {
  throw CheckFailure(
      std::string{file} + ":" + std::to_string(line) + ": check failed: " + expression + ": " +
      message);
}

}  // namespace muster
