// SPDX-License-Identifier: Apache-2.0
// Full attention backward. Keys are cut into chunks, by their number alone; a chunk walks the
// queries for each of its tiles, sums dk and dv in place and dq into a separate slab. The
// slabs are added in the order of the chunks, so that the result does not depend on the schedule of
// the threads.
#include "kernels/attention/cpu/call.h"
#include "kernels/cpu/thread_team.h"

#include <cmath>
#include <limits>

namespace muster::kernels {

namespace {

constexpr std::int64_t kGroupPanels = 2;  // that go through a tile together
constexpr std::int64_t kChunks = 8;       // of the keys of a sequence, at most
constexpr std::int64_t kChunkTiles = 4;   // of a chunk, at least
constexpr std::int64_t kBatchFloats = std::int64_t{1}
                                      << 19;  // packed per thread before work begins
static_assert(kGroupPanels <= kFlashPanels);

struct Workspace {
  AlignedBuffer packed;
  std::vector<AlignedBuffer> members;
};

Workspace& workspace() {
  thread_local Workspace kept;
  return kept;
}

// Packed operands of a (sequence, kv head): arrays of tiles, of panels, and slabs of dq^T.
template <typename T>
struct PackedItem {
  FlashItem item;
  std::int64_t tiles{0};
  std::int64_t panels{0};
  std::int64_t chunks{0};
  std::int64_t chunk_tiles{0};
  T* keys{nullptr};
  T* values{nullptr};
  T* keys_across{nullptr};
  T* queries{nullptr};
  T* douts{nullptr};
  T* query_rows{nullptr};
  T* dout_rows{nullptr};
  T* lse{nullptr};
  T* delta{nullptr};
  T* slabs{nullptr};
};

template <typename T>
class Backward {
 public:
  Backward(const AttentionCall& call, const InputTensors& in, const GradientTensors& gradients)
      : call_(call),
        in_(in),
        gradients_(gradients),
        table_(flash_table<T>(call.type)),
        tile_keys_(kBackwardTileKeys),
        padded_dim_(flash_round_up(call.head_dim, kFlashPackLanes<T>)),
        keys_size_(flash_line(table_.keys_size(tile_keys_, call.head_dim))),
        across_size_(flash_line(table_.across_size(tile_keys_, call.head_dim))),
        lanes_size_(table_.lanes_size(call.head_dim)),
        along_size_(table_.along_size(padded_dim_)),
        dq_size_(flash_round_up(call.head_dim, kFlashRows) * kFlashLanes<T>),
        team_(call.threads),
        memory_(workspace()) {
    memory_.members.resize(
        std::max(memory_.members.size(), static_cast<std::size_t>(team_.members())));
    for (int member = 0; member < team_.members(); ++member) {
      scratch_.push_back(
          reserve<T>(memory_.members[static_cast<std::size_t>(member)], scratch_size()));
    }
  }

  void run() {
    const std::vector<FlashItem> items = items_of(call_);
    std::size_t begin = 0;
    while (begin < items.size()) {
      std::vector<PackedItem<T>> batch;
      std::int64_t size = 0;
      while (begin < items.size() && (batch.empty() || size < kBatchFloats * team_.members())) {
        batch.push_back(shape_of(items[begin++]));
        size += layout(batch.back(), nullptr);
      }
      T* memory = reserve<T>(memory_.packed, size);
      for (PackedItem<T>& packed : batch) {
        memory += layout(packed, memory);
      }
      run_batch(batch);
    }
    if (memory_.packed.size() > kFlashKeptFloats) {
      memory_.packed = AlignedBuffer();
    }
  }

 private:
  struct Task {
    std::size_t item;
    std::int64_t number;  // of the tile, the panel or the chunk
  };

  [[nodiscard]] PackedItem<T> shape_of(const FlashItem& item) const {
    PackedItem<T> packed;
    packed.item = item;
    packed.tiles = (item.sequence.keys + tile_keys_ - 1) / tile_keys_;
    packed.panels = panels_of<T>(item);
    const std::int64_t most = (packed.tiles + kChunkTiles - 1) / kChunkTiles;
    packed.chunk_tiles =
        packed.tiles == 0 ? 0 : std::max(kChunkTiles, (packed.tiles + kChunks - 1) / kChunks);
    packed.chunks = most == 0 ? 0 : (packed.tiles + packed.chunk_tiles - 1) / packed.chunk_tiles;
    return packed;
  }

