// Expert parallelism, the movement: tokens to the ranks that compute them and back, expert weights
// into slots, gradients home. All through a symmetric heap; on a CPU a copy is a memcpy.
//
//   make_plan ─ dispatch ─ [experts, weights applied] ─ combine            forward
//               prefetch ┘
//   dispatch(saved plan) ─ [experts backward] ─ combine(saved plan)        backward
//                                   └ reduce_gradients
//
// Order in memory: row groups of plan.h; inside a group rows are ordered by (source rank, token,
// choice); padding rows are zero; rows past the last end are not defined.
//
// Determinism: combine adds a token's rows in the order of its choices, gradients are added home
// first, then by rank and slot: the same bits on every repeat, whatever arrives when.
//
// Collective: all operations, in the same order on all ranks. A rank may have no tokens. Errors: a
// Status of the heap's barrier names the rank and the phase. Arguments are checked before anything
// moves, and each operation begins with a meeting of all ranks: where one refuses, or brings
// another plan or layer, all return the same Status, which names it, and may go on. Ranks that call
// different operations learn which, and the heap is poisoned. After an error contents are
// unspecified. Nothing allocates after creation, but for a plan's links at its first make_plan.
// Thread-safety: one thread at a time.
#pragma once

#include <muster/comm/symmetric_heap.h>
#include <muster/kernels/low_precision.h>
#include <muster/parallel/experts/event.h>
#include <muster/parallel/experts/plan.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace muster::parallel {

// How partial sums of combine cross the wire.
enum class EpNumerics : std::uint8_t {
  kPlain,  // fp32 sums of fp32 rows, rounded once at the end where rows are bf16
  // As a GPU does it with bf16 rows: the sum of a token's rows on one rank is rounded to bf16
  // before it is sent, the sum over ranks again.
  kWireExact,
};

struct EpExchangeOptions {
  EpShape shape;
  EpBalance balance;
  std::int64_t hidden{0};                                 // H
  kernels::FloatType type{kernels::FloatType::kFloat32};  // of rows: kFloat32 or kBFloat16
  EpNumerics numerics{EpNumerics::kPlain};
  // Before peers' slots are written and before they are read. Off: the caller orders them, and what
  // ranks do not agree about is found when it has moved.
  bool entry_barriers{true};
};

// One projection of the experts: a matrix [rows, cols] per expert, row-major.
struct EpProjection {
  std::int64_t rows{0};
  std::int64_t cols{0};
};

// The experts of one layer as every rank sees them. Weights and gradients live in the heap; the
// optimizer holds views of `home` and `home_gradient`.
struct EpProjectionMemory {
  // [E + B, rows, cols] as one contiguous tensor: rows 0..E-1 all homes, then this rank's slots.
  // Compact: [m + B].
  std::span<const std::byte> weights;
  // fp32, the same shape. Backward adds to this rank's own experts and to its slots; the rest is of
  // other ranks and not to be touched.
  std::span<float> gradients;
  // Byte offsets in every rank's chunk.
  std::size_t home_offset{0};           // [m, rows, cols]
  std::size_t home_gradient_offset{0};  // [m, rows, cols] fp32
};

struct EpLayerMemory {
  std::string name;  // in messages: "layer 3"
  std::vector<EpProjectionMemory> projections;
};

// The slots: one pool of the process, shared by all layers (it holds the experts of one layer at a
// time: backward fetches them again), and the buffers their gradients gather in. [R, B, rows, cols]
// over the group.
class EpPool {
 public:
  // Collective. m * rows * cols * size of `type` must be a multiple of the heap's granularity for
  // every projection, and that of fp32: kInvalidArgument with the numbers.
  [[nodiscard]] static Expected<std::unique_ptr<EpPool>> create(
      comm::SymmetricHeap& heap,
      const EpShape& shape,
      std::vector<EpProjection> projections,
      kernels::FloatType weight_type);

  EpPool() = default;
  EpPool(const EpPool&) = delete;
  EpPool& operator=(const EpPool&) = delete;
  EpPool(EpPool&&) = delete;
  EpPool& operator=(EpPool&&) = delete;
  virtual ~EpPool() = default;

