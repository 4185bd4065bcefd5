#include "agent/src/metrics/layer_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace muster::agent {

void EpTimes::clear() {
  std::fill(waits.begin(), waits.end(), std::chrono::nanoseconds{0});
  plan = {};
  move = {};
  any = false;
}

void EpTimes::add(const parallel::EpEvent& event) {
  for (std::size_t peer = 0; peer < waits.size(); ++peer) {
    waits[peer] += std::chrono::nanoseconds{event.wait_ns[peer]};
  }
  plan += std::chrono::nanoseconds{event.plan_ns};
  move += std::chrono::nanoseconds{event.move_ns};
  any = true;
}

void MetricCatalog::add_layer_metrics() {
  for (std::size_t layer = 0; layers_.modes && layer < layers_.attention_ids.size(); ++layer) {
    add("train_attn_mode", "", layers_.attention_ids[layer]);
  }
  for (std::size_t layer = 0; layer < layers_.moba_heads.size(); ++layer) {
    const int id = layers_.attention_ids[layer];
    const int heads = layers_.moba_heads[layer];
    for (int head = 0; head < heads; ++head) {
      add("train_attn_gate_bound", "", id, head);
      add("train_attn_norm_bound", "", id, head);
    }
    if (heads > 0) {
      for (const char* name :
           {"train_attn_nonfinite_rows",
            "train_attn_query_reach",
            "train_attn_block_reach",
            "train_moba_sink_share",
            "train_moba_gate_margin",
            "train_moba_block_max_over_mean"}) {
        add(name, "", id);
      }
      for (int bin = 0; bin < static_cast<int>(MobaLanes::kBins); ++bin) {
        add("train_moba_block_share", "", id, bin);
      }
    }
  }
  for (int layer = 0; layer < static_cast<int>(layers_.ep_layers); ++layer) {
    for (const char* name :
         {"train_ep_rank_imbalance_ratio",
          "train_ep_copies",
          "train_ep_rows_moved",
          "train_ep_pad_ratio",
          "train_ep_dedup_ratio",
          "train_ep_bytes_out"}) {
      add(name, "", layer);
    }
  }
}

void MetricCatalog::add_ep_rank_metrics() {
  for (int peer = 0; peer < layers_.expert_ranks; ++peer) {
    add("train_ep_wait_seconds", "", -1, peer);
  }
  if (layers_.expert_ranks > 0) {
    add("train_ep_plan_seconds");
    add("train_ep_move_seconds");
  }
}

namespace {

// A maximum of which no rank had any is -infinity.
double known(double maximum) {
  return std::isinf(maximum) && maximum < 0.0 ? kNone : maximum;
}

void put_block_shares(const MobaLanes& moba, Cursor& out) {
  const double total = std::accumulate(moba.bin_counts.begin(), moba.bin_counts.end(), 0.0);
  for (std::size_t bin = 0; bin < MobaLanes::kBins; ++bin) {
    const bool exists = static_cast<double>(bin) < moba.blocks;
    out.put(exists ? ratio(moba.bin_counts[bin], total) : kNone);
  }
}

void put_moba(const MobaLanes& moba, Cursor& out) {
  for (std::size_t head = 0; head < moba.gate_bound.size(); ++head) {
    out.put(known(moba.gate_bound[head]));
    out.put(known(moba.norm_bound[head]));
  }
  out.put(moba.nonfinite_rows);
  out.put(ratio(moba.queries_reached, moba.queries));
  out.put(ratio(moba.blocks_reached, moba.reachable_blocks));
  out.put(ratio(moba.sink_share_sum, moba.sink_share_count));
  out.put(ratio(moba.gate_margin_sum, moba.gate_margin_count));
  out.put(known(moba.block_max_over_mean));
  put_block_shares(moba, out);
}

void put_ep(const EpLanes& ep, int expert_ranks, Cursor& out) {
  const double ranks = expert_ranks;
  const double rows = ep.rows / ranks;
  out.put(known(ep.rank_imbalance));
  out.put(ep.copies / ranks);
  out.put(ep.rows_moved / ranks);
  out.put(ratio(ep.pad_rows / ranks, rows));
  out.put(ratio(rows - ep.dedup_rows, rows));
  out.put(ep.bytes_out);
}

}  // namespace

void put_layers(const StepFacts& facts, const LayerColumns& columns, Cursor& out) {
  for (std::size_t layer = 0; columns.modes && layer < columns.attention_ids.size(); ++layer) {
    const bool given = !facts.modes.empty();
    out.put(!given ? kNone : facts.modes[layer].moba ? 1.0 : 0.0);
  }
  for (std::size_t layer = 0; layer < columns.moba_heads.size(); ++layer) {
    if (columns.moba_heads[layer] > 0) {
      put_moba(facts.lanes.moba[layer], out);
    }
  }
  for (std::size_t layer = 0; layer < columns.ep_layers; ++layer) {
    put_ep(facts.lanes.ep[layer], columns.expert_ranks, out);
  }
}

void put_ep_rank(const StepFacts& facts, const LayerColumns& columns, Cursor& out) {
  const bool any = facts.ep != nullptr && facts.ep->any;
  for (std::size_t peer = 0; peer < static_cast<std::size_t>(columns.expert_ranks); ++peer) {
    out.put(any ? seconds(facts.ep->waits[peer]) : kNone);
  }
  if (columns.expert_ranks > 0) {
    out.put(any ? seconds(facts.ep->plan) : kNone);
    out.put(any ? seconds(facts.ep->move) : kNone);
  }
}

}  // namespace muster::agent
