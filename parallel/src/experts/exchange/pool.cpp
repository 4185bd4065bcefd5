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

Status check_projection(
    const EpShape& shape, const EpProjection& projection, DType type, EpPoolUse use) {
  const std::string matrix =
      std::to_string(projection.rows) + " x " + std::to_string(projection.cols);
  if (projection.rows < 1 || projection.cols < 1) {
    return invalid_argument("rows and cols must be at least 1, got ", matrix);
  }
  const auto local = static_cast<std::size_t>(shape.local_experts());
  for (const DType each : {type, use == EpPoolUse::kTraining ? DType::kFloat32 : type}) {
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
    const EpShape& shape,
    std::span<const EpProjection> projections,
    DType weight_type,
    EpPoolUse use) {
  MUSTER_RETURN_IF_ERROR(check(shape, EpBalance{}));
  if (projections.empty()) {
    return invalid_argument("projections must have at least one entry");
  }
  for (std::size_t p = 0; p < projections.size(); ++p) {
    MUSTER_RETURN_IF_ERROR(check_projection(shape, projections[p], weight_type, use)
                               .context(concat("projection ", p)));
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
      EpPoolUse use,
      std::vector<Slots> slots)
      : heap_(heap),
        shape_(shape),
        projections_(std::move(projections)),
        weight_type_(weight_type),
        use_(use),
        slots_(std::move(slots)) {}

  [[nodiscard]] Expected<EpLayerMemory> map_layer(
      std::string name,
      std::span<const std::size_t> home_offsets,
      std::span<const std::size_t> home_gradient_offsets) override {
    const bool trains = use_ == EpPoolUse::kTraining;
    if (home_offsets.size() != projections_.size() ||
        home_gradient_offsets.size() != (trains ? projections_.size() : 0)) {
      return invalid_argument(
          name,
          ": ",
          home_offsets.size(),
          " weight and ",
          home_gradient_offsets.size(),
          " gradient offsets for ",
          projections_.size(),
          " projections",
          trains ? "" : " of a pool for inference");
    }
    EpLayerMemory layer;
    layer.name = std::move(name);
    for (std::size_t p = 0; p < projections_.size(); ++p) {
      EpProjectionMemory memory;
      memory.home_offset = home_offsets[p];
      const std::string what = concat(layer.name, ", projection ", p);
      const auto size = static_cast<std::size_t>(size_bytes(weight_type_));
      auto weights = map(p, size, home_offsets[p], slots_[p].weights);
      MUSTER_RETURN_IF_ERROR(weights.status().context(what));
      memory.weights = *weights;
      if (trains) {
        memory.home_gradient_offset = home_gradient_offsets[p];
        auto gradients = map(p, sizeof(float), home_gradient_offsets[p], slots_[p].gradients);
        MUSTER_RETURN_IF_ERROR(gradients.status().context(what));
        memory.gradients = {
            reinterpret_cast<float*>(gradients->data()),  // NOLINT
            gradients->size() / sizeof(float)};
      }
      layer.projections.push_back(memory);
    }
    return layer;
  }

  [[nodiscard]] const EpShape& shape() const override { return shape_; }

  [[nodiscard]] std::span<const EpProjection> projections() const override { return projections_; }

  [[nodiscard]] DType weight_type() const override { return weight_type_; }

  [[nodiscard]] EpPoolUse use() const override { return use_; }

  [[nodiscard]] std::byte* slots(int peer, std::size_t projection) const override {
    return heap_.pointer(peer, slots_[projection].weights);
  }

  [[nodiscard]] float* slot_gradients(int peer, std::size_t projection) const override {
    return use_ == EpPoolUse::kInference ? nullptr
                                         : heap_.at<float>(peer, slots_[projection].gradients);
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
  EpPoolUse use_;
  std::vector<Slots> slots_;
};

}  // namespace

std::size_t EpPool::heap_bytes(
    const EpShape& shape,
    std::span<const EpProjection> projections,
    DType weight_type,
    EpPoolUse use) {
  const auto slots = static_cast<std::size_t>(shape.slot_count());
  std::size_t total = kPage;  // earlier allocations may end at any address
  for (const EpProjection& projection : projections) {
    const std::size_t count = slots * elements(projection);
    total += whole_pages(count * static_cast<std::size_t>(size_bytes(weight_type)));
    total += use == EpPoolUse::kTraining ? whole_pages(count * sizeof(float)) : 0;
  }
  return total;
}

Expected<std::unique_ptr<EpPool>> EpPool::create(
    comm::SymmetricHeap& heap,
    const EpShape& shape,
    std::vector<EpProjection> projections,
    DType weight_type,
    EpPoolUse use) {
  MUSTER_RETURN_IF_ERROR(check_pool(shape, projections, weight_type, use).context("expert pool"));
  if (shape.ranks != heap.size()) {
    return invalid_argument(
        "expert pool: shape.ranks must be the size of the heap's group, ",
        heap.size(),
        ", got ",
        shape.ranks);
  }
  std::vector<Pool::Slots> slots(projections.size());
  const auto count = static_cast<std::size_t>(shape.slot_count());
  const auto allocate = [&](std::size_t bytes, std::size_t& offset) -> Status {
    auto memory = heap.allocate(whole_pages(bytes), kPage);
    MUSTER_RETURN_IF_ERROR(memory.status().context(concat(
        "expert pool takes ",
        heap_bytes(shape, projections, weight_type, use),
        " bytes of heap per rank (EpPool::heap_bytes): make the heap larger or use fewer slots")));
    offset = *memory;
    return {};
  };
  for (std::size_t p = 0; p < projections.size() && count > 0; ++p) {
    const std::size_t all = count * elements(projections[p]);
    const auto size = static_cast<std::size_t>(size_bytes(weight_type));
    MUSTER_RETURN_IF_ERROR(allocate(all * size, slots[p].weights));
    if (use == EpPoolUse::kTraining) {
      MUSTER_RETURN_IF_ERROR(allocate(all * sizeof(float), slots[p].gradients));
    }
  }
  return std::unique_ptr<EpPool>{std::make_unique<Pool>(
      heap, shape, std::move(projections), weight_type, use, std::move(slots))};
}

}  // namespace muster::parallel
