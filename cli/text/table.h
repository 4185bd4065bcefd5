// SPDX-License-Identifier: Apache-2.0
// A table with aligned columns for a terminal.
#pragma once

#include <string>
#include <vector>

namespace muster::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align{Align::kLeft};
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns.
  void add(std::vector<std::string> cells);

  // Title line and rows, two spaces between columns, no trailing spaces.
  [[nodiscard]] std::string to_string() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace muster::cli
