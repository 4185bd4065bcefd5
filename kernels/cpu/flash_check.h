// The rules that arguments of attention keep.
#pragma once

#include "cpu/flash_call.h"

#include <muster/common/expected.h>

namespace muster::kernels {

// A problem with its defaults filled in. kInvalidArgument names the argument and the rule.
[[nodiscard]] Expected<FlashCall> flash_call(const AttentionProblem& problem);

enum class FlashSide : std::uint8_t { kQueries, kKeys };

// A tensor of the call with its default strides filled in; `name` is for the message.
[[nodiscard]] Expected<FlashTensor> flash_tensor(
    const FlashCall& call,
    FlashSide side,
    const char* name,
    const void* data,
    std::int64_t token_stride,
    std::int64_t head_stride,
    bool written);

}  // namespace muster::kernels
