// SPDX-License-Identifier: Apache-2.0
// Rules that the arguments of block attention must obey beside those of its call.
#pragma once

#include "kernels/attention/cpu/check.h"
#include "kernels/moba/cpu/call.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace muster::kernels {

// Check an optional span: `size` elements, or none.
template <typename T>
[[nodiscard]] Status check_moba_span(std::string_view name, std::span<T> span, std::int64_t size) {
  return check_optional_size(name, span.size(), size);
}

[[nodiscard]] Status check_moba_statistics(const MobaCall& call, const MobaStatistics& statistics);

// Elements of the mean keys: kv_heads * blocks * head_dim.
[[nodiscard]] std::size_t means_size(const MobaCall& call);
[[nodiscard]] Status check_means(const MobaCall& call, std::size_t got);

// As gradient_tensors. Also checks that `dlse` is null.
[[nodiscard]] Expected<GradientTensors> moba_gradient_tensors(
    const MobaCall& call, const AttentionGradients& gradients, std::int64_t keys);

}  // namespace muster::kernels
