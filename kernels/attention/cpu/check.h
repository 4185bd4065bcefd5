// The rules that arguments of attention keep.
#pragma once

#include "kernels/attention/cpu/call.h"

#include <muster/common/expected.h>

#include <cstddef>

namespace muster::kernels {

// A problem with its defaults filled in. kInvalidArgument names the argument and the rule.
[[nodiscard]] Expected<FlashCall> flash_call(const AttentionProblem& problem);

enum class FlashSide : std::uint8_t { kQueries, kKeys };

// A tensor as the caller describes it.
struct FlashView {
  const void* data{nullptr};
  std::int64_t token_stride{0};
  std::int64_t head_stride{0};
  std::int64_t tokens{0};
  bool written{false};
};

// A tensor of the call with its default strides filled in; `name` is for the message.
[[nodiscard]] Expected<FlashTensor> flash_tensor(
    const FlashCall& call, FlashSide side, const char* name, const FlashView& view);

// lse, dlse and bias: aligned to elements of `size` bytes. Null is aligned.
[[nodiscard]] Status check_alignment(const char* name, const void* data, std::size_t size);

}  // namespace muster::kernels
