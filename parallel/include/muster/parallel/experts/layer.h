// SPDX-License-Identifier: Apache-2.0
// The routed experts of one mixture-of-experts layer over the ranks of an expert group:
//   y[t] = sum over choices c of gates[t, c] * down_e(swiglu(gate_e x[t], up_e x[t]))
// forward and backward, behind one interface for both movements: balanced with redundant experts
// (exchange.h), or by an ordinary all-to-all. Projections, row-major per expert: gate and up
// [ffn, hidden], down [hidden, ffn].
//
// The gate is applied to the ffn activations, so that its gradient needs no saved expert output.
// A layer keeps each row's input and its two projections from forward to backward.
//
// Collective over the expert group, in the same order on all ranks; a rank may have no tokens.
// Errors are those of the exchange. Thread-safety: one thread at a time.
#pragma once

#include <muster/comm/communicator.h>
#include <muster/parallel/experts/event.h>
#include <muster/parallel/experts/exchange.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace muster::parallel {

// Is notified on the calling thread when a layer starts and stops moving rows or weights, for
// timers.
class MovementObserver {
 public:
  MovementObserver() = default;
  MovementObserver(const MovementObserver&) = delete;
  MovementObserver& operator=(const MovementObserver&) = delete;
  MovementObserver(MovementObserver&&) = delete;
  MovementObserver& operator=(MovementObserver&&) = delete;
  virtual ~MovementObserver() = default;

  virtual void begin() = 0;
  virtual void end() = 0;
};

class ExpertLayer {
 public:
  ExpertLayer() = default;
  ExpertLayer(const ExpertLayer&) = delete;
  ExpertLayer& operator=(const ExpertLayer&) = delete;
  ExpertLayer(ExpertLayer&&) = delete;
  ExpertLayer& operator=(ExpertLayer&&) = delete;
  virtual ~ExpertLayer() = default;

  // x and y [tokens, hidden] of the layer's type, choices and gates [tokens, top_k]. y overwritten.
  [[nodiscard]] virtual Status forward(
      std::span<const std::byte> x,
      std::span<const std::int32_t> choices,
      std::span<const float> gates,
      std::span<std::byte> y,
      Deadline deadline) = 0;

  // Backward pass of the last forward. Overwrites dx and dgates, adds to the weight gradients of
  // the home ranks.
  [[nodiscard]] virtual Status backward(
      std::span<const std::byte> dy,
      std::span<std::byte> dx,
      std::span<float> dgates,
      Deadline deadline) = 0;

  // Returns the counters of the last pass, forward and, if it has run, backward.
  [[nodiscard]] virtual EpEvent event() = 0;

  // Returns the plan of the last forward, or null for a layer without plans.
  [[nodiscard]] virtual const EpPlan* plan() const = 0;

  // Sets the observer of subsequent passes, which it must outlive, or null.
  void observe(MovementObserver* observer) { observer_ = observer; }

 protected:
  // Reports movement to the observer from construction to destruction.
  class Movement {
   public:
    explicit Movement(const ExpertLayer& layer) : observer_(layer.observer_) {
      if (observer_ != nullptr) {
        observer_->begin();
      }
    }

    ~Movement() {
      if (observer_ != nullptr) {
        observer_->end();
      }
    }

    Movement(const Movement&) = delete;
    Movement& operator=(const Movement&) = delete;
    Movement(Movement&&) = delete;
    Movement& operator=(Movement&&) = delete;

   private:
    MovementObserver* observer_;
  };

 private:
  MovementObserver* observer_{nullptr};
};

// Projections of a rank's own experts, [m, rows, cols], fp32.
struct ExpertWeights {
  std::span<const float> gate, up, down;
  std::span<float> gate_gradient, up_gradient, down_gradient;
};

struct ExpertLayerOptions {
  EpExchangeOptions exchange;  // hidden, type, shape, balance
  std::int64_t ffn{0};
  int threads{1};
};

// Makes a layer without balancing: an all-to-all sends a row for every choice to the home of its
// expert and back. fp32. `ranks` and the memory of `weights`, which is used in place, must outlive
// the layer.
[[nodiscard]] Expected<std::unique_ptr<ExpertLayer>> make_all_to_all_layer(
    comm::Communicator& ranks, const ExpertLayerOptions& options, ExpertWeights weights);

// Heap, slots and exchange of the balanced layers of a process. Order of use:
//
//   group = ExpertGroup::create(ranks, options, bytes of home weights and gradients)
//   group->allocate(bytes) for the optimizer's expert parameters, the same calls on all ranks
//   group->seal()
//   group->make_layer(...) for each layer
class ExpertGroup {
 public:
  // Collective. `home_bytes` is the sum of all later allocate() calls.
  [[nodiscard]] static Expected<std::unique_ptr<ExpertGroup>> create(
      comm::Communicator& ranks,
      const ExpertLayerOptions& options,
      std::size_t home_bytes,
      Deadline deadline);

  ExpertGroup() = default;
  ExpertGroup(const ExpertGroup&) = delete;
  ExpertGroup& operator=(const ExpertGroup&) = delete;
  ExpertGroup(ExpertGroup&&) = delete;
  ExpertGroup& operator=(ExpertGroup&&) = delete;
  virtual ~ExpertGroup() = default;

  // Returns zeroed memory of this rank's chunk that starts on a page. Local.
  [[nodiscard]] virtual Expected<std::span<std::byte>> allocate(std::size_t bytes) = 0;

  // Collective. Checks that all ranks made the same allocations.
  [[nodiscard]] virtual Status seal(Deadline deadline) = 0;

  // Weights of `exchange.type` [m, rows, cols] and fp32 gradients, in memory of allocate() that
  // starts on a page and is at the same offset on all ranks, else kInvalidArgument with the
  // address.
  struct Home {
    const void* weights{nullptr};
    float* gradient{nullptr};
  };

  [[nodiscard]] virtual Expected<std::unique_ptr<ExpertLayer>> make_layer(
      std::string name, Home gate, Home up, Home down) = 0;

  [[nodiscard]] virtual EpExchange& exchange() = 0;
  [[nodiscard]] virtual comm::SymmetricHeap& heap() = 0;
};

}  // namespace muster::parallel
