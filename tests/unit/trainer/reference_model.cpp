// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/trainer/reference_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace muster::moe_lm::reference {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr double kBase = 10000.0;
constexpr double kDecay = 0.1;

std::string in_layer(std::int64_t layer, const std::string& part) {
  return "layers." + std::to_string(layer) + "." + part;
}

bool is_muon(const std::string& name) {
  return name.find("attention.w") != std::string::npos || name.find("experts") != std::string::npos;
}

double decay_of(const std::string& name) {
  return is_muon(name) || name == "head" ? kDecay : 0.0;
}

Matrix to_matrix(std::span<const float> values, std::size_t rows) {
  Matrix matrix{rows, values.size() / rows};
  std::copy(values.begin(), values.end(), matrix.data.begin());
  return matrix;
}

}  // namespace

Trainer::Trainer(
    const TrainOptions& options, optimizer::Optimizer& initial, const std::string& text)
    : options_(options), source_{&text, options.seed, options.batch, options.model.sequence} {
  for (const optimizer::Parameter& parameter : initial.parameters()) {
    const auto& shape = parameter.spec.shape;
    if (shape.size() != 3) {
      const std::size_t rows = shape.size() == 2 ? static_cast<std::size_t>(shape[0]) : 1;
      values_[parameter.spec.name] = to_matrix(parameter.value, rows);
      continue;
    }
    const auto size = static_cast<std::size_t>(shape[1] * shape[2]);
    for (std::size_t e = 0; e < static_cast<std::size_t>(shape[0]); ++e) {
      values_[parameter.spec.name + "/" + std::to_string(e)] =
          to_matrix(parameter.value.subspan(e * size, size), static_cast<std::size_t>(shape[1]));
    }
  }
  for (const auto& [name, value] : values_) {
    gradients_[name] = Matrix{value.rows, value.cols};
    if (is_muon(name)) {
      muon_[name] = {value.rows, value.cols, value.data, {}};
    } else {
      adamw_[name].value = value.data;
    }
  }
  const auto experts = static_cast<std::size_t>(options.model.experts);
  bias_.assign(static_cast<std::size_t>(options.model.layers), std::vector<double>(experts, 0.0));
  counts_ = bias_;
}

Tape::Var Trainer::use(Tape& tape, const std::string& name) {
  return tape.parameter(values_.at(name), gradients_.at(name));
}

Tape::Var Trainer::attention(Tape& tape, Var x, std::int64_t layer) {
  const auto width = static_cast<std::size_t>(options_.model.head_dim());
  const Var n = tape.rms_norm(x, use(tape, in_layer(layer, "attention.norm")), kEpsilon);
  const Var q = tape.linear(n, use(tape, in_layer(layer, "attention.wq")));
  const Var k = tape.linear(n, use(tape, in_layer(layer, "attention.wk")));
  const Var v = tape.linear(n, use(tape, in_layer(layer, "attention.wv")));
  std::vector<Var> heads;
  for (std::size_t h = 0; h < static_cast<std::size_t>(options_.model.heads); ++h) {
    const Var qh = tape.rope(tape.columns(q, h * width, width), kBase);
    const Var kh = tape.rope(tape.columns(k, h * width, width), kBase);
    const Var logits = tape.scaled(tape.linear(qh, kh), 1 / std::sqrt(static_cast<double>(width)));
    heads.push_back(tape.product(tape.softmax(logits, true), tape.columns(v, h * width, width)));
  }
  const Var mixed =
      tape.linear(tape.side_by_side(heads), use(tape, in_layer(layer, "attention.wo")));
  return tape.add(x, mixed);
}

std::vector<std::size_t> Trainer::choose(const Matrix& scores, std::int64_t layer) {
  const auto& bias = bias_[static_cast<std::size_t>(layer)];
  std::vector<std::size_t> order(scores.cols);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto rank = [&](std::size_t e) { return scores.at(0, e) + bias[e]; };
  std::stable_sort(
      order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rank(a) > rank(b); });
  const auto k = static_cast<std::size_t>(options_.model.top_k);
  if (k < order.size()) {
    smallest_margin_ = std::min(smallest_margin_, rank(order[k - 1]) - rank(order[k]));
  }
  order.resize(k);
  for (const std::size_t e : order) {
    counts_[static_cast<std::size_t>(layer)][e] += 1;
  }
  return order;
}

