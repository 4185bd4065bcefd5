// SPDX-License-Identifier: Apache-2.0
// Rules that the arguments of attention must obey, exact or by blocks.
//
// All return kInvalidArgument with the name of the argument and the rule that it breaks.
#pragma once

#include "kernels/attention/cpu/call.h"

#include <muster/common/expected.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace muster::kernels {

// Checks a problem and fills in its defaults.
[[nodiscard]] Expected<AttentionCall> attention_call(const AttentionProblem& problem);

// Check a tensor of total_q tokens and `heads` heads, or of `keys` tokens and `kv_heads` heads.
// `name` is for the message.
[[nodiscard]] Expected<AttentionTensor> query_tensor(
    const AttentionCall& call, std::string_view name, const AttentionInput& tensor);
[[nodiscard]] Expected<AttentionTensor> key_tensor(
    const AttentionCall& call,
    std::string_view name,
    const AttentionInput& tensor,
    std::int64_t keys);

// Check the tensors of a pass. k, v and their gradients have `keys` tokens: all of the call, or
// those of a range.
[[nodiscard]] Expected<InputTensors> input_tensors(
    const AttentionCall& call, const AttentionInputs& inputs, std::int64_t keys);
[[nodiscard]] Expected<OutputTensors> output_tensors(
    const AttentionCall& call, const AttentionOutputs& outputs);
[[nodiscard]] Expected<GradientTensors> gradient_tensors(
    const AttentionCall& call, const AttentionGradients& gradients, std::int64_t keys);

// Checks an optional span: `size` elements, or none.
[[nodiscard]] Status check_optional_size(std::string_view name, std::size_t got, std::int64_t size);

}  // namespace muster::kernels
