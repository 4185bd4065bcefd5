// SPDX-License-Identifier: Apache-2.0
#include "collector/src/run_directory.h"

#include <algorithm>

namespace muster::collector {

void RunDirectory::load(const std::vector<store::RunLine>& lines) {
  for (const store::RunLine& line : lines) {
    lines_[line.base.empty() ? line.name : line.base].push_back(line);
    names_.insert(line.name);
  }
}

store::RunLine RunDirectory::line_of(const Identity& identity) {
  store::RunLine& line = find_or_add(identity);
  line.generation = std::max(line.generation, identity.generation);
  return line;
}

store::RunLine& RunDirectory::find_or_add(const Identity& identity) {
  std::vector<store::RunLine>& lines = lines_[identity.run_id];
  const auto same = std::find_if(lines.begin(), lines.end(), [&](const store::RunLine& line) {
    return line.uid == identity.run_uid;
  });
  if (!lines.empty() && identity.run_uid.empty()) {
    return lines.back();
  }
  if (same != lines.end()) {
    return *same;
  }
  if (!lines.empty() && lines.back().uid.empty() && identity.generation > lines.back().generation) {
    lines.back().uid = identity.run_uid;
    return lines.back();
  }
  std::string name = identity.run_id;
  for (std::size_t number = lines.size() + 1; !lines.empty() && names_.contains(name); ++number) {
    name = identity.run_id + "#" + std::to_string(number);
  }
  while (!names_.insert(name).second) {
    name += "#2";  // Somebody calls a run `exp#2`.
  }
  const std::string base = name == identity.run_id ? "" : identity.run_id;
  lines.push_back({name, base, identity.run_uid, identity.generation});
  return lines.back();
}

}  // namespace muster::collector
