// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/parameter_dump.h"

#include <cerrno>
#include <fstream>
#include <span>

namespace muster::moe_lm {

Status dump_parameters(
    const std::filesystem::path& path, int rank, optimizer::Optimizer& optimizer) {
  const std::string name = path.string() + ".rank-" + std::to_string(rank);
  std::ofstream file{name, std::ios::binary | std::ios::trunc};
  for (const optimizer::Parameter& parameter : optimizer.parameters()) {
    file << parameter.spec.name << '\n';
    for (const auto bytes : {std::as_bytes(parameter.value), std::as_bytes(parameter.value16)}) {
      file.write(
          reinterpret_cast<const char*>(bytes.data()),  // NOLINT
          static_cast<std::streamsize>(bytes.size()));
    }
  }
  file.close();
  return file ? Status{} : io_error("cannot write '" + name + "'", errno);
}

}  // namespace muster::moe_lm