  // Returns the elements it takes; places the arrays where there is memory.
  std::int64_t layout(PackedItem<T>& packed, T* memory) const {
    std::int64_t size = 0;
    const auto place = [&](T*& array, std::int64_t count) {
      array = memory == nullptr ? nullptr : memory + size;
      size += flash_line(count);
    };
    place(packed.keys, packed.tiles * keys_size_);
    place(packed.values, packed.tiles * keys_size_);
    place(packed.keys_across, packed.tiles * across_size_);
    place(packed.queries, packed.panels * lanes_size_);
    place(packed.douts, packed.panels * lanes_size_);
    place(packed.query_rows, packed.panels * along_size_);
    place(packed.dout_rows, packed.panels * along_size_);
    place(packed.lse, packed.panels * kFlashLanes<T>);
    place(packed.delta, packed.panels * kFlashLanes<T>);
    place(packed.slabs, packed.chunks * packed.panels * dq_size_);
    return size;
  }

  [[nodiscard]] std::int64_t weights_size() const {
    return 3 * kGroupPanels * flash_round_up(tile_keys_, kFlashRows) * kFlashLanes<T>;
  }

  [[nodiscard]] std::int64_t tile_gradient_size() const { return tile_keys_ * padded_dim_; }

  [[nodiscard]] std::int64_t scratch_size() const {
    return weights_size() + 2 * tile_gradient_size();
  }

  void run_batch(std::vector<PackedItem<T>>& batch) {
    batch_ = batch;
    std::vector<Task> tiles;
    std::vector<Task> panels;
    std::vector<Task> chunks;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      for (std::int64_t n = 0; n < batch[i].tiles; ++n) {
        tiles.push_back({i, n});
      }
      for (std::int64_t n = 0; n < batch[i].panels; ++n) {
        panels.push_back({i, n});
      }
      for (std::int64_t n = 0; n < batch[i].chunks; ++n) {
        chunks.push_back({i, n});
      }
    }
    const auto each = [&](const std::vector<Task>& tasks, auto work) {
      team_.run(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t i, int member) {
        const Task& task = tasks[static_cast<std::size_t>(i)];
        work(batch_[task.item], task.number, static_cast<std::size_t>(member));
      });
    };
    each(tiles, [&](const PackedItem<T>& p, std::int64_t n, std::size_t) { pack_tile(p, n); });
    each(panels, [&](const PackedItem<T>& p, std::int64_t n, std::size_t) { pack_panel(p, n); });
    each(chunks, [&](const PackedItem<T>& p, std::int64_t n, std::size_t member) {
      walk_chunk(p, n, member);
    });
    each(panels, [&](const PackedItem<T>& p, std::int64_t n, std::size_t) { finish(p, n); });
  }

  [[nodiscard]] std::int64_t tile_count(const FlashItem& item, std::int64_t tile) const {
    return std::min(tile_keys_, item.sequence.keys - tile * tile_keys_);
  }

  void pack_tile(const PackedItem<T>& packed, std::int64_t tile) {
    const FlashItem& item = packed.item;
    const std::int64_t token = item.sequence.k_begin + tile * tile_keys_;
    FlashRows rows{
        .type = call_.type,
        .data = in_.k.at(token, item.kv_head),
        .stride = in_.k.token_stride,
        .count = tile_count(item, tile),
        .head_dim = call_.head_dim};
    table_.pack_keys(rows, packed.keys + tile * keys_size_);
    static_cast<void>(table_.pack_across(rows, true, packed.keys_across + tile * across_size_));
    rows.data = in_.v.at(token, item.kv_head);
    rows.stride = in_.v.token_stride;
    table_.pack_keys(rows, packed.values + tile * keys_size_);
  }

  [[nodiscard]] FlashRows query_rows(
      const FlashItem& item,
      FlashSpan span,
      const AttentionTensor& tensor,
      std::int64_t* offsets) const {
    query_offsets<T>(item, span, tensor, offsets);
    return {call_.type, tensor.data, offsets, 0, span.count, call_.head_dim};
  }