  // Bytes of heap per rank that a pool of this configuration takes.
  [[nodiscard]] static std::size_t heap_bytes(
      const EpShape& shape,
      std::span<const EpProjection> projections,
      kernels::FloatType weight_type);

  // A layer whose home weights and gradients lie at these offsets of every rank's chunk (multiples
  // of the granularity), in the order of the projections. Local.
  [[nodiscard]] virtual Expected<EpLayerMemory> map_layer(
      std::string name,
      std::span<const std::size_t> home_offsets,
      std::span<const std::size_t> home_gradient_offsets) = 0;

  [[nodiscard]] virtual const EpShape& shape() const = 0;
  [[nodiscard]] virtual std::span<const EpProjection> projections() const = 0;
  [[nodiscard]] virtual kernels::FloatType weight_type() const = 0;
  // [B, rows, cols] of rank `peer`.
  [[nodiscard]] virtual std::byte* slots(int peer, std::size_t projection) const = 0;
  [[nodiscard]] virtual float* slot_gradients(int peer, std::size_t projection) const = 0;
};

// Rows this rank got. Valid until the next dispatch of the same exchange.
struct EpRows {
  std::span<std::byte> rows;  // [receive_rows, hidden]
  // [receive_rows] the caller's gate of each row; 0 on padding. Empty where no gates were sent.
  std::span<float> weights;
};

class EpExchange {
 public:
  // Collective. Takes what heap_bytes says from `heap`, which must outlive it, like `pool` (null:
  // no prefetch and no gradients, for tests of the movement).
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

  // From choices [tokens, top_k], tokens <= tokens_max. Plans are compared by hash across ranks:
  // kDataLoss naming the ranks that differ. A refused rank (an expert out of range) makes all ranks
  // return a Status that names it.
  [[nodiscard]] virtual Status make_plan(
      std::span<const std::int32_t> choices, EpPlan& plan, Deadline deadline) = 0;

  // x [tokens, hidden] of options().type. gates [tokens, top_k] or empty: only the rows are sent,
  // as in the backward of combine. `received` is the exchange's own memory: the experts may work in
  // place on it and hand it to combine (zero copy); copy what must outlive the next dispatch.
  [[nodiscard]] virtual Status dispatch(
      const EpPlan& plan,
      std::span<const std::byte> x,
      std::span<const float> gates,
      EpRows& received,
      Deadline deadline) = 0;

  // y[t] = sum over choices of the rows that dispatch made of token t, unweighted. `rows`
  // [receive_rows, hidden]: the memory of `received` (nothing is copied first) or the caller's own.
  // row_values [receive_rows] or empty, gathered home to values [tokens, top_k]: how the gradients
  // of gates travel. Rows of a token on one rank are summed in place: `rows` is spent afterwards,
  // and what of it is the exchange's own must not be written before the next dispatch, as peers may
  // still read it.
  // bf16 rows with kPlain: a token's rows are pulled one by one, as their sum would have to be
  // rounded to travel; more bytes than with kWireExact.
  [[nodiscard]] virtual Status combine(
      const EpPlan& plan,
      std::span<std::byte> rows,
      std::span<const float> row_values,
      std::span<std::byte> y,
      std::span<float> values,
      Deadline deadline) = 0;

  // Homes push the experts that the plan puts in slots, all projections.
  [[nodiscard]] virtual Status prefetch(
      const EpPlan& plan, const EpLayerMemory& layer, Deadline deadline) = 0;

  // Homes add the gradients of their experts' slots on all ranks to their own, by rank and slot;
  // then every rank clears the slots it used.
  [[nodiscard]] virtual Status reduce_gradients(
      const EpPlan& plan, const EpLayerMemory& layer, Deadline deadline) = 0;

  // What was counted since the last call, with the fields of `plan`. Starts again at zero.
  [[nodiscard]] virtual EpEvent take_event(const EpPlan& plan) = 0;
};

}  // namespace muster::parallel
