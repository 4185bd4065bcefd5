// SPDX-License-Identifier: Apache-2.0
#include "agent/src/verdict/layer_lanes.h"

#include <muster/common/check.h>

#include <algorithm>
#include <array>

namespace muster::agent {
namespace {

// Written and read in this order.
constexpr std::array kMobaSums{
    &MobaLanes::nonfinite_rows,
    &MobaLanes::sink_share_sum,
    &MobaLanes::sink_share_count,
    &MobaLanes::gate_margin_sum,
    &MobaLanes::gate_margin_count,
    &MobaLanes::queries_reached,
    &MobaLanes::queries,
    &MobaLanes::blocks_reached,
    &MobaLanes::reachable_blocks};
constexpr std::array kMobaMaxima{&MobaLanes::block_max_over_mean, &MobaLanes::blocks};
constexpr std::array kMobaBounds{&MobaLanes::gate_bound, &MobaLanes::norm_bound};

constexpr std::array kEpSums{
    &EpLanes::copies,
    &EpLanes::rows_moved,
    &EpLanes::pad_rows,
    &EpLanes::rows,
    &EpLanes::dedup_rows,
    &EpLanes::bytes_out};

// The lanes of a layer; a rank without records has an empty vector.
const MobaLanes& moba_of(const LocalLanes& lanes, std::size_t layer) {
  static const MobaLanes kNothing;
  return lanes.moba.empty() ? kNothing : lanes.moba[layer];
}

const EpLanes& ep_of(const LocalLanes& lanes, std::size_t layer) {
  static const EpLanes kNothing;
  return lanes.ep.empty() ? kNothing : lanes.ep[layer];
}

}  // namespace

void MobaLanes::clear() {
  std::fill(gate_bound.begin(), gate_bound.end(), kAbsent);
  std::fill(norm_bound.begin(), norm_bound.end(), kAbsent);
  bin_counts.fill(0);
  for (const auto field : kMobaSums) {
    this->*field = 0;
  }
  block_max_over_mean = kAbsent;
  blocks = 0;
}

std::size_t layer_sum_size(const LaneLayout& layout) {
  const auto moba_layers = std::count_if(
      layout.moba_heads.begin(), layout.moba_heads.end(), [](int heads) { return heads > 0; });
  return static_cast<std::size_t>(moba_layers) * (kMobaSums.size() + MobaLanes::kBins) +
         layout.ep_layers * kEpSums.size();
}

std::size_t layer_max_size(const LaneLayout& layout) {
  std::size_t size = layout.ep_layers;
  for (const int heads : layout.moba_heads) {
    size +=
        heads > 0 ? kMobaMaxima.size() + kMobaBounds.size() * static_cast<std::size_t>(heads) : 0;
  }
  return size;
}

void check_layer_shapes(const LaneLayout& layout, const LocalLanes& lanes) {
  MUSTER_CHECK(
      lanes.moba.empty() || lanes.moba.size() == layout.moba_heads.size(),
      "block attention of all layers or of none");
  MUSTER_CHECK(
      lanes.ep.empty() || lanes.ep.size() == layout.ep_layers,
      "expert parallelism of all layers or of none");
}

bool has_nonfinite_rows(const LocalLanes& lanes) {
  return std::any_of(lanes.moba.begin(), lanes.moba.end(), [](const MobaLanes& layer) {
    return layer.nonfinite_rows > 0;
  });
}

void encode_layer_sums(const LaneLayout& layout, const LocalLanes& lanes, LaneWriter& out) {
  for (std::size_t layer = 0; layer < layout.moba_heads.size(); ++layer) {
    if (layout.moba_heads[layer] > 0) {
      const MobaLanes& moba = moba_of(lanes, layer);
      for (const auto field : kMobaSums) {
        out.lenient(moba.*field);
      }
      for (const double count : moba.bin_counts) {
        out.lenient(count);
      }
    }
  }
  for (std::size_t layer = 0; layer < layout.ep_layers; ++layer) {
    for (const auto field : kEpSums) {
      out.lenient(ep_of(lanes, layer).*field);
    }
  }
}

void encode_layer_maxima(const LaneLayout& layout, const LocalLanes& lanes, LaneWriter& out) {
  for (std::size_t layer = 0; layer < layout.moba_heads.size(); ++layer) {
    const auto heads = static_cast<std::size_t>(layout.moba_heads[layer]);
    if (heads == 0) {
      continue;
    }
    const MobaLanes& moba = moba_of(lanes, layer);
    for (const auto field : kMobaMaxima) {
      out.raw(moba.*field);
    }
    for (const auto field : kMobaBounds) {
      const std::vector<double>& bounds = moba.*field;
      for (std::size_t head = 0; head < heads; ++head) {
        if (bounds.empty()) {
          out.raw(kAbsent);
        } else {
          out.raw(bounds[head]);
        }
      }
    }
  }
  for (std::size_t layer = 0; layer < layout.ep_layers; ++layer) {
    out.raw(ep_of(lanes, layer).rank_imbalance);
  }
}

void decode_layer_sums(const LaneLayout& layout, LaneReader& in, ReducedLanes& out) {
  out.moba.resize(layout.moba_heads.size());
  for (std::size_t layer = 0; layer < layout.moba_heads.size(); ++layer) {
    if (layout.moba_heads[layer] > 0) {
      MobaLanes& moba = out.moba[layer];
      for (const auto field : kMobaSums) {
        moba.*field = in.next();
      }
      std::generate(moba.bin_counts.begin(), moba.bin_counts.end(), [&in] { return in.next(); });
    }
  }
  out.ep.resize(layout.ep_layers);
  for (EpLanes& ep : out.ep) {
    for (const auto field : kEpSums) {
      ep.*field = in.next();
    }
  }
}

void decode_layer_maxima(const LaneLayout& layout, LaneReader& in, ReducedLanes& out) {
  for (std::size_t layer = 0; layer < layout.moba_heads.size(); ++layer) {
    if (layout.moba_heads[layer] == 0) {
      continue;
    }
    MobaLanes& moba = out.moba[layer];
    for (const auto field : kMobaMaxima) {
      moba.*field = in.next();
    }
    for (const auto field : kMobaBounds) {
      std::vector<double>& bounds = moba.*field;
      bounds.resize(static_cast<std::size_t>(layout.moba_heads[layer]));
      std::generate(bounds.begin(), bounds.end(), [&in] { return in.next(); });
    }
  }
  for (EpLanes& ep : out.ep) {
    ep.rank_imbalance = in.next();
  }
}

}  // namespace muster::agent
