// The routed experts of one mixture-of-experts layer over the ranks of an expert group:
//   y[t] = sum over choices c of gates[t, c] * down_e(swiglu(gate_e x[t], up_e x[t]))
// forward and backward, balanced (redundant experts, kernels/ep/exchange.h) or with an ordinary
// all-to-all. Projections, row-major per expert: gate and up [ffn, hidden], down [hidden, ffn].
//
// The gate is applied to the ffn activations, so that its gradient needs no expert output to be
// kept. Kept from forward to backward: each row's input and its two projections.
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

// Told, on the calling thread, when a layer begins and stops to move rows or weights: for timers.
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

  // Of the forward before it: dx and dgates overwritten, weight gradients at home added to.
  [[nodiscard]] virtual Status backward(
      std::span<const std::byte> dy,
      std::span<std::byte> dx,
      std::span<float> dgates,
      Deadline deadline) = 0;

  // Of the last pass, forward and (when it ran) backward.
  [[nodiscard]] virtual EpEvent event() = 0;

  // The plan of the last forward; null where there is none.
  [[nodiscard]] virtual const EpPlan* plan() const = 0;

  // Of the passes to come; null: nobody. Must outlive them.
  void observe(MovementObserver* observer) { observer_ = observer; }

 protected:
  // Movement lasts as long as it lives.
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

// gate, up, down of a rank's own experts, [m, rows, cols], fp32.
struct ExpertWeights {
  std::span<const float> gate, up, down;
  std::span<float> gate_gradient, up_gradient, down_gradient;
};

struct ExpertLayerOptions {
  EpExchangeOptions exchange;  // hidden, type, shape, balance
  std::int64_t ffn{0};
  int threads{1};
};

// Ordinary expert parallelism: every row, once for every choice, to its expert's home by an
// all-to-all and back. fp32. `ranks` must outlive it; weights are read where they lie.
[[nodiscard]] Expected<std::unique_ptr<ExpertLayer>> make_all_to_all_layer(
    comm::Communicator& ranks, const ExpertLayerOptions& options, ExpertWeights weights);

// What the balanced layers of a process share: heap, slots and exchange.
//
//   group = ExpertGroup::create(ranks, options, bytes of home weights and gradients)
//   memory for the optimizer's expert parameters: group->allocate(bytes), the same calls on all
//   ranks group->seal() layers: group->make_layer(...)
class ExpertGroup {
 public:
  // Collective. `home_bytes`: what allocate() will be asked for in all.
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

  // Zeroed memory of this rank's chunk, on a page of its own. Local.
  [[nodiscard]] virtual Expected<std::span<std::byte>> allocate(std::size_t bytes) = 0;

  // Collective: all ranks allocated the same.
  [[nodiscard]] virtual Status seal(Deadline deadline) = 0;

  // Weights of `exchange.type` [m, rows, cols] and fp32 gradients in memory of allocate(), at the
  // same offsets on all ranks, each starting on a page: kInvalidArgument with the address
  // otherwise.
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