Tape::Var Trainer::expert(Tape& tape, Var token, std::int64_t layer, std::size_t index) {
  const auto weight = [&](const char* part) {
    return use(
        tape, in_layer(layer, std::string{"moe.experts."} + part + "/" + std::to_string(index)));
  };
  const Var gate = tape.silu(tape.linear(token, weight("gate")));
  return tape.linear(tape.times(gate, tape.linear(token, weight("up"))), weight("down"));
}

Tape::Var Trainer::mixture(Tape& tape, Var x, std::int64_t layer) {
  const Var n = tape.rms_norm(x, use(tape, in_layer(layer, "moe.norm")), kEpsilon);
  const Var router = use(tape, in_layer(layer, "moe.router"));
  std::vector<Var> outputs;
  for (std::size_t t = 0; t < tape.value(n).rows; ++t) {
    const Var token = tape.row(n, t);
    const Var scores = tape.softmax(tape.linear(token, router), false);
    const std::vector<std::size_t> chosen = choose(tape.value(scores), layer);
    const Var gates = tape.renormalised(scores, chosen);
    Var sum = tape.scaled_by(expert(tape, token, layer, chosen[0]), gates, 0);
    for (std::size_t c = 1; c < chosen.size(); ++c) {
      sum = tape.add(sum, tape.scaled_by(expert(tape, token, layer, chosen[c]), gates, c));
    }
    outputs.push_back(sum);
  }
  return tape.add(x, tape.stacked(outputs));
}

double Trainer::forward_backward(const Batch& batch) {
  const std::int64_t length = options_.model.sequence;
  double loss = 0;
  for (std::int64_t begin = 0; begin < std::ssize(batch.tokens); begin += length) {
    const auto cut = [&](const std::vector<std::int32_t>& all) {
      return std::vector<std::int32_t>(all.begin() + begin, all.begin() + begin + length);
    };
    Tape tape;
    Var x = tape.rows(use(tape, "embedding"), cut(batch.tokens));
    for (std::int64_t layer = 0; layer < options_.model.layers; ++layer) {
      x = mixture(tape, attention(tape, x, layer), layer);
    }
    const Var n = tape.rms_norm(x, use(tape, "norm"), kEpsilon);
    const Var result =
        tape.cross_entropy_sum(tape.linear(n, use(tape, "head")), cut(batch.targets));
    tape.backward(result);
    loss += tape.value(result).at(0, 0);
  }
  return loss;
}

double Trainer::learning_rate() const {
  const double peak = options_.learning_rate;
  if (steps_done_ < options_.warmup) {
    return peak * static_cast<double>(steps_done_ + 1) / static_cast<double>(options_.warmup);
  }
  const double along = static_cast<double>(steps_done_ - options_.warmup) /
                       static_cast<double>(options_.steps - options_.warmup);
  return peak * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * along)));
}

double Trainer::gradient_norm() const {
  double squared = 0;
  for (const auto& [name, gradient] : gradients_) {
    for (const double g : gradient.data) {
      squared += g * g;
    }
  }
  return std::sqrt(squared);
}

void Trainer::update(double gradient_scale) {
  const double norm = gradient_norm() * gradient_scale;
  const double clip = norm > options_.clip_norm ? options_.clip_norm / norm : 1.0;
  const double rate = learning_rate();
  for (auto& [name, gradient] : gradients_) {
    for (double& g : gradient.data) {
      g *= gradient_scale * clip;
    }
    if (is_muon(name)) {
      muon_.at(name).update(gradient.data, {}, rate, decay_of(name));
      values_.at(name).data = muon_.at(name).value;
    } else {
      adamw_.at(name).update(gradient.data, {}, rate, decay_of(name));
      values_.at(name).data = adamw_.at(name).value;
    }
    std::fill(gradient.data.begin(), gradient.data.end(), 0.0);
  }
}

void Trainer::balance() {
  for (std::size_t layer = 0; layer < counts_.size(); ++layer) {
    const double mean = std::accumulate(counts_[layer].begin(), counts_[layer].end(), 0.0) /
                        static_cast<double>(counts_[layer].size());
    for (std::size_t e = 0; e < counts_[layer].size(); ++e) {
      if (counts_[layer][e] != mean) {
        bias_[layer][e] += counts_[layer][e] < mean ? options_.bias_rate : -options_.bias_rate;
      }
      counts_[layer][e] = 0;
    }
  }
}

double Trainer::step() {
  const Batch batch = source_.sequences(steps_done_, 0, options_.batch);
  const auto tokens = static_cast<double>(batch.tokens.size());
  const double loss = forward_backward(batch) / tokens;
  update(1 / tokens);
  balance();
  ++steps_done_;
  return loss;
}

}  // namespace muster::moe_lm::reference
