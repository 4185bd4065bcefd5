// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/parallel/experts/layer/case.h"

#include "tests/support/deadlines.h"

#include <muster/comm/backends.h>
#include <muster/common/random.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

namespace muster::parallel {
namespace {

using muster::test::soon;

std::vector<float> drawn(Random& random, std::int64_t size, double scale) {
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) {
    value = static_cast<float>((static_cast<double>(random.below(129)) - 64.0) / 64.0 * scale);
  }
  return values;
}

std::vector<double> to_double(std::span<const float> values) {
  return {values.begin(), values.end()};
}

// Element (row, column) of expert `expert`'s matrix.
double at(
    const std::vector<float>& tensor,
    std::int64_t expert,
    std::int64_t rows,
    std::int64_t cols,
    std::int64_t row,
    std::int64_t column) {
  return static_cast<double>(
      tensor[static_cast<std::size_t>((expert * rows + row) * cols + column)]);
}

// One (token, choice) of the reference.
class Visit {
 public:
  Visit(const LayerCase& layer, const LayerInputs& inputs, LayerResult& result)
      : h_(layer.hidden), f_(layer.ffn), top_k_(layer.top_k), inputs_(inputs), result_(result) {}

  void operator()(int rank, std::int64_t token, int choice) {
    const auto r = static_cast<std::size_t>(rank);
    const auto entry = static_cast<std::size_t>(token * top_k_ + choice);
    const std::int64_t expert = inputs_.choices[r][entry];
    const auto gate = static_cast<double>(inputs_.gates[r][entry]);
    const float* x = inputs_.x[r].data() + token * h_;
    const float* dy = inputs_.dy[r].data() + token * h_;
    forward(expert, x);
    double* y = result_.y[r].data() + token * h_;
    double dgate = 0;
    for (std::int64_t i = 0; i < h_; ++i) {
      double out = 0;
      for (std::int64_t j = 0; j < f_; ++j) {
        out += at(inputs_.down_weights, expert, h_, f_, i, j) * activation_[index(j)];
      }
      y[i] += gate * out;
      dgate += out * static_cast<double>(dy[i]);
    }
    result_.dgates[r][entry] = dgate;
    backward(expert, gate, x, dy, result_.dx[r].data() + token * h_);
  }

 private:
  static std::size_t index(std::int64_t at) { return static_cast<std::size_t>(at); }

  void forward(std::int64_t expert, const float* x) {
    for (auto* values : {&gate_, &up_, &activation_}) {
      values->assign(index(f_), 0.0);
    }
    for (std::int64_t j = 0; j < f_; ++j) {
      for (std::int64_t i = 0; i < h_; ++i) {
        gate_[index(j)] +=
            at(inputs_.gate_weights, expert, f_, h_, j, i) * static_cast<double>(x[i]);
        up_[index(j)] += at(inputs_.up_weights, expert, f_, h_, j, i) * static_cast<double>(x[i]);
      }
      const double g = gate_[index(j)];
      activation_[index(j)] = g / (1 + std::exp(-g)) * up_[index(j)];
    }
  }

  void backward(std::int64_t expert, double weight, const float* x, const float* dy, double* dx) {
    for (std::int64_t j = 0; j < f_; ++j) {
      double dactivation = 0;
      for (std::int64_t i = 0; i < h_; ++i) {
        const double d = weight * static_cast<double>(dy[i]);
        dactivation += d * at(inputs_.down_weights, expert, h_, f_, i, j);
        result_.down_gradient[index((expert * h_ + i) * f_ + j)] += d * activation_[index(j)];
      }
      const double g = gate_[index(j)];
      const double sigmoid = 1 / (1 + std::exp(-g));
      const double dup = dactivation * g * sigmoid;
      const double dgate = dactivation * up_[index(j)] * sigmoid * (1 + g * (1 - sigmoid));
      for (std::int64_t i = 0; i < h_; ++i) {
        result_.gate_gradient[index((expert * f_ + j) * h_ + i)] +=
            dgate * static_cast<double>(x[i]);
        result_.up_gradient[index((expert * f_ + j) * h_ + i)] += dup * static_cast<double>(x[i]);
        dx[i] += dgate * at(inputs_.gate_weights, expert, f_, h_, j, i) +
                 dup * at(inputs_.up_weights, expert, f_, h_, j, i);
      }
    }
  }

  std::int64_t h_;
  std::int64_t f_;
  int top_k_;
  const LayerInputs& inputs_;
  LayerResult& result_;
  std::vector<double> gate_, up_, activation_;
};

// fp32 values as the layer stores them, and back.
class Storage {
 public:
  Storage(DType type, std::span<const float> values) : type_(type), count_(values.size()) {
    if (type == DType::kFloat32) {
      floats_.assign(values.begin(), values.end());
    } else {
      halves_.resize(values.size());
      kernels::narrow(type, values, halves_);
    }
  }

  [[nodiscard]] std::span<std::byte> bytes() {
    return type_ == DType::kFloat32 ? std::as_writable_bytes(std::span{floats_})
                                    : std::as_writable_bytes(std::span{halves_});
  }

