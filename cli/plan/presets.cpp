// SPDX-License-Identifier: Apache-2.0
// Models to plan without writing a file; `--print-model` shows them as a start for one.
#include "cli/plan/model.h"

#include <array>

namespace muster::cli {

namespace {

constexpr std::string_view kDense7b =
    R"(# A dense transformer of 7.2e9 parameters with grouped-query attention, after Mistral 7B.
model: dense_7b
ranks: 64
parameters:
  - {name: embedding, shape: [32000, 4096], dtype: bf16}
  - count: 32
    parameters:
      - {name: "layers.{i}.attention_norm", shape: [4096], dtype: bf16}
      - {name: "layers.{i}.wq", shape: [4096, 4096], dtype: bf16}
      - {name: "layers.{i}.wk", shape: [1024, 4096], dtype: bf16}
      - {name: "layers.{i}.wv", shape: [1024, 4096], dtype: bf16}
      - {name: "layers.{i}.wo", shape: [4096, 4096], dtype: bf16}
      - {name: "layers.{i}.ffn_norm", shape: [4096], dtype: bf16}
      - {name: "layers.{i}.gate", shape: [14336, 4096], dtype: bf16}
      - {name: "layers.{i}.up", shape: [14336, 4096], dtype: bf16}
      - {name: "layers.{i}.down", shape: [4096, 14336], dtype: bf16}
  - {name: final_norm, shape: [4096], dtype: bf16}
  - {name: lm_head, shape: [32000, 4096], dtype: bf16}
routes:
  - {pattern: embedding, rule: adamw, group: embedding}
  - {pattern: lm_head, rule: adamw, group: head}
  - {pattern: "*norm", rule: adamw, group: norm}
  - {pattern: "layers.*", rule: muon, group: hidden, weight_decay: 0.1}
)";

constexpr std::string_view kMoe =
    R"(# A mixture of experts of 1.0e12 parameters, the shapes of Kimi K2: 61 layers, 384 experts and one
# shared in all but the first, latent attention. Dimension 0 of an expert parameter counts the
# model's experts; the plan divides them over ranks / expert_ranks expert-parallel ranks.
model: moe
ranks: 1024
expert_ranks: 8
parameters:
  - {name: embedding, shape: [163840, 7168], dtype: bf16}
  - {name: dense.gate, shape: [18432, 7168], dtype: bf16}
  - {name: dense.up, shape: [18432, 7168], dtype: bf16}
  - {name: dense.down, shape: [7168, 18432], dtype: bf16}
  - count: 61
    parameters:
      - {name: "layers.{i}.attention_norm", shape: [7168], dtype: bf16}
      - {name: "layers.{i}.q_down", shape: [1536, 7168], dtype: bf16}
      - {name: "layers.{i}.q_norm", shape: [1536], dtype: bf16}
      - {name: "layers.{i}.q_up", shape: [12288, 1536], dtype: bf16}
      - {name: "layers.{i}.kv_down", shape: [576, 7168], dtype: bf16}
      - {name: "layers.{i}.kv_norm", shape: [512], dtype: bf16}
      - {name: "layers.{i}.kv_up", shape: [16384, 512], dtype: bf16}
      - {name: "layers.{i}.attention_out", shape: [7168, 8192], dtype: bf16}
      - {name: "layers.{i}.ffn_norm", shape: [7168], dtype: bf16}
  - count: 60
    parameters:
      - {name: "moe.{i}.router", shape: [384, 7168]}
      - {name: "moe.{i}.shared_gate", shape: [2048, 7168], dtype: bf16}
      - {name: "moe.{i}.shared_up", shape: [2048, 7168], dtype: bf16}
      - {name: "moe.{i}.shared_down", shape: [7168, 2048], dtype: bf16}
      - {name: "moe.{i}.experts_gate", shape: [384, 2048, 7168], dtype: bf16, placement: expert}
      - {name: "moe.{i}.experts_up", shape: [384, 2048, 7168], dtype: bf16, placement: expert}
      - {name: "moe.{i}.experts_down", shape: [384, 7168, 2048], dtype: bf16, placement: expert}
  - {name: final_norm, shape: [7168], dtype: bf16}
  - {name: lm_head, shape: [163840, 7168], dtype: bf16}
routes:
  - {pattern: embedding, rule: adamw, group: embedding}
  - {pattern: lm_head, rule: adamw, group: head}
  - {pattern: "*norm", rule: adamw, group: norm}
  - {pattern: "*router", rule: adamw, group: router}
  - {pattern: "moe.*.experts_*", rule: muon, group: experts, weight_decay: 0.1}
  - {pattern: "layers.*", rule: muon, group: hidden, weight_decay: 0.1}
  - {pattern: "moe.*", rule: muon, group: hidden, weight_decay: 0.1}
  - {pattern: "dense.*", rule: muon, group: hidden, weight_decay: 0.1}
)";

constexpr std::array kPresets{
    Preset{"dense_7b", "dense transformer, 7.2e9 parameters, 224 matrices", kDense7b},
    Preset{"moe", "mixture of 384 experts, 1.0e12 parameters", kMoe}};

}  // namespace

std::span<const Preset> presets() {
  return kPresets;
}

}  // namespace muster::cli
