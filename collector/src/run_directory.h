// SPDX-License-Identifier: Apache-2.0
// Which line a process belongs to: runs are told apart by their uid, not by their name. A run that
// comes under the name of another one gets a line of its own.
//
// A process without a uid (an older muster, or no launcher) belongs to the newest line of its
// name. A line without one is taken over by the next generation of its name.
#pragma once

#include <muster/common/ids.h>
#include <muster/store/store.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace muster::collector {

class RunDirectory {
 public:
  void load(const std::vector<store::RunLine>& lines);

  // The line of this process; a new one if it has none yet.
  [[nodiscard]] store::RunLine line_of(const Identity& identity);

 private:
  [[nodiscard]] store::RunLine& find_or_add(const Identity& identity);

  std::map<std::string, std::vector<store::RunLine>> lines_;  // By asked name, oldest first.
  std::set<std::string> names_;                               // Of all lines.
};

}  // namespace muster::collector