  [[nodiscard]] std::vector<double> values() {
    std::vector<float> wide(count_);
    if (type_ == DType::kFloat32) {
      wide = floats_;
    } else {
      kernels::widen(type_, halves_, wide);
    }
    return to_double(wide);
  }

 private:
  DType type_;
  std::size_t count_;
  std::vector<float> floats_;
  std::vector<std::uint16_t> halves_;
};

// The part of rank `rank` of a tensor over all experts.
std::span<const float> share(const std::vector<float>& tensor, int rank, int ranks) {
  const std::size_t size = tensor.size() / static_cast<std::size_t>(ranks);
  return std::span{tensor}.subspan(static_cast<std::size_t>(rank) * size, size);
}

class RankRun {
 public:
  RankRun(
      const LayerCase& layer,
      const LayerInputs& inputs,
      LayerKind kind,
      comm::Communicator& ranks,
      LayerResult& result)
      : layer_(layer), inputs_(inputs), kind_(kind), ranks_(ranks), result_(result) {}

  Status run() {
    MUSTER_RETURN_IF_ERROR(make());
    const auto r = static_cast<std::size_t>(ranks_.rank());
    Storage x{layer_.type, inputs_.x[r]};
    Storage dy{layer_.type, inputs_.dy[r]};
    const std::vector<float> empty(inputs_.x[r].size(), -7.0F);
    Storage y{layer_.type, empty};
    Storage dx{layer_.type, empty};
    std::vector<float> dgates(inputs_.gates[r].size(), -7.0F);
    MUSTER_RETURN_IF_ERROR(
        experts_->forward(x.bytes(), inputs_.choices[r], inputs_.gates[r], y.bytes(), soon()));
    MUSTER_RETURN_IF_ERROR(experts_->backward(dy.bytes(), dx.bytes(), dgates, soon()));
    MUSTER_RETURN_IF_ERROR(ranks_.barrier(soon()));
    result_.y[r] = y.values();
    result_.dx[r] = dx.values();
    result_.dgates[r] = to_double(dgates);
    keep(gradients_[0], result_.gate_gradient);
    keep(gradients_[1], result_.up_gradient);
    keep(gradients_[2], result_.down_gradient);
    return ranks_.barrier(soon());
  }

 private:
  [[nodiscard]] ExpertLayerOptions options() const {
    ExpertLayerOptions options;
    EpShape& shape = options.exchange.shape;
    shape.ranks = layer_.ranks;
    shape.experts = layer_.experts;
    shape.top_k = layer_.top_k;
    shape.tokens_max =
        std::max<std::int64_t>(1, *std::max_element(layer_.tokens.begin(), layer_.tokens.end()));
    shape.padding = layer_.padding;
    shape.compact = layer_.compact;
    options.exchange.balance = layer_.balance;
    options.exchange.hidden = layer_.hidden;
    options.exchange.type = layer_.type;
    options.exchange.numerics = layer_.numerics;
    options.ffn = layer_.ffn;
    return options;
  }

  Status make() {
    const std::vector<float>* tensors[] = {
        &inputs_.gate_weights, &inputs_.up_weights, &inputs_.down_weights};
    const ExpertLayerOptions chosen = options();
    const std::size_t elements = share(*tensors[0], ranks_.rank(), layer_.ranks).size();
    const auto weight_bytes = elements * static_cast<std::size_t>(size_bytes(layer_.type));
    const std::size_t gradient_bytes = elements * sizeof(float);
    if (kind_ == LayerKind::kAllToAll) {
      for (std::size_t at = 0; at < 3; ++at) {
        const auto part = share(*tensors[at], ranks_.rank(), layer_.ranks);
        own_weights_[at].assign(part.begin(), part.end());
        own_gradients_[at].assign(elements, 0.0F);
        gradients_[at] = own_gradients_[at];
      }
      MUSTER_ASSIGN_OR_RETURN(
          experts_,
          make_all_to_all_layer(
              ranks_,
              chosen,
              {own_weights_[0],
               own_weights_[1],
               own_weights_[2],
               own_gradients_[0],
               own_gradients_[1],
               own_gradients_[2]}));
      return {};
    }
    MUSTER_ASSIGN_OR_RETURN(
        group_, ExpertGroup::create(ranks_, chosen, 3 * (weight_bytes + gradient_bytes), soon()));
    ExpertGroup::Home homes[3];
    for (std::size_t at = 0; at < 3; ++at) {
      MUSTER_ASSIGN_OR_RETURN(const auto weights, group_->allocate(weight_bytes));
      MUSTER_ASSIGN_OR_RETURN(const auto gradient, group_->allocate(gradient_bytes));
      Storage values{layer_.type, share(*tensors[at], ranks_.rank(), layer_.ranks)};
      std::copy_n(values.bytes().begin(), weight_bytes, weights.begin());
      homes[at] = {weights.data(), reinterpret_cast<float*>(gradient.data())};  // NOLINT
      gradients_[at] = {homes[at].gradient, elements};
    }
    MUSTER_RETURN_IF_ERROR(group_->seal(soon()));
    MUSTER_ASSIGN_OR_RETURN(experts_, group_->make_layer("layer 0", homes[0], homes[1], homes[2]));
    return {};
  }

