// SPDX-License-Identifier: Apache-2.0
// Builds text in the Prometheus exposition format 0.0.4: one HELP and TYPE per family, its samples
// together, labels escaped.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::collector {

using Labels = std::vector<std::pair<std::string, std::string>>;

class Exposition {
 public:
  // `type`: "gauge" or "counter". The first call for a name fixes help and type. Characters that a
  // metric name cannot have become '_'.
  void add(
      std::string_view name,
      std::string_view type,
      std::string_view help,
      const Labels& labels,
      double value);

  [[nodiscard]] std::string text() const;

 private:
  struct Family {
    std::string type;
    std::string help;
    std::string samples;
  };

  std::map<std::string, Family> families_;
};

}  // namespace muster::collector
