// SPDX-License-Identifier: Apache-2.0
// fuzz_seeds FOLDER: writes the seeds of each target to FOLDER/<target>/<number>.
#include "tests/fuzz/seeds.h"

#include <filesystem>
#include <fstream>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: fuzz_seeds FOLDER\n";
    return 2;
  }
  for (const auto& [target, seeds] : muster::fuzz::all_seeds()) {
    const std::filesystem::path folder = std::filesystem::path{argv[1]} / target;
    std::filesystem::create_directories(folder);
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      const std::filesystem::path path = folder / ("seed-" + std::to_string(i));
      if (!(std::ofstream{path, std::ios::binary} << seeds[i] << std::flush)) {
        std::cerr << "fuzz_seeds: cannot write " << path.string() << "\n";
        return 1;
      }
    }
  }
}
