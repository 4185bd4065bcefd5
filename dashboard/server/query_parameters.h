// SPDX-License-Identifier: Apache-2.0
// The parameters after "?", read with their type and bounds.
//
// Every error is kInvalidArgument and names the parameter, what came and what is expected.
#pragma once

#include <muster/common/expected.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace muster::dashboard {

class QueryParameters {
 public:
  // `values` must outlive this.
  explicit QueryParameters(const std::map<std::string, std::string>& values) : values_(&values) {}

  // `fallback` when the parameter is absent or empty.
  [[nodiscard]] Expected<std::int64_t> integer(
      const std::string& name, std::int64_t fallback, std::int64_t min, std::int64_t max) const;

  // "3,5-9,12": numbers >= 0 and inclusive ranges of them, in the order written, at most
  // `count_max`. Empty when absent.
  [[nodiscard]] Expected<std::vector<std::int64_t>> id_list(
      const std::string& name, std::size_t count_max) const;

 private:
  const std::map<std::string, std::string>* values_;
};

}  // namespace muster::dashboard
