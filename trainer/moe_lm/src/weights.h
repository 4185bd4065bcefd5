// The optimizer's parameters as the model computes with them: fp32 whatever they are stored in, and
// waited for where they arrive while the model runs.
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

  // Null when there is no such parameter.
  [[nodiscard]] Weight* find(const std::string& name);

  // Before the values of a step are read for the first time: they have arrived and are widened. An
  // error is a lost peer.
  [[nodiscard]] Status await(std::initializer_list<const Weight*> weights);
  [[nodiscard]] Status await_all();

  // After the optimizer moved the parameters, or took them from a checkpoint.
  void parameters_changed();

  // Whether this backward pass is the step's last: only then are its gradients complete.
  void set_last_pass(bool last) { last_pass_ = last; }

  // The pass at hand adds nothing more to these gradients.
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
