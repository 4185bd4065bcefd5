// SPDX-License-Identifier: Apache-2.0
// Expert parallelism, data movement: sends tokens to the ranks that compute them and back, expert
// weights into slots, and gradients to the home ranks. Everything moves through a symmetric heap;
// on a CPU a copy is a memcpy.
//
//   make_plan ─ dispatch ─ [experts, weights applied] ─ combine            forward
//               prefetch ┘
//   dispatch(saved plan) ─ [experts backward] ─ combine(saved plan)        backward
//                                   └ reduce_gradients
//
// Order in memory: row groups as in plan.h. Inside a group rows are ordered by (source rank, token,
// choice); padding rows are zero; rows past the end of the last group are undefined.
//
// Determinism: combine adds a token's rows in the order of its choices; gradients are added to the
// home rank's first, then by rank and slot. Every repeat gives the same bits, whatever the order of
// arrival.
//
// Collective: all operations, in the same order on all ranks. A rank may have no tokens.
//
// Errors: a Status of the heap's barrier names the rank and the phase. Arguments are checked before
// any data moves, and each operation begins with a validated barrier: if a rank refuses, or passes
// another plan or layer, all ranks return the same Status, which names that rank, and may continue.
// If ranks call different operations, the Status names both and the heap is poisoned. After an
// error the contents of all buffers are unspecified.
//
// Allocates only on creation, and a plan's row_chain at its first make_plan. Thread-safety: one
// thread at a time.
#pragma once

#include <muster/comm/symmetric_heap.h>
#include <muster/common/clock.h>
#include <muster/kernels/low_precision.h>
#include <muster/parallel/experts/event.h>
#include <muster/parallel/experts/plan.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace muster::parallel {

// Format in which partial sums of combine are sent.
enum class EpNumerics : std::uint8_t {
  kPlain,  // fp32 sums of fp32 rows, rounded once at the end where rows are bf16
  // As on a GPU with bf16 rows: the sum of a token's rows on one rank is rounded to bf16 before it
  // is sent, and the sum over ranks is rounded again.
  kWireExact,
};

struct EpExchangeOptions {
  EpShape shape;
  EpBalance balance;
  std::int64_t hidden{0};       // H
  DType type{DType::kFloat32};  // type of rows: kFloat32 or kBFloat16
  EpNumerics numerics{EpNumerics::kPlain};
  // Barriers before peers' slots are written and before they are read. If false, the caller orders
  // these accesses, and disagreement between ranks is detected only after the data has moved.
  bool entry_barriers{true};
  const Clock* clock{nullptr};  // times the operations and must outlive the exchange; null selects
                                // the system clock
};

// One projection of the experts: a matrix [rows, cols] per expert, row-major.
struct EpProjection {
  std::int64_t rows{0};
  std::int64_t cols{0};
};

// The experts of one layer in the address space of a rank. Weights and gradients are stored in the
// heap; the optimizer holds views of the home parts.
struct EpProjectionMemory {
  // [E + B, rows, cols] as one contiguous tensor: the E experts at home on all ranks, then this
  // rank's slots. [m + B] in the compact layout.
  std::span<const std::byte> weights;
  // fp32, the same shape. Backward adds to this rank's own experts and to its slots; the rest
  // belongs to other ranks and must not be accessed.
  std::span<float> gradients;
  // Byte offsets in every rank's chunk.
  std::size_t home_offset{0};           // [m, rows, cols]
  std::size_t home_gradient_offset{0};  // [m, rows, cols] fp32
};

struct EpLayerMemory {
  std::string name;  // shown in messages, such as "layer 3"
  std::vector<EpProjectionMemory> projections;
};

// Gradients are allocated for training only.
enum class EpPoolUse : std::uint8_t { kTraining, kInference };

// The slots of a process and the buffers that accumulate their gradients, [R, B, rows, cols] over
// the group. All layers share one pool, which holds the experts of one layer at a time: backward
// fetches them again. For inference there are neither gradients nor reduce_gradients.
class EpPool {
 public:
  // Collective. m * rows * cols * size of `type` must be a multiple of the heap's granularity for
  // every projection, and for training that of fp32: kInvalidArgument with the numbers.
  [[nodiscard]] static Expected<std::unique_ptr<EpPool>> create(
      comm::SymmetricHeap& heap,
      const EpShape& shape,
      std::vector<EpProjection> projections,
      DType weight_type,
      EpPoolUse use = EpPoolUse::kTraining);

  EpPool() = default;
  EpPool(const EpPool&) = delete;
  EpPool& operator=(const EpPool&) = delete;
  EpPool(EpPool&&) = delete;
  EpPool& operator=(EpPool&&) = delete;
  virtual ~EpPool() = default;