  void pack_panel(const PackedItem<T>& packed, std::int64_t panel) {
    const FlashItem& item = packed.item;
    const FlashSpan span = panel_span<T>(item, panel);
    std::int64_t offsets[kFlashLanes<T>];
    std::int64_t dout_offsets[kFlashLanes<T>];
    const FlashRows queries = query_rows(item, span, in_.q, offsets);
    table_.pack_lanes(queries, packed.queries + panel * lanes_size_);
    static_cast<void>(
        table_.pack_along(queries, padded_dim_, packed.query_rows + panel * along_size_));
    const FlashRows douts = query_rows(item, span, gradients_.dout, dout_offsets);
    table_.pack_lanes(douts, packed.douts + panel * lanes_size_);
    const bool finite =
        table_.pack_along(douts, padded_dim_, packed.dout_rows + panel * along_size_);

    T* delta = packed.delta + panel * kFlashLanes<T>;
    T* lse = packed.lse + panel * kFlashLanes<T>;
    std::fill_n(delta, kFlashLanes<T>, T{0});
    std::fill_n(lse, kFlashLanes<T>, std::numeric_limits<T>::infinity());
    table_.dots(query_rows(item, span, gradients_.out, offsets), douts, delta);
    for (std::int64_t i = 0; i < span.count; ++i) {
      const std::int64_t row = span.first + i;
      const std::int64_t place =
          item.head(row) * call_.total_q + item.sequence.q_begin + item.token(row);
      const T value = static_cast<const T*>(gradients_.lse)[place];
      // A row that saw nothing has no weights: exp(x - inf).
      lse[i] = value == -std::numeric_limits<T>::infinity() ? -value : value;
      if (gradients_.dlse != nullptr) {
        delta[i] -= static_cast<const T*>(gradients_.dlse)[place];
      }
      // dout is packed finite for dv, so that keys which the row does not see stay clean; those
      // that it sees get its NaN through their weights.
      if (!finite && !row_is_finite(douts, i)) {
        lse[i] = std::numeric_limits<T>::quiet_NaN();
      }
    }
  }

  [[nodiscard]] bool row_is_finite(const FlashRows& rows, std::int64_t i) const {
    for (std::int64_t d = 0; d < call_.head_dim; ++d) {
      const void* at = static_cast<const char*>(rows.data) +
                       (rows.offsets[i] + d) * static_cast<std::int64_t>(size_bytes(call_.type));
      const bool finite = call_.type == DType::kBFloat16
                              ? (*static_cast<const std::uint16_t*>(at) & 0x7F80U) != 0x7F80U
                              : std::isfinite(*static_cast<const T*>(at));
      if (!finite) {
        return false;
      }
    }
    return true;
  }

  // The first panel with a row that sees a key from `first_key` on.
  static std::int64_t first_panel(const PackedItem<T>& packed, std::int64_t first_key) {
    std::int64_t panel = 0;
    while (panel < packed.panels) {
      const FlashSpan span = panel_span<T>(packed.item, panel);
      if (packed.item.visible(span.first + span.count - 1) > first_key) {
        break;
      }
      ++panel;
    }
    return panel;
  }

  void walk_chunk(const PackedItem<T>& packed, std::int64_t chunk, std::size_t member) {
    const std::int64_t begin = chunk * packed.chunk_tiles;
    const std::int64_t end = std::min(packed.tiles, begin + packed.chunk_tiles);
    T* slab = packed.slabs + chunk * packed.panels * dq_size_;
    const std::int64_t first = first_panel(packed, begin * tile_keys_);
    std::fill_n(slab + first * dq_size_, (packed.panels - first) * dq_size_, T{0});
    T* dk = scratch_[member] + weights_size();
    T* dv = dk + tile_gradient_size();
    for (std::int64_t tile = begin; tile < end; ++tile) {
      std::fill_n(dk, 2 * tile_gradient_size(), T{0});
      for (std::int64_t panel = first_panel(packed, tile * tile_keys_); panel < packed.panels;
           panel += kGroupPanels) {
        walk_panels(packed, tile, panel, slab + panel * dq_size_, scratch_[member]);
      }
      write_tile(packed.item, tile, gradients_.dk, dk);
      write_tile(packed.item, tile, gradients_.dv, dv);
    }
  }

