// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/format.h"

#include <muster/common/text.h>

namespace muster::launcher {

std::string format_seconds(std::chrono::nanoseconds duration) {
  return fixed(std::chrono::duration<double>(duration).count(), 1) + " s";
}

}  // namespace muster::launcher
