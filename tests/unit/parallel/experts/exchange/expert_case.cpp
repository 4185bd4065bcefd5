// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/parallel/experts/exchange/expert_case.h"

#include <algorithm>
#include <cstring>

namespace muster::parallel::testing {

namespace {

std::size_t elements(const EpProjection& projection) {
  return static_cast<std::size_t>(projection.rows * projection.cols);
}

float value_of(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return static_cast<float>(static_cast<double>(mix(a, b, c) >> 11U) * 0x1.0p-53 - 0.5);
}

}  // namespace

std::vector<EpProjection> two_projections() {
  return {{16, 64}, {64, 32}};
}

MoveCase expert_case(int ranks, Spread spread, std::uint64_t seed) {
  MoveCase test;
  test.name = "Experts";
  test.shape.ranks = ranks;
  test.shape.experts = 2 * ranks;
  test.shape.top_k = 2;
  test.shape.tokens_max = 24;
  test.shape.padding = 4;
  test.spread = spread;
  test.tokens.assign(static_cast<std::size_t>(ranks), 24);
  test.seed = seed;
  return test;
}

std::size_t expert_heap_bytes(const MoveCase& test, DType weight_type, int layers) {
  std::size_t bytes = heap_bytes(test);
  const std::vector<EpProjection> projections = two_projections();
  bytes += EpPool::heap_bytes(test.shape, projections, weight_type);
  for (const EpProjection& projection : projections) {
    const auto count = static_cast<std::size_t>(test.shape.local_experts()) * elements(projection);
    bytes += static_cast<std::size_t>(layers) *
             (2 * comm::kSymmetricGranularity +
              count * (sizeof(float) + static_cast<std::size_t>(size_bytes(weight_type))));
  }
  return bytes;
}

ExpertSetup::ExpertSetup(
    Member& owner, const MoveCase& of, DType type, int layer_count, bool entry_barriers)
    : member(owner), test(of), weight_type(type), plan(of.shape, of.balance) {
  auto made = EpPool::create(member.heap, test.shape, two_projections(), weight_type);
  if (!made) {
    error = made.status().to_string();
    return;
  }
  pool = std::move(*made);
  const auto local = static_cast<std::size_t>(test.shape.local_experts());
  for (int layer = 0; layer < layer_count; ++layer) {
    std::vector<std::size_t> homes;
    std::vector<std::size_t> gradients;
    for (std::size_t p = 0; p < pool->projections().size(); ++p) {
      const std::size_t count = local * elements(pool->projections()[p]);
      homes.push_back(*member.heap.allocate(
          count * static_cast<std::size_t>(size_bytes(weight_type)), comm::kSymmetricGranularity));
      gradients.push_back(
          *member.heap.allocate(count * sizeof(float), comm::kSymmetricGranularity));
      for (std::size_t e = 0; e < local; ++e) {
        const std::vector<std::byte> bytes =
            encoded(layer, p, member.rank() * static_cast<int>(local) + static_cast<int>(e));
        std::memcpy(
            member.heap.pointer(member.rank(), homes.back()) + e * bytes.size(),
            bytes.data(),
            bytes.size());
      }
    }
    auto mapped = pool->map_layer("layer " + std::to_string(layer), homes, gradients);
    if (!mapped) {
      error = mapped.status().to_string();
      return;
    }
    layers.push_back(std::move(*mapped));
  }
  EpExchangeOptions options = test.options();
  options.entry_barriers = entry_barriers;
  auto moved = EpExchange::create(member.heap, pool.get(), options, soon());
  if (!moved) {
    error = moved.status().to_string();
    return;
  }
  exchange = std::move(*moved);
  error =
      exchange->make_plan(choices_of(test, member.rank()), plan, soon()).ok() ? "" : "make_plan";
}

float ExpertSetup::weight(int layer, std::size_t projection, int expert, std::size_t i) const {
  const float value = value_of(
      static_cast<std::uint64_t>(layer) * 16 + projection, static_cast<std::uint64_t>(expert), i);
  return weight_type == DType::kBFloat16 ? through_bfloat16(value) : value;
}

float ExpertSetup::home_gradient(std::size_t projection, int expert, std::size_t i) {
  return value_of(projection + 900, static_cast<std::uint64_t>(expert), i);
}

float ExpertSetup::slot_gradient(std::size_t projection, int expert, int peer, std::size_t i) {
  return value_of(
      projection + 1000 + 16 * static_cast<std::uint64_t>(peer),
      static_cast<std::uint64_t>(expert),
      i);
}

std::vector<std::byte> ExpertSetup::encoded(int layer, std::size_t projection, int expert) const {
  std::vector<float> values(elements(two_projections()[projection]));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = weight(layer, projection, expert, i);
  }
  return encode(weight_type, values);
}

