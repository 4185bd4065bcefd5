// SPDX-License-Identifier: Apache-2.0
// What the update rules and the low-precision conversions look like in the table of hot loops.
#pragma once

#include <muster/kernels/low_precision.h>
#include <muster/kernels/update_kernels.h>

#include <cstdint>

namespace muster::kernels {

// The scalars of all rules as the loops need them, computed in double and rounded once.
struct UpdateScalars {
  float gradient_scale{1};
  float learning_rate{0};  // times 1 / (1 - beta1^t) of Adam, times the scale of Muon
  float decay_rate{0};     // lr * weight_decay, taken off the parameter
  float coupled_decay{0};  // weight_decay, added to the gradient
  float momentum{0};
  float momentum_rate{0};        // 1 - beta1
  float second_rate{0};          // 1 - beta2
  float inverse_correction2{1};  // 1 / (1 - beta2^t)
  float epsilon{0};
  float staleness_floor{1};  // epsilon^2, at least the smallest normal float
  float tiny{0};             // 10 epsilon
  bool coupled{false};
  bool nesterov{false};
  bool ema{false};
};

struct UpdateTable {
  using Rule = void (*)(
      const UpdateTensors& tensors,
      const UpdateStep& step,
      const UpdateScalars& scalars,
      UpdateStatistics& sums);

  Rule sgd;
  Rule momentum;
  Rule rmsprop;
  Rule adam;
  void (*muon_momentum)(
      const UpdateTensors& tensors,
      const UpdateStep& step,
      const UpdateScalars& scalars,
      float* direction,
      UpdateStatistics& sums);
  Rule muon_apply;  // the orthogonal matrix in the place of the gradient

  void (*narrow)(DType type, const float* from, std::uint16_t* to, std::int64_t count);
  void (*widen)(DType type, const std::uint16_t* from, float* to, std::int64_t count);
  void (*narrow_stochastic)(
      const float* from,
      std::uint16_t* to,
      std::int64_t count,
      const RoundingKey& key,
      std::int64_t first_index);
  void (*quantise)(
      bool is_signed, const float* values, std::uint8_t* codes, float* absmax, std::int64_t count);
  void (*dequantise)(
      bool is_signed,
      const std::uint8_t* codes,
      const float* absmax,
      float* values,
      std::int64_t count);
  void (*scale)(float* values, float factor, std::int64_t count);
};

// The table for this machine, see table.h.
[[nodiscard]] const UpdateTable& update_table();

}  // namespace muster::kernels
