// Sizes of what a call of block attention fills.
#pragma once

#include "kernels/moba/cpu/call.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace muster::kernels {

// An optional span: of `size` elements, or empty.
template <typename T>
Status check_moba_span(std::string_view name, std::span<T> span, std::int64_t size) {
  if (!span.empty() && static_cast<std::int64_t>(span.size()) != size) {
    return invalid_argument(
        std::string(name) + " has " + std::to_string(span.size()) + " elements, must have " +
        std::to_string(size) + " or none");
  }
  return {};
}

[[nodiscard]] Status check_moba_statistics(const MobaPlan& plan, const MobaStatistics& statistics);

[[nodiscard]] Status check_moba_lse(const MobaPlan& plan, const void* lse);

}  // namespace muster::kernels
