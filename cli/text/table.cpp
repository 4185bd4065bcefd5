// SPDX-License-Identifier: Apache-2.0
#include "cli/text/table.h"

#include <muster/common/check.h>

#include <algorithm>
#include <utility>

namespace muster::cli {

namespace {

// Columns of a terminal, not bytes: continuation bytes of UTF-8 take no room.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
  }));
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  MUSTER_CHECK(cells.size() == columns_.size(), "one cell per column");
  rows_.push_back(std::move(cells));
}

std::string Table::to_string() const {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) {
    titles.push_back(column.title);
    widths.push_back(width(column.title));
  }
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], width(row[i]));
    }
  }
  std::string out;
  const auto append = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string pad(widths[i] - width(cells[i]), ' ');
      line += columns_[i].align == Align::kRight ? pad + cells[i] : cells[i] + pad;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  append(titles);
  for (const auto& row : rows_) {
    append(row);
  }
  return out;
}

}  // namespace muster::cli
