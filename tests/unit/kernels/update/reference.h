// SPDX-License-Identifier: Apache-2.0
// Shards in every storage type, and the update rules in double.
#pragma once

#include "tests/unit/kernels/numbers.h"

#include <muster/kernels/update_kernels.h>

#include <string>

namespace muster::kernels::test {

// One state in its storage type.
class StoredState {
 public:
  StoredState(StateType type, bool is_signed, std::size_t count, std::uint64_t tensor)
      : type_(type),
        is_signed_(is_signed),
        tensor_(tensor),
        count_(count),
        floats_(type == StateType::kFloat32 ? count : 0, 0.0F),
        halves_(type == StateType::kBFloat16 ? count : 0, 0),
        codes_(type == StateType::kInt8Block ? count : 0, 0),
        absmax_(type == StateType::kInt8Block ? (count + 255) / 256 : 0, 0.0F) {}

  // Of the elements from `first` on.
  StateView view(std::size_t first = 0) {
    StateView result{.type = type_, .is_signed = is_signed_, .tensor = tensor_};
    if (type_ == StateType::kFloat32) {
      result.data = floats_.data() + first;
    } else if (type_ == StateType::kBFloat16) {
      result.data = halves_.data() + first;
    } else {
      result.data = codes_.data() + first;
      result.absmax = absmax_.data() + first / 256;
    }
    return result;
  }

  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> result(count_);
    if (type_ == StateType::kFloat32) {
      return floats_;
    }
    if (type_ == StateType::kBFloat16) {
      widen(DType::kBFloat16, halves_, result);
    } else {
      dequantise(is_signed_, codes_, absmax_, result);
    }
    return result;
  }

  friend bool operator==(const StoredState&, const StoredState&) = default;

 private:
  StateType type_;
  bool is_signed_;
  std::uint64_t tensor_;
  std::size_t count_;
  std::vector<float> floats_;
  std::vector<std::uint16_t> halves_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> absmax_;
};

// A parameter with two states.
struct Shard {
  Shard(
      std::vector<float> initial,
      StateType first_type = StateType::kFloat32,
      StateType second_type = StateType::kFloat32,
      DType copy_type = DType::kFloat32)
      : parameter(std::move(initial)),
        first(first_type, true, parameter.size(), 1),
        second(second_type, false, parameter.size(), 2),
        narrow_type(copy_type),
        narrow_copy(copy_type == DType::kFloat32 ? 0 : parameter.size()) {}

  UpdateTensors tensors(
      const std::vector<float>& gradient, std::size_t begin = 0, std::size_t end = SIZE_MAX) {
    UpdateTensors t;
    t.parameter = parameter.data() + begin;
    t.narrow_copy = narrow_copy.empty() ? nullptr : narrow_copy.data() + begin;
    t.narrow_type = narrow_copy.empty() ? DType::kBFloat16 : narrow_type;
    t.gradient = gradient.data() + begin;
    t.first = first.view(begin);
    t.second = second.view(begin);
    t.count = static_cast<std::int64_t>(std::min(end, parameter.size()) - begin);
    t.first_index = static_cast<std::int64_t>(begin);
    return t;
  }

  friend bool operator==(const Shard&, const Shard&) = default;

  std::vector<float> parameter;
  StoredState first;
  StoredState second;
  DType narrow_type;
  std::vector<std::uint16_t> narrow_copy;
};

// One element in double, as torch.optim writes the rules.
struct WideElement {
  double p{0};
  double m{0};
  double v{0};
  double update{0};  // of the last step, learning rate included, without decay

  void sgd(double g, const UpdateStep& s) {
    update = s.learning_rate * g;
    p = p * (1 - s.learning_rate * s.weight_decay) - update;
  }

  void momentum(double g, const UpdateStep& s, const MomentumFactors& f) {
    g += s.weight_decay * p;
    m = f.momentum * m + g;
    update = s.learning_rate * (f.nesterov ? g + f.momentum * m : m);
    p -= update;
  }

  void rmsprop(double g, const UpdateStep& s, const RmsPropFactors& f) {
    g += s.weight_decay * p;
    v = f.alpha * v + (1 - f.alpha) * g * g;
    update = s.learning_rate * g / (std::sqrt(v) + f.epsilon);
    p -= update;
  }

  void adam(double g, const UpdateStep& s, const AdamFactors& f) {
    g += s.weight_decay * p;
    moments(g, s, f);
    p -= update;
  }

  void adamw(double g, const UpdateStep& s, const AdamFactors& f) {
    p *= 1 - s.learning_rate * s.weight_decay;
    moments(g, s, f);
    p -= update;
  }

  void moments(double g, const UpdateStep& s, const AdamFactors& f) {
    const auto t = static_cast<double>(s.step);
    m = f.beta1 * m + (1 - f.beta1) * g;
    v = f.beta2 * v + (1 - f.beta2) * g * g;
    update = s.learning_rate * (m / (1 - std::pow(f.beta1, t))) /
             (std::sqrt(v / (1 - std::pow(f.beta2, t))) + f.epsilon);
  }

  double muon(double g, const MuonMomentumFactors& f) {
    const double rate = f.ema ? 1 - f.momentum : 1;
    m = f.momentum * m + rate * g;
    return f.nesterov ? f.momentum * m + rate * g : m;
  }
};

inline std::vector<WideElement> widened(const std::vector<float>& parameter) {
  std::vector<WideElement> result(parameter.size());
  for (std::size_t i = 0; i < parameter.size(); ++i) {
    result[i].p = static_cast<double>(parameter[i]);
  }
  return result;
}

// |a - b| over |b|, both as vectors.
inline double relative_distance(const std::vector<float>& a, const Values& b) {
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += b[i] * b[i];
  }
  return std::sqrt(error / size);
}

inline Values parameters_of(const std::vector<WideElement>& wide) {
  Values result;
  for (const WideElement& element : wide) {
    result.push_back(element.p);
  }
  return result;
}

inline const StateType kStateTypes[] = {
    StateType::kFloat32, StateType::kBFloat16, StateType::kInt8Block};

}  // namespace muster::kernels::test