  void keep(std::span<const float> gradient, std::vector<double>& all) const {
    const std::size_t begin = static_cast<std::size_t>(ranks_.rank()) * gradient.size();
    std::copy(gradient.begin(), gradient.end(), all.begin() + static_cast<std::ptrdiff_t>(begin));
  }

  const LayerCase& layer_;
  const LayerInputs& inputs_;
  LayerKind kind_;
  comm::Communicator& ranks_;
  LayerResult& result_;
  std::vector<float> own_weights_[3], own_gradients_[3];
  std::span<const float> gradients_[3];
  std::unique_ptr<ExpertGroup> group_;
  std::unique_ptr<ExpertLayer> experts_;
};

LayerResult empty_result(const LayerCase& layer) {
  LayerResult result;
  for (const std::int64_t tokens : layer.tokens) {
    const auto values = static_cast<std::size_t>(tokens * layer.hidden);
    result.y.emplace_back(values);
    result.dx.emplace_back(values);
    result.dgates.emplace_back(static_cast<std::size_t>(tokens * layer.top_k));
  }
  const auto weights = static_cast<std::size_t>(layer.experts * layer.hidden * layer.ffn);
  for (auto* gradient : {&result.gate_gradient, &result.up_gradient, &result.down_gradient}) {
    gradient->resize(weights);
  }
  return result;
}

void compare(
    const std::string& name,
    const std::vector<double>& result,
    const std::vector<double>& reference,
    Deviation& worst) {
  double largest = 1e-3;
  for (const double value : reference) {
    largest = std::max(largest, std::abs(value));
  }
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double relative = std::abs(result[i] - reference[i]) / largest;
    // A NaN is worse than any number and stays.
    if (!(relative <= worst.relative) && !std::isnan(worst.relative)) {
      worst = {relative, name + "[" + std::to_string(i) + "]"};
    }
  }
}

}  // namespace

LayerInputs make_inputs(const LayerCase& layer) {
  Random random{layer.seed};
  LayerInputs inputs;
  const std::int64_t weights = layer.experts * layer.hidden * layer.ffn;
  inputs.gate_weights = drawn(random, weights, 0.5);
  inputs.up_weights = drawn(random, weights, 0.5);
  inputs.down_weights = drawn(random, weights, 0.5);
  for (int rank = 0; rank < layer.ranks; ++rank) {
    const std::int64_t tokens = layer.tokens[static_cast<std::size_t>(rank)];
    inputs.x.push_back(drawn(random, tokens * layer.hidden, 1));
    inputs.dy.push_back(drawn(random, tokens * layer.hidden, 1));
    inputs.gates.push_back(drawn(random, tokens * layer.top_k, 1));
    auto& choices = inputs.choices.emplace_back();
    for (std::int64_t token = 0; token < tokens; ++token) {
      for (int choice = 0; choice < layer.top_k; ++choice) {
        choices.push_back(layer.route(rank, token, choice));
      }
    }
  }
  return inputs;
}

LayerResult dense_reference(const LayerCase& layer, const LayerInputs& inputs) {
  LayerResult result = empty_result(layer);
  Visit visit{layer, inputs, result};
  for (int rank = 0; rank < layer.ranks; ++rank) {
    for (std::int64_t token = 0; token < layer.tokens[static_cast<std::size_t>(rank)]; ++token) {
      for (int choice = 0; choice < layer.top_k; ++choice) {
        visit(rank, token, choice);
      }
    }
  }
  return result;
}

LayerResult run_layer(
    const LayerCase& layer, const LayerInputs& inputs, LayerKind kind, Status& status) {
  LayerResult result = empty_result(layer);
  const auto group = comm::make_local_group(layer.ranks);
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (const auto& ranks : group) {
    threads.emplace_back([&, &world = *ranks] {
      const Status ended = RankRun{layer, inputs, kind, world, result}.run();
      const std::scoped_lock lock{mutex};
      if (!ended.ok() && status.ok()) {
        status = ended;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return result;
}

Deviation deviation(const LayerResult& result, const LayerResult& reference) {
  Deviation worst;
  for (std::size_t rank = 0; rank < reference.y.size(); ++rank) {
    const std::string of = " of rank " + std::to_string(rank);
    compare("y" + of, result.y[rank], reference.y[rank], worst);
    compare("dx" + of, result.dx[rank], reference.dx[rank], worst);
    compare("dgates" + of, result.dgates[rank], reference.dgates[rank], worst);
  }
  compare("gate gradient", result.gate_gradient, reference.gate_gradient, worst);
  compare("up gradient", result.up_gradient, reference.up_gradient, worst);
  compare("down gradient", result.down_gradient, reference.down_gradient, worst);
  return worst;
}

}  // namespace muster::parallel
