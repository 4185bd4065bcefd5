// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/trainer/reference_tape.h"

#include <cmath>
#include <utility>

namespace muster::moe_lm::reference {

using Var = Tape::Var;

Var Tape::push(Matrix value) {
  Node node;
  node.gradient = Matrix{value.rows, value.cols};
  node.value = std::move(value);
  nodes_.push_back(std::move(node));
  return nodes_.size() - 1;
}

void Tape::backward(Var result) {
  gradient(result).data.at(0) = 1;
  for (std::size_t node = result + 1; node-- > 0;) {
    if (nodes_[node].pull) {
      nodes_[node].pull();
    }
  }
}

Var Tape::parameter(const Matrix& value, Matrix& sink) {
  const Var y = push(value);
  nodes_[y].pull = [this, y, &sink] {
    for (std::size_t i = 0; i < sink.data.size(); ++i) {
      sink.data[i] += gradient(y).data[i];
    }
  };
  return y;
}

Var Tape::rows(Var table, const std::vector<std::int32_t>& ids) {
  std::vector<Var> parts;
  for (const std::int32_t id : ids) {
    parts.push_back(row(table, static_cast<std::size_t>(id)));
  }
  return stacked(parts);
}

Var Tape::row(Var x, std::size_t index) {
  Matrix out{1, value(x).cols};
  for (std::size_t c = 0; c < out.cols; ++c) {
    out.at(0, c) = value(x).at(index, c);
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, x, y, index] {
    for (std::size_t c = 0; c < value(y).cols; ++c) {
      gradient(x).at(index, c) += gradient(y).at(0, c);
    }
  };
  return y;
}

Var Tape::columns(Var x, std::size_t begin, std::size_t count) {
  Matrix out{value(x).rows, count};
  for (std::size_t r = 0; r < out.rows; ++r) {
    for (std::size_t c = 0; c < count; ++c) {
      out.at(r, c) = value(x).at(r, begin + c);
    }
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, x, y, begin] {
    for (std::size_t r = 0; r < value(y).rows; ++r) {
      for (std::size_t c = 0; c < value(y).cols; ++c) {
        gradient(x).at(r, begin + c) += gradient(y).at(r, c);
      }
    }
  };
  return y;
}

Var Tape::side_by_side(const std::vector<Var>& parts) {
  Matrix out{value(parts[0]).rows, 0};
  for (const Var part : parts) {
    out.cols += value(part).cols;
  }
  out.data.resize(out.rows * out.cols);
  std::size_t begin = 0;
  for (const Var part : parts) {
    for (std::size_t r = 0; r < out.rows; ++r) {
      for (std::size_t c = 0; c < value(part).cols; ++c) {
        out.at(r, begin + c) = value(part).at(r, c);
      }
    }
    begin += value(part).cols;
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, y, parts] {
    std::size_t from = 0;
    for (const Var part : parts) {
      for (std::size_t r = 0; r < value(part).rows; ++r) {
        for (std::size_t c = 0; c < value(part).cols; ++c) {
          gradient(part).at(r, c) += gradient(y).at(r, from + c);
        }
      }
      from += value(part).cols;
    }
  };
  return y;
}

Var Tape::stacked(const std::vector<Var>& parts) {
  Matrix out{parts.size(), value(parts[0]).cols};
  for (std::size_t r = 0; r < parts.size(); ++r) {
    for (std::size_t c = 0; c < out.cols; ++c) {
      out.at(r, c) = value(parts[r]).at(0, c);
    }
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, y, parts] {
    for (std::size_t r = 0; r < parts.size(); ++r) {
      for (std::size_t c = 0; c < value(y).cols; ++c) {
        gradient(parts[r]).at(0, c) += gradient(y).at(r, c);
      }
    }
  };
  return y;
}

Var Tape::linear(Var x, Var weight) {
  Matrix out{value(x).rows, value(weight).rows};
  const auto each = [this, x, weight](auto&& body) {
    for (std::size_t r = 0; r < value(x).rows; ++r) {
      for (std::size_t o = 0; o < value(weight).rows; ++o) {
        for (std::size_t i = 0; i < value(x).cols; ++i) {
          body(r, o, i);
        }
      }
    }
  };
  each([&](std::size_t r, std::size_t o, std::size_t i) {
    out.at(r, o) += value(x).at(r, i) * value(weight).at(o, i);
  });
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, x, weight, y, each] {
    each([&](std::size_t r, std::size_t o, std::size_t i) {
      gradient(x).at(r, i) += gradient(y).at(r, o) * value(weight).at(o, i);
      gradient(weight).at(o, i) += gradient(y).at(r, o) * value(x).at(r, i);
    });
  };
  return y;
}

Var Tape::product(Var a, Var b) {
  Matrix out{value(a).rows, value(b).cols};
  const auto each = [this, a, b](auto&& body) {
    for (std::size_t r = 0; r < value(a).rows; ++r) {
      for (std::size_t k = 0; k < value(a).cols; ++k) {
        for (std::size_t c = 0; c < value(b).cols; ++c) {
          body(r, k, c);
        }
      }
    }
  };
  each([&](std::size_t r, std::size_t k, std::size_t c) {
    out.at(r, c) += value(a).at(r, k) * value(b).at(k, c);
  });
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, a, b, y, each] {
    each([&](std::size_t r, std::size_t k, std::size_t c) {
      gradient(a).at(r, k) += gradient(y).at(r, c) * value(b).at(k, c);
      gradient(b).at(k, c) += gradient(y).at(r, c) * value(a).at(r, k);
    });
  };
  return y;
}

Var Tape::add(Var a, Var b) {
  Matrix out = value(a);
  for (std::size_t i = 0; i < out.data.size(); ++i) {
    out.data[i] += value(b).data[i];
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, a, b, y] {
    for (std::size_t i = 0; i < value(y).data.size(); ++i) {
      gradient(a).data[i] += gradient(y).data[i];
      gradient(b).data[i] += gradient(y).data[i];
    }
  };
  return y;
}

Var Tape::times(Var a, Var b) {
  Matrix out = value(a);
  for (std::size_t i = 0; i < out.data.size(); ++i) {
    out.data[i] *= value(b).data[i];
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, a, b, y] {
    for (std::size_t i = 0; i < value(y).data.size(); ++i) {
      gradient(a).data[i] += gradient(y).data[i] * value(b).data[i];
      gradient(b).data[i] += gradient(y).data[i] * value(a).data[i];
    }
  };
  return y;
}

Var Tape::scaled(Var x, double factor) {
  Matrix out = value(x);
  for (double& element : out.data) {
    element *= factor;
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, x, y, factor] {
    for (std::size_t i = 0; i < value(y).data.size(); ++i) {
      gradient(x).data[i] += gradient(y).data[i] * factor;
    }
  };
  return y;
}

Var Tape::scaled_by(Var x, Var scalar, std::size_t column) {
  Matrix out = value(x);
  for (double& element : out.data) {
    element *= value(scalar).at(0, column);
  }
  const Var y = push(std::move(out));
  nodes_[y].pull = [this, x, scalar, y, column] {
    for (std::size_t i = 0; i < value(y).data.size(); ++i) {
      gradient(x).data[i] += gradient(y).data[i] * value(scalar).at(0, column);
      gradient(scalar).at(0, column) += gradient(y).data[i] * value(x).data[i];
    }
  };
  return y;
}

}  // namespace muster::moe_lm::reference
