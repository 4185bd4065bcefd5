// What this rank stores of one parameter, with its optimizer states.
#pragma once

#include "src/layout.h"

#include <muster/kernels/update_kernels.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::optimizer {

// Memory of one optimizer state. Blocks of 8-bit states count from the shard's first element; cuts
// lie on block boundaries of their unit, and a unit's last block may be short, so a shard that spans
// several units has its blocks restart at each.
struct StateBuffer {
  StateType type{StateType::kFloat32};
  bool is_signed{true};
  std::uint64_t tensor{0};      // key of its stochastic rounding
  std::vector<std::byte> data;  // elements in storage type
  std::vector<float> absmax;    // kInt8Block
};

struct Shard {
  Piece piece;
  std::span<float> value;       // fp32 parameters: in the region; 16-bit ones: `master`
  std::span<float> gradient;
  std::span<std::uint16_t> narrow_copy;  // in the region; empty for fp32 parameters
  std::vector<float> master;
  StateBuffer first;   // Adam's m, momentum, Muon's M
  StateBuffer second;  // v
};

}  // namespace muster::optimizer