std::span<const std::byte> ExpertSetup::weights_of_group(
    int layer, std::size_t projection, int group) const {
  const std::size_t bytes =
      elements(pool->projections()[projection]) * static_cast<std::size_t>(size_bytes(weight_type));
  return layers[static_cast<std::size_t>(layer)].projections[projection].weights.subspan(
      static_cast<std::size_t>(group) * bytes, bytes);
}

std::span<float> ExpertSetup::gradients_of_group(
    int layer, std::size_t projection, int group) const {
  const std::size_t count = elements(pool->projections()[projection]);
  return layers[static_cast<std::size_t>(layer)].projections[projection].gradients.subspan(
      static_cast<std::size_t>(group) * count, count);
}

std::span<float> ExpertSetup::home_gradients(int layer, std::size_t projection) const {
  const std::size_t count = static_cast<std::size_t>(test.shape.local_experts()) *
                            elements(pool->projections()[projection]);
  const EpProjectionMemory& memory =
      layers[static_cast<std::size_t>(layer)].projections[projection];
  return {member.heap.at<float>(member.rank(), memory.home_gradient_offset), count};
}

int ExpertSetup::group_of_slot(int slot) const {
  return (test.shape.compact ? test.shape.local_experts() : test.shape.experts) + slot;
}

int ExpertSetup::slot_expert(const EpPlan& of, int peer, int slot) const {
  return of
      .slot_experts[static_cast<std::size_t>(std::int64_t{peer} * test.shape.slot_count() + slot)];
}

void ExpertSetup::fill_home_gradients(int layer) const {
  const int local = test.shape.local_experts();
  for (std::size_t p = 0; p < pool->projections().size(); ++p) {
    const std::size_t count = elements(pool->projections()[p]);
    const std::span<float> all = home_gradients(layer, p);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = home_gradient(p, member.rank() * local + static_cast<int>(i / count), i % count);
    }
  }
}

void ExpertSetup::add_slot_gradients(int layer, const EpPlan& of) const {
  for (int slot = 0; slot < test.shape.slot_count(); ++slot) {
    const int expert = slot_expert(of, member.rank(), slot);
    for (std::size_t p = 0; expert >= 0 && p < pool->projections().size(); ++p) {
      const std::span<float> gradients = gradients_of_group(layer, p, group_of_slot(slot));
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        gradients[i] += slot_gradient(p, expert, member.rank(), i);
      }
    }
  }
}

void ExpertSetup::fill_slots(int byte) const {
  const auto slots = static_cast<std::size_t>(test.shape.slot_count());
  for (std::size_t p = 0; p < pool->projections().size(); ++p) {
    const std::size_t count = slots * elements(pool->projections()[p]);
    std::memset(
        pool->slots(member.rank(), p),
        byte,
        count * static_cast<std::size_t>(size_bytes(weight_type)));
    std::memset(pool->slot_gradients(member.rank(), p), byte, count * sizeof(float));
  }
}

void ExpertSetup::expect_slots_hold(Findings& findings, const EpPlan& of, int layer) const {
  for (int slot = 0; slot < test.shape.slot_count(); ++slot) {
    const int expert = slot_expert(of, member.rank(), slot);
    for (std::size_t p = 0; expert >= 0 && p < pool->projections().size(); ++p) {
      const std::span<const std::byte> held = weights_of_group(layer, p, group_of_slot(slot));
      const std::vector<std::byte> wanted = encoded(layer, p, expert);
      findings.expect(
          std::equal(held.begin(), held.end(), wanted.begin(), wanted.end()),
          "slot " + std::to_string(slot) + " of rank " + std::to_string(member.rank()) +
              " does not hold expert " + std::to_string(expert) + " of layer " +
              std::to_string(layer));
    }
  }
}

void ExpertSetup::expect_reduced(Findings& findings, const EpPlan& of, int layer, int times) const {
  const int local = test.shape.local_experts();
  for (std::size_t p = 0; p < pool->projections().size(); ++p) {
    const std::size_t count = elements(pool->projections()[p]);
    const std::span<float> all = home_gradients(layer, p);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const int expert = member.rank() * local + static_cast<int>(i / count);
      float wanted = home_gradient(p, expert, i % count);
      for (int time = 0; time < times; ++time) {
        for (int peer = 0; peer < test.shape.ranks; ++peer) {
          for (int slot = 0; slot < test.shape.slot_count(); ++slot) {
            wanted += slot_expert(of, peer, slot) == expert
                          ? slot_gradient(p, expert, peer, i % count)
                          : 0.0F;
          }
        }
      }
      findings.expect(
          wanted == all[i],
          "gradient " + std::to_string(i) + " of projection " + std::to_string(p));
    }
  }
}

}  // namespace muster::parallel::testing
