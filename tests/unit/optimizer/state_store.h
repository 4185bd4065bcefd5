// SPDX-License-Identifier: Apache-2.0
// A checkpoint in memory: the merged pieces of all ranks, and a StateSource over them.
#pragma once

#include "tests/unit/optimizer/model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace muster::optimizer {

class StateStore final : public StateSource {
 public:
  // Called by every rank. Pieces must be inside their global tensors and must not overlap.
  void save(Optimizer& optimizer) {
    const std::lock_guard lock{mutex_};
    for (const TensorPiece& tensor : optimizer.state()) {
      add(tensor);
    }
    const auto values = optimizer.state_values();
    if (!values_.empty()) {
      EXPECT_EQ(values_, values) << "ranks save different values";
    }
    values_ = values;
  }

  // After all ranks: every element has been there exactly once.
  void expect_complete() const {
    for (const auto& [name, entry] : entries_) {
      EXPECT_EQ(std::count(entry.covered.begin(), entry.covered.end(), 1), entry.elements) << name;
    }
  }

  const Tensor* find(const std::string& name) override {
    const auto at = entries_.find(name);
    return at == entries_.end() ? nullptr : &at->second.tensor;
  }

  const std::string* value(const std::string& key) override {
    const auto at = values_.find(key);
    return at == values_.end() ? nullptr : &at->second;
  }

  Status read(const std::string& name, std::int64_t begin, std::span<std::byte> out) override {
    if (name == damaged_) {
      return data_loss("'" + name + "' is damaged");
    }
    const Entry& entry = entries_.at(name);
    const auto at = static_cast<std::size_t>(begin) * entry.width;
    EXPECT_LE(at + out.size(), entry.bytes.size()) << name;
    std::memcpy(out.data(), entry.bytes.data() + at, out.size());
    return {};
  }

  std::vector<std::string> names() override {
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries_) {
      names.push_back(name);
    }
    return names;
  }

  // For tests that spoil something.
  struct Entry {
    Tensor tensor;
    std::size_t width{0};
    std::int64_t elements{0};
    std::vector<std::byte> bytes;
    std::vector<char> covered;
  };

  std::map<std::string, Entry>& entries() { return entries_; }

  std::map<std::string, std::string>& values() { return values_; }

  void damage(const std::string& name) { damaged_ = name; }

  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    const Entry& entry = entries_.at(name);
    std::vector<float> values(entry.bytes.size() / sizeof(float));
    std::memcpy(values.data(), entry.bytes.data(), entry.bytes.size());
    return values;
  }

  // Names, types and bytes of everything; shapes may differ between layouts.
  [[nodiscard]] std::map<std::string, std::pair<std::string, std::vector<std::byte>>> contents()
      const {
    std::map<std::string, std::pair<std::string, std::vector<std::byte>>> all;
    for (const auto& [name, entry] : entries_) {
      all[name] = {entry.tensor.dtype, entry.bytes};
    }
    return all;
  }

 private:
  static std::int64_t product(const std::vector<std::int64_t>& shape, std::size_t first = 0) {
    std::int64_t product = 1;
    for (std::size_t axis = first; axis < shape.size(); ++axis) {
      product *= shape[axis];
    }
    return product;
  }

  void add(const TensorPiece& tensor) {
    Entry& entry = entries_[tensor.name];
    const std::size_t width = size_bytes(tensor.dtype);
    if (entry.width == 0) {
      entry.tensor = {std::string{safetensors_name(tensor.dtype)}, tensor.global_shape};
      entry.width = width;
      entry.elements = product(tensor.global_shape);
      entry.bytes.resize(static_cast<std::size_t>(entry.elements) * width);
      entry.covered.assign(static_cast<std::size_t>(entry.elements), 0);
    }
    EXPECT_EQ(entry.tensor.dtype, safetensors_name(tensor.dtype)) << tensor.name;
    EXPECT_EQ(entry.tensor.global_shape, tensor.global_shape) << tensor.name;
    ASSERT_EQ(tensor.shape.size(), tensor.global_shape.size()) << tensor.name;
    for (std::size_t axis = 1; axis < tensor.shape.size(); ++axis) {
      EXPECT_EQ(tensor.shape[axis], tensor.global_shape[axis]) << tensor.name;
      EXPECT_EQ(tensor.offset[axis], 0) << tensor.name;
    }
    const std::int64_t begin = tensor.offset[0] * product(tensor.global_shape, 1);
    const std::int64_t size = product(tensor.shape);
    ASSERT_EQ(static_cast<std::size_t>(size) * width, tensor.data.size()) << tensor.name;
    ASSERT_LE(begin + size, entry.elements) << tensor.name;
    for (std::int64_t i = begin; i < begin + size; ++i) {
      EXPECT_EQ(entry.covered[static_cast<std::size_t>(i)]++, 0)
          << tensor.name << " twice at " << i;
    }
    std::memcpy(
        entry.bytes.data() + static_cast<std::size_t>(begin) * width,
        tensor.data.data(),
        tensor.data.size());
  }

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> values_;
  std::string damaged_;
};

}  // namespace muster::optimizer
