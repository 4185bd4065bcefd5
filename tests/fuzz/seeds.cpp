// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/seeds.h"

#include "checkpoint/src/manifest.h"
#include "checkpoint/src/rank_record.h"
#include "checkpoint/src/safetensors.h"
#include "parallel/src/experts/trace/format.h"
#include "tests/unit/wire/message_samples.h"

#include <muster/common/check.h>
#include <muster/common/file.h>
#include <muster/wire/codec.h>

#include <cstring>
#include <span>

namespace muster::fuzz {

namespace {

using Seeds = std::vector<std::string>;

const std::string kRoot = MUSTER_SOURCE_DIR;
const std::string kCheckpoint = kRoot + "/tests/golden/checkpoints/muon/step-4.gen-1/";

std::string text_of(std::span<const std::byte> bytes) {
  std::string text(bytes.size(), '\0');
  std::memcpy(text.data(), bytes.data(), bytes.size());
  return text;
}

Seeds wire_seeds() {
  Seeds seeds;
  std::vector<std::byte> stream;
  for (const auto& [name, message] : wire::all_messages()) {
    const std::size_t begin = stream.size();
    MUSTER_CHECK(wire::append_frame(message, stream).ok(), name);
    seeds.push_back(text_of(std::span{stream}.subspan(begin)));
  }
  seeds.push_back(text_of(stream));
  return seeds;
}

std::string safetensors_seed(std::uint64_t data_bytes, const std::string& header) {
  const std::uint64_t file_bytes = header.size() + data_bytes;
  std::string seed(sizeof(file_bytes), '\0');
  std::memcpy(seed.data(), &file_bytes, sizeof(file_bytes));
  return seed + header;
}

Seeds safetensors_seeds() {
  using namespace checkpoint;
  const std::vector<TensorEntry> tensors{
      {"a", "F32", {2, 3}, 0, 24}, {"b", "BF16", {0, 4}, 24, 24}, {"c", "F4", {2}, 24, 25}};
  Seeds seeds{
      safetensors_seed(25, encode_header(tensors, {{"step", "4"}}).value()),
      safetensors_seed(0, encode_header({}, {}).value())};
  const std::string file = read_file(kCheckpoint + "rank-0.safetensors").value();
  const std::uint64_t length =
      decode_header_length(std::as_bytes(std::span{file.data(), file.size()}), file.size()).value();
  const std::string header = file.substr(0, kHeaderLengthBytes + length);
  seeds.push_back(safetensors_seed(file.size() - header.size(), header));
  return seeds;
}

Seeds checkpoint_seeds() {
  using namespace checkpoint;
  Manifest manifest;
  manifest.run_id = "run";
  manifest.world_size = 2;
  manifest.files = {{"rank-0.json", 7, std::string(32, 'a')}};
  manifest.tensors = {{"w", {"F32", {2, 3}}}};
  RankRecord record;
  record.identity.run_id = "run";
  record.file = "rank-0.safetensors";
  record.pieces = {{{"w", "F32", {1, 3}, {2, 3}, {1, 0}}, 0, 12, std::string(32, 'b')}};
  record.values = {{"text", "value"}, {"bytes", "\xff\x01"}};
  return {
      encode_manifest(manifest),
      encode_record(record).value(),
      read_file(kCheckpoint + "MANIFEST.json").value(),
      read_file(kCheckpoint + "rank-0.json").value()};
}

Seeds plan_trace_seeds() {
  using namespace parallel;
  EpTraceHeader header;
  header.shape.ranks = 2;
  header.shape.experts = 4;
  header.shape.top_k = 2;
  header.shape.tokens_max = 4;
  header.balance.mode = EpBalanceMode::kTolerant;
  header.balance.tolerance = 0.125;
  header.balance.speeds = {1, 0.75};
  std::vector<std::byte> bytes;
  encode_header(header, bytes);
  std::string trace = text_of(bytes);
  Seeds seeds{trace};
  EpPlan plan;
  plan.shape = header.shape;
  plan.tokens = 3;
  plan.counts = {1, 2, 1, 2, 0, 3, 3, 0};
  const std::vector<std::int32_t> choices{0, 1, 1, 2, 3, 3};
  for (const std::int64_t step : {0, 1}) {
    encode_record(
        1, step, plan, step == 0 ? std::span{choices} : std::span{choices}.first(0), bytes);
    trace += text_of(bytes);
    seeds.push_back(trace);
  }
  // A small record of a shape whose counts would take 512 MiB.
  header.shape.ranks = 128;
  header.shape.experts = 1 << 20;
  header.balance = {};
  encode_header(header, bytes);
  trace = text_of(bytes);
  encode_record(1, 0, EpPlan{}, choices, bytes);
  seeds.push_back(trace + text_of(bytes));
  return seeds;
}

Seeds policy_seeds() {
  return {
      read_file(kRoot + "/examples/policy.yaml").value(),
      "version: 1\nmax_logit_threshold: 50\ndetectors:\n  expert_imbalance: {z: 5, steps: 8}\n"
      "rules:\n  - {name: a, finding: max_logit, subject: layer 0 head 0, actions: [arm_qk_clip]}\n"
      "  - {name: b, finding: no_progress, actions: [stop], dry_run: false, budget: 1}\n"};
}

}  // namespace

std::map<std::string, Seeds> all_seeds() {
  return {
      {"checkpoint", checkpoint_seeds()},
      {"plan_trace", plan_trace_seeds()},
      {"policy", policy_seeds()},
      {"safetensors", safetensors_seeds()},
      {"wire", wire_seeds()}};
}

}  // namespace muster::fuzz
