// SPDX-License-Identifier: Apache-2.0
// An exchange with a pool and layers, whose weights and gradients identify their expert.
#pragma once

#include "tests/unit/parallel/experts/exchange/case.h"

#include <vector>

namespace muster::parallel::testing {

// Two projections of different sizes; 16 x 64 of bf16 is half a page, so two experts per rank fill
// one.
[[nodiscard]] std::vector<EpProjection> two_projections();

[[nodiscard]] std::size_t expert_heap_bytes(const MoveCase& test, DType weight_type, int layers);

struct ExpertSetup {
  // Fails into `error`.
  ExpertSetup(
      Member& owner, const MoveCase& of, DType type, int layer_count, bool entry_barriers = true);

  // Element i of expert e of a layer's projection; of the type's values.
  [[nodiscard]] float weight(int layer, std::size_t projection, int expert, std::size_t i) const;
  // Values of the home's own gradient, and of the one that rank `peer` adds to its slot.
  [[nodiscard]] static float home_gradient(std::size_t projection, int expert, std::size_t i);
  [[nodiscard]] static float slot_gradient(
      std::size_t projection, int expert, int peer, std::size_t i);

  // One expert of the layer's view, by group.
  [[nodiscard]] std::span<const std::byte> weights_of_group(
      int layer, std::size_t projection, int group) const;
  [[nodiscard]] std::span<float> gradients_of_group(
      int layer, std::size_t projection, int group) const;
  [[nodiscard]] std::span<float> home_gradients(int layer, std::size_t projection) const;

  [[nodiscard]] std::vector<std::byte> encoded(int layer, std::size_t projection, int expert) const;
  [[nodiscard]] int group_of_slot(int slot) const;
  [[nodiscard]] int slot_expert(const EpPlan& of, int peer, int slot) const;

  void fill_home_gradients(int layer) const;
  // Adds slot_gradient to the gradients of this rank's used slots, through the layer's view.
  void add_slot_gradients(int layer, const EpPlan& of) const;
  // Every byte of this rank's slots, weights and gradients.
  void fill_slots(int byte) const;

  // Checks that this rank's slots hold the plan's experts of the layer.
  void expect_slots_hold(Findings& findings, const EpPlan& of, int layer) const;
  // Checks that home gradients are home first, then by rank and slot, bit by bit; `times`
  // reductions.
  void expect_reduced(Findings& findings, const EpPlan& of, int layer, int times) const;

  Member& member;
  MoveCase test;
  DType weight_type;
  std::unique_ptr<EpPool> pool;
  std::unique_ptr<EpExchange> exchange;
  std::vector<EpLayerMemory> layers;
  EpPlan plan;
  std::string error;
};

// Skewed routings whose plans have slots: fp32 and bf16 weights' cases alike.
[[nodiscard]] MoveCase expert_case(int ranks, Spread spread, std::uint64_t seed);

}  // namespace muster::parallel::testing
