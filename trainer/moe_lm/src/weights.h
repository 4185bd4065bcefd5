// SPDX-License-Identifier: Apache-2.0
// The optimizer's parameters as inputs of the model: widened to fp32, and awaited if they arrive
// while the model runs.
#pragma once

#include <muster/common/clock.h>
#include <muster/optimizer/optimizer.h>

#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace muster::moe_lm {

// One parameter. The kernels here compute in fp32: `value` [prod(shape)] is the optimizer's own
// memory, or a widened copy of a 16-bit parameter. `gradient` is the optimizer's.
struct Weight {
  std::size_t index{0};  // into Optimizer::parameters()
  std::span<float> value;
  std::span<float> gradient;
};

// Not thread-safe. `optimizer` must outlive it; pointers it hands out live as long as it does.
class Weights {
 public:
  Weights(optimizer::Optimizer& optimizer, std::chrono::nanoseconds timeout);
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;
  Weights(Weights&&) = delete;
  Weights& operator=(Weights&&) = delete;
  ~Weights() = default;

  // Returns null if there is no such parameter.
  [[nodiscard]] Weight* find(const std::string& name);

  // Waits for the values and widens them, before a step reads them for the first time. Fails if a
  // peer is lost.
  [[nodiscard]] Status await(std::initializer_list<const Weight*> weights);
  [[nodiscard]] Status await_all();

  // Call after the optimizer has updated the parameters or restored them from a checkpoint.
  void parameters_changed();

  // Sets whether this backward pass is the step's last: only then are its gradients complete.
  void set_last_pass(bool last) { last_pass_ = last; }

  // Call when the current pass has added its last gradient to these weights.
  void gradients_done(std::initializer_list<const Weight*> weights);

 private:
  [[nodiscard]] Status await_one(std::size_t index);

  optimizer::Optimizer& optimizer_;
  const std::chrono::nanoseconds timeout_;
  std::vector<Weight> weights_;             // in the order of the optimizer's parameters
  std::vector<std::vector<float>> copies_;  // of 16-bit parameters
  std::vector<bool> fresh_;
  bool last_pass_{true};
};

}  // namespace muster::moe_lm
