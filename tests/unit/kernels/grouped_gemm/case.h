// SPDX-License-Identifier: Apache-2.0
// Grouped products and what they should be, in double.
#pragma once

#include "tests/support/random_values.h"

#include <muster/kernels/grouped_gemm.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace muster::kernels::test {

using Sizes = std::vector<std::int64_t>;

// A tensor of either type, as its bytes, with the values it holds.
class Tensor {
 public:
  Tensor(DType type, std::vector<double> values) : type_(type) {
    bytes_.resize(values.size() * static_cast<std::size_t>(size_bytes(type)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      set(i, static_cast<float>(values[i]));
    }
  }

  void set(std::size_t i, float value) {
    if (type_ == DType::kFloat32) {
      std::memcpy(bytes_.data() + 4 * i, &value, 4);
    } else {
      std::uint16_t half = 0;
      narrow(type_, {&value, 1}, {&half, 1});
      std::memcpy(bytes_.data() + 2 * i, &half, 2);
    }
  }

  [[nodiscard]] double at(std::int64_t index) const {
    const auto i = static_cast<std::size_t>(index);
    float value = 0;
    if (type_ == DType::kFloat32) {
      std::memcpy(&value, bytes_.data() + 4 * i, 4);
    } else {
      std::uint16_t half = 0;
      std::memcpy(&half, bytes_.data() + 2 * i, 2);
      widen(type_, {&half, 1}, {&value, 1});
    }
    return static_cast<double>(value);
  }

  [[nodiscard]] void* data() { return bytes_.data(); }

  [[nodiscard]] const void* data() const { return bytes_.data(); }

  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  DType type_;
  std::vector<std::byte> bytes_;
};

using muster::test::uniform_values;

// Row counts with some padding behind each group and some rows between and after groups that belong
// to none.
struct Layout {
  Sizes begins;
  Sizes rows;
  Sizes ends;
  std::int64_t total{0};

  Layout(Sizes counts, std::int64_t multiple, std::int64_t gap) : rows(std::move(counts)) {
    for (const std::int64_t count : rows) {
      begins.push_back(total);
      ends.push_back(total + (count + multiple - 1) / multiple * multiple);
      total = ends.back() + gap;
    }
  }

  [[nodiscard]] RowGroups groups() const { return {begins, rows, ends}; }
};

}  // namespace muster::kernels::test
