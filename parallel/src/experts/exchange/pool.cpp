// SPDX-License-Identifier: Apache-2.0
#include <muster/parallel/experts/exchange.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace muster::parallel {

namespace {

constexpr std::size_t kPage = comm::kSymmetricGranularity;

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

std::size_t elements(const EpProjection& projection) {
  return static_cast<std::size_t>(projection.rows * projection.cols);
}

Status check_projection(const EpShape& shape, const EpProjection& projection, DType type) {
  const std::string matrix =
      std::to_string(projection.rows) + " x " + std::to_string(projection.cols);
  if (projection.rows < 1 || projection.cols < 1) {
    return invalid_argument("rows and cols must be at least 1, got ", matrix);
  }
  const auto local = static_cast<std::size_t>(shape.local_experts());
  for (const DType each : {type, DType::kFloat32}) {
    const auto size = static_cast<std::size_t>(size_bytes(each));
    const std::size_t bytes = local * elements(projection) * size;
    if (bytes % kPage != 0) {
      return invalid_argument(
          local,
          " experts of ",
          matrix,
          " ",
          each,
          " are ",
          bytes,
          " bytes, not a multiple of the heap's granularity ",
          kPage,
          ": make rows * cols a multiple of ",
          kPage / std::gcd(kPage, local * size));
    }
  }
  return {};
}

Status check_pool(
    const EpShape& shape, std::span<const EpProjection> projections, DType weight_type) {
  MUSTER_RETURN_IF_ERROR(check(shape, EpBalance{}));
  if (projections.empty()) {
    return invalid_argument("projections must have at least one entry");
  }
  for (std::size_t p = 0; p < projections.size(); ++p) {
    MUSTER_RETURN_IF_ERROR(
        check_projection(shape, projections[p], weight_type).context(concat("projection ", p)));
  }
  return {};
}

class Pool final : public EpPool {
 public:
  // Offsets of the slots of one projection in every chunk.
  struct Slots {
    std::size_t weights{0};
    std::size_t gradients{0};
  };

  Pool(
      comm::SymmetricHeap& heap,
      const EpShape& shape,
      std::vector<EpProjection> projections,
      DType weight_type,
      std::vector<Slots> slots)
      : heap_(heap),
        shape_(shape),
        projections_(std::move(projections)),
        weight_type_(weight_type),
        slots_(std::move(slots)) {}

  [[nodiscard]] Expected<EpLayerMemory> map_layer(
      std::string name,
      std::span<const std::size_t> home_offsets,
      std::span<const std::size_t> home_gradient_offsets) override {
    if (home_offsets.size() != projections_.size() ||
        home_gradient_offsets.size() != projections_.size()) {
      return invalid_argument(
          name,
          ": ",
          home_offsets.size(),
          " weight and ",
          home_gradient_offsets.size(),
          " gradient offsets for ",
          projections_.size(),
          " projections");
    }
    EpLayerMemory layer;
    layer.name = std::move(name);
    for (std::size_t p = 0; p < projections_.size(); ++p) {
      EpProjectionMemory memory;
      memory.home_offset = home_offsets[p];
      memory.home_gradient_offset = home_gradient_offsets[p];
      const auto size = static_cast<std::size_t>(size_bytes(weight_type_));
      auto weights = map(p, size, home_offsets[p], slots_[p].weights);
      auto gradients = map(p, sizeof(float), home_gradient_offsets[p], slots_[p].gradients);
      for (const Status& status : {weights.status(), gradients.status()}) {
        MUSTER_RETURN_IF_ERROR(status.context(concat(layer.name, ", projection ", p)));
      }
      memory.weights = *weights;
      memory.gradients = {
          reinterpret_cast<float*>(gradients->data()),  // NOLINT
          gradients->size() / sizeof(float)};
      layer.projections.push_back(memory);
    }
    return layer;
  }

  [[nodiscard]] const EpShape& shape() const override { return shape_; }

  [[nodiscard]] std::span<const EpProjection> projections() const override { return projections_; }

  [[nodiscard]] DType weight_type() const override { return weight_type_; }

