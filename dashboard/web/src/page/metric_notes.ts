// SPDX-License-Identifier: Apache-2.0
// Labels, units and one-line descriptions of the metrics of attention and experts.

export interface MetricNote {
  name: string;
  label: string; // in menus
  unit: string;
  what: string;
}

// One curve per layer.
export const ATTENTION_CURVES: MetricNote[] = [
  { name: "train_attn_block_reach", label: "block reach", unit: "ratio",
    what: "Share of (KV head, block) pairs that tokens with a gradient attend to. Low: the loss covers few tokens and so trains few keys; more layers with full attention help." },
  { name: "train_attn_query_reach", label: "query reach", unit: "ratio",
    what: "Share of tokens whose attention output gets a gradient. In the last layer: the share of tokens with a loss." },
  { name: "train_moba_sink_share", label: "sink share", unit: "ratio",
    what: "Share of block 0 among the chosen past blocks. Near 1 / (k − 1): every query uses one of its choices for it." },
  { name: "train_moba_gate_margin", label: "gate margin", unit: "gate score",
    what: "Mean difference between the k-th and the (k+1)-th gate score. Near 0: the choice of blocks is noise." },
  { name: "train_moba_block_max_over_mean", label: "busiest block over mean", unit: "ratio",
    what: "How often the most chosen block is chosen, relative to the mean over all blocks." },
  { name: "train_attn_nonfinite_rows", label: "non-finite rows", unit: "rows per step",
    what: "Query rows whose logits contain NaN or infinity. The max logit ignores them and may look healthy." },
];

// One row per head or bin of a layer.
export const ATTENTION_MAPS: MetricNote[] = [
  { name: "train_attn_logit_max", label: "max logit", unit: "layer · head",
    what: "Largest scaled logit of each head over all pairs that attention computed." },
  { name: "train_attn_gate_bound", label: "gate bound", unit: "layer · head",
    what: "Lower bound of the largest logit in the blocks that were not chosen, from the gate scores." },
  { name: "train_attn_norm_bound", label: "norm bound", unit: "layer · head",
    what: "Largest |q| times largest |k|, scaled: an upper bound of all logits of the head." },
  { name: "train_moba_block_share", label: "chosen blocks", unit: "layer · part of the sequence",
    what: "Share of all choices that fall into each part of the sequence, with the first part on top." },
];

// One curve per layer of experts.
export const EXPERT_CURVES: MetricNote[] = [
  { name: "train_ep_rank_imbalance_ratio", label: "rank imbalance ρ", unit: "max / mean",
    what: "Load of the busiest rank over the mean, before balancing. If it rises while maxvio is flat, busy experts share a rank." },
  { name: "train_ep_copies", label: "expert copies", unit: "per step",
    what: "Experts that were prefetched to other ranks to balance the load." },
  { name: "train_ep_rows_moved", label: "rows moved", unit: "rows per step",
    what: "Rows that left the home rank of their expert because of balancing." },
  { name: "train_ep_pad_ratio", label: "padding", unit: "ratio",
    what: "Padded rows over real rows, minus 1: wasted work." },
  { name: "train_ep_dedup_ratio", label: "wire after dedup", unit: "ratio",
    what: "Rows on the wire over tokens · top k. 1: nothing is saved. A token with several experts on one rank is sent once." },
  { name: "train_ep_bytes_out", label: "bytes sent", unit: "bytes per step",
    what: "Bytes that all ranks together sent to other ranks." },
];

// One curve per rank.
export const EXPERT_TIMES: MetricNote[] = [
  { name: "train_ep_plan_seconds", label: "planning", unit: "per rank",
    what: "Time a rank spent on computing the placement of experts." },
  { name: "train_ep_move_seconds", label: "moving", unit: "per rank",
    what: "Time a rank spent on sending rows and weights, without waits." },
];