  // Returns the bytes of heap per rank that a pool of this configuration needs.
  [[nodiscard]] static std::size_t heap_bytes(
      const EpShape& shape,
      std::span<const EpProjection> projections,
      DType weight_type,
      EpPoolUse use = EpPoolUse::kTraining);

  // Maps a layer whose home weights and gradients are at these offsets of every rank's chunk
  // (multiples of the granularity), in the order of the projections. For inference there are no
  // gradient offsets. Local.
  [[nodiscard]] virtual Expected<EpLayerMemory> map_layer(
      std::string name,
      std::span<const std::size_t> home_offsets,
      std::span<const std::size_t> home_gradient_offsets) = 0;

  [[nodiscard]] virtual const EpShape& shape() const = 0;
  [[nodiscard]] virtual std::span<const EpProjection> projections() const = 0;
  [[nodiscard]] virtual DType weight_type() const = 0;
  [[nodiscard]] virtual EpPoolUse use() const = 0;
  // The slots of rank `peer`, [B, rows, cols].
  [[nodiscard]] virtual std::byte* slots(int peer, std::size_t projection) const = 0;
  // The same in fp32; null for inference.
  [[nodiscard]] virtual float* slot_gradients(int peer, std::size_t projection) const = 0;
};

// Rows that this rank received. Valid until the next dispatch of the same exchange.
struct EpRows {
  std::span<std::byte> rows;  // [receive_rows, hidden]
  // [receive_rows] gate of each row, 0 on padding. Empty if no gates were sent.
  std::span<float> weights;
};

class EpExchange {
 public:
  // Collective. Allocates heap_bytes() from `heap`. `heap` and `pool` must outlive the exchange; a
  // null `pool` disables prefetch and reduce_gradients, for tests of the row movement.
  [[nodiscard]] static Expected<std::unique_ptr<EpExchange>> create(
      comm::SymmetricHeap& heap, EpPool* pool, const EpExchangeOptions& options, Deadline deadline);

  EpExchange() = default;
  EpExchange(const EpExchange&) = delete;
  EpExchange& operator=(const EpExchange&) = delete;
  EpExchange(EpExchange&&) = delete;
  EpExchange& operator=(EpExchange&&) = delete;
  virtual ~EpExchange() = default;

  [[nodiscard]] static std::size_t heap_bytes(const EpExchangeOptions& options);

  [[nodiscard]] virtual const EpExchangeOptions& options() const = 0;
  [[nodiscard]] virtual EpPlanner& planner() = 0;

  // Makes a plan from choices [tokens, top_k], tokens <= tokens_max. Compares plans by hash across
  // ranks: kDataLoss naming the ranks that differ. If the choices of one rank are refused (an
  // expert out of range), all ranks return a Status that names it.
  [[nodiscard]] virtual Status make_plan(
      std::span<const std::int32_t> choices, EpPlan& plan, Deadline deadline) = 0;

  // Sends x [tokens, hidden] of options().type with gates [tokens, top_k]. If `gates` is empty,
  // only rows are sent, as in the backward pass of combine. `received` is memory of the exchange:
  // the experts may work in place on it and pass it to combine without a copy. Copy rows that must
  // outlive the next dispatch.
  [[nodiscard]] virtual Status dispatch(
      const EpPlan& plan,
      std::span<const std::byte> x,
      std::span<const float> gates,
      EpRows& received,
      Deadline deadline) = 0;

  // y[t] = sum over choices of the rows that dispatch made of token t, unweighted. `rows`
  // [receive_rows, hidden] is the memory of `received` (no copy) or the caller's. row_values
  // [receive_rows] are gathered into values [tokens, top_k], as gradients of gates; both may be
  // empty.
  //
  // Clobbers `rows`: rows of a token on one rank are summed in place. Memory of the exchange must
  // not be written before the next dispatch, since peers may still read it. With bf16 rows and
  // kPlain each row of a token is sent on its own, because their sum would have to be rounded; that
  // takes more bytes than kWireExact.
  [[nodiscard]] virtual Status combine(
      const EpPlan& plan,
      std::span<std::byte> rows,
      std::span<const float> row_values,
      std::span<std::byte> y,
      std::span<float> values,
      Deadline deadline) = 0;

  // Copies the experts that the plan assigns to slots from their home ranks, all projections.
  [[nodiscard]] virtual Status prefetch(
      const EpPlan& plan, const EpLayerMemory& layer, Deadline deadline) = 0;

  // Adds the gradients in the slots of all ranks to those of the home ranks, by rank and slot, then
  // clears the used slots. kFailedPrecondition if the pool is for inference.
  [[nodiscard]] virtual Status reduce_gradients(
      const EpPlan& plan, const EpLayerMemory& layer, Deadline deadline) = 0;

  // Returns the counters since the last call, with the fields of `plan`, and resets them.
  [[nodiscard]] virtual EpEvent take_event(const EpPlan& plan) = 0;
};

}  // namespace muster::parallel
