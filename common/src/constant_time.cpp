// SPDX-License-Identifier: Apache-2.0
#include <muster/common/constant_time.h>

#include <cstddef>

namespace muster {

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  // Volatile, so that the compiler cannot leave the loop at the first difference.
  volatile unsigned difference = given.size() == secret.size() ? 0U : 1U;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = secret.empty() ? '\0' : secret[i % secret.size()];
    difference = difference | static_cast<unsigned>(static_cast<unsigned char>(given[i] ^ other));
  }
  return difference == 0U;
}

}  // namespace muster