  void walk_panels(
      const PackedItem<T>& packed, std::int64_t tile, std::int64_t panel, T* dq, T* scratch) {
    const FlashItem& item = packed.item;
    const std::int64_t panels = std::min(kGroupPanels, packed.panels - panel);
    const std::int64_t first_key = tile * tile_keys_;
    const std::int64_t count = tile_count(item, tile);
    alignas(64) T limits[kGroupPanels * kFlashLanes<T>];
    const float* bias[kGroupPanels * kFlashLanes<T>];
    bool limited = false;
    FlashSpan span;
    for (std::int64_t p = 0; p < panels; ++p) {
      span = panel_span<T>(item, panel + p);
      std::fill_n(limits + p * kFlashLanes<T>, kFlashLanes<T>, static_cast<T>(count));
      limited |= tile_limits(item, span, first_key, count, limits + p * kFlashLanes<T>);
      bias_rows<T>(call_, item, span, bias + p * kFlashLanes<T>);
    }
    table_.backward(
        {.panels = panels,
         .lanes = span.count,
         .queries = packed.queries + panel * lanes_size_,
         .douts = packed.douts + panel * lanes_size_,
         .query_rows = packed.query_rows + panel * along_size_,
         .dout_rows = packed.dout_rows + panel * along_size_,
         .lse = packed.lse + panel * kFlashLanes<T>,
         .delta = packed.delta + panel * kFlashLanes<T>,
         .limits = limited ? limits : nullptr,
         .keys = packed.keys + tile * keys_size_,
         .values = packed.values + tile * keys_size_,
         .keys_across = packed.keys_across + tile * across_size_,
         .count = count,
         .head_dim = call_.head_dim,
         .padded_dim = padded_dim_,
         .logits =
             {static_cast<T>(call_.scale),
              static_cast<T>(call_.softcap),
              call_.bias == nullptr ? nullptr : bias,
              first_key},
         .weights = scratch,
         .dq = dq,
         .dk = scratch + weights_size(),
         .dv = scratch + weights_size() + tile_gradient_size()});
  }

  void write_tile(
      const FlashItem& item,
      std::int64_t tile,
      const AttentionTensor& tensor,
      const T* from) const {
    const std::int64_t token = item.sequence.k_begin + tile * tile_keys_;
    table_.unpack_rows(
        from,
        padded_dim_,
        T{1},
        {.type = call_.type,
         .data = tensor.at(token, item.kv_head),
         .stride = tensor.token_stride,
         .count = tile_count(item, tile),
         .head_dim = call_.head_dim});
  }

  // dq of a panel: its slabs in the order of the chunks.
  void finish(const PackedItem<T>& packed, std::int64_t panel) {
    const FlashSpan span = panel_span<T>(packed.item, panel);
    const std::int64_t seen = packed.item.visible(span.first + span.count - 1);
    T factors[kFlashLanes<T>];
    T finite[kFlashLanes<T>];
    std::int64_t offsets[kFlashLanes<T>];
    std::fill_n(factors, kFlashLanes<T>, T{1});
    T* total = packed.slabs + panel * dq_size_;
    std::vector<T> nothing;
    if (seen == 0) {
      nothing.assign(static_cast<std::size_t>(dq_size_), T{0});
      total = nothing.data();
    }
    for (std::int64_t chunk = 1; chunk * packed.chunk_tiles * tile_keys_ < seen; ++chunk) {
      table_.add(packed.slabs + (chunk * packed.panels + panel) * dq_size_, dq_size_, total);
    }
    query_offsets<T>(packed.item, span, gradients_.dq, offsets);
    table_.unpack_lanes(
        total,
        factors,
        {call_.type, gradients_.dq.data, offsets, 0, span.count, call_.head_dim},
        finite);
  }

  const AttentionCall& call_;
  const InputTensors& in_;
  const GradientTensors& gradients_;
  const FlashTable<T>& table_;
  std::int64_t tile_keys_;
  std::int64_t padded_dim_;
  std::int64_t keys_size_;
  std::int64_t across_size_;
  std::int64_t lanes_size_;
  std::int64_t along_size_;
  std::int64_t dq_size_;
  ThreadTeam team_;
  Workspace& memory_;
  std::vector<T*> scratch_;
  std::vector<PackedItem<T>> batch_;
};

}  // namespace

void flash_backward(
    const AttentionCall& call, const InputTensors& in, const GradientTensors& gradients) {
  if (call.type == DType::kFloat64) {
    Backward<double>(call, in, gradients).run();
  } else {
    Backward<float>(call, in, gradients).run();
  }
}

}  // namespace muster::kernels