  [[nodiscard]] std::byte* slots(int peer, std::size_t projection) const override {
    return heap_.pointer(peer, slots_[projection].weights);
  }

  [[nodiscard]] float* slot_gradients(int peer, std::size_t projection) const override {
    return heap_.at<float>(peer, slots_[projection].gradients);
  }

 private:
  // Maps the homes of all ranks, or of this one if compact, back to back, then this rank's slots.
  Expected<std::span<std::byte>> map(
      std::size_t projection, std::size_t size, std::size_t home, std::size_t slots) const {
    const std::size_t expert = elements(projections_[projection]) * size;
    const std::size_t home_bytes = static_cast<std::size_t>(shape_.local_experts()) * expert;
    const std::size_t slot_bytes = static_cast<std::size_t>(shape_.slot_count()) * expert;
    if (home % kPage != 0 || home + home_bytes > heap_.stride()) {
      return invalid_argument(
          "home offset ",
          home,
          " of ",
          home_bytes,
          " bytes in a chunk of ",
          heap_.stride(),
          ": allocate it in the heap with alignment ",
          kPage);
    }
    std::vector<comm::SymmetricHeap::Piece> pieces;
    for (int peer = 0; peer < shape_.ranks; ++peer) {
      if (!shape_.compact || peer == heap_.rank()) {
        pieces.push_back({peer, home, home_bytes});
      }
    }
    const std::size_t wanted = pieces.size() * home_bytes + slot_bytes;
    if (slot_bytes > 0) {
      pieces.push_back({heap_.rank(), slots, whole_pages(slot_bytes)});
    }
    auto view = heap_.map_view(pieces);
    if (!view) {
      return view.status();
    }
    return view->first(wanted);
  }

  comm::SymmetricHeap& heap_;
  EpShape shape_;
  std::vector<EpProjection> projections_;
  DType weight_type_;
  std::vector<Slots> slots_;
};

}  // namespace

std::size_t EpPool::heap_bytes(
    const EpShape& shape, std::span<const EpProjection> projections, DType weight_type) {
  const auto slots = static_cast<std::size_t>(shape.slot_count());
  std::size_t total = kPage;  // earlier allocations may end at any address
  for (const EpProjection& projection : projections) {
    const std::size_t count = slots * elements(projection);
    total += whole_pages(count * static_cast<std::size_t>(size_bytes(weight_type)));
    total += whole_pages(count * sizeof(float));
  }
  return total;
}

Expected<std::unique_ptr<EpPool>> EpPool::create(
    comm::SymmetricHeap& heap,
    const EpShape& shape,
    std::vector<EpProjection> projections,
    DType weight_type) {
  MUSTER_RETURN_IF_ERROR(check_pool(shape, projections, weight_type).context("expert pool"));
  if (shape.ranks != heap.size()) {
    return invalid_argument(
        "expert pool: shape.ranks must be the size of the heap's group, ",
        heap.size(),
        ", got ",
        shape.ranks);
  }
  std::vector<Pool::Slots> slots(projections.size());
  const auto count = static_cast<std::size_t>(shape.slot_count());
  for (std::size_t p = 0; p < projections.size() && count > 0; ++p) {
    const std::size_t all = count * elements(projections[p]);
    const auto size = static_cast<std::size_t>(size_bytes(weight_type));
    auto weights = heap.allocate(whole_pages(all * size), kPage);
    auto gradients = heap.allocate(whole_pages(all * sizeof(float)), kPage);
    for (const Status& status : {weights.status(), gradients.status()}) {
      MUSTER_RETURN_IF_ERROR(status.context(concat(
          "expert pool takes ",
          heap_bytes(shape, projections, weight_type),
          " bytes of heap per rank (EpPool::heap_bytes): make the heap larger or use fewer "
          "slots")));
    }
    slots[p] = {*weights, *gradients};
  }
  return std::unique_ptr<EpPool>{
      std::make_unique<Pool>(heap, shape, std::move(projections), weight_type, std::move(slots))};
}

}  // namespace muster::parallel
