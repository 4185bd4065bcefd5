// What this rank owns of one parameter, with its optimizer state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::optimizer {

struct Shard {
  std::size_t parameter{0};        // index into Routing::parameters
  std::size_t parameter_begin{0};  // first element owned
  std::span<float> value;
  std::span<float> gradient;
  std::vector<float> momentum;       // Adam's m, Muon's M
  std::vector<float> second_moment;  // Adam's v; empty for Muon
};

}  // namespace muster::optimizer
