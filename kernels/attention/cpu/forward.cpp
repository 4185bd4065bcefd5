// SPDX-License-Identifier: Apache-2.0
// Full attention forward: keys and values of a few items are packed, then tiles of queries walk
// them.
#include "kernels/attention/cpu/call.h"
#include "kernels/cpu/thread_team.h"

#include <cmath>
#include <limits>

namespace muster::kernels {

namespace {

constexpr std::int64_t kTaskPanels = 4;  // that read a tile of keys while it is in the cache
constexpr std::int64_t kBatchFloats = std::int64_t{1}
                                      << 19;  // packed per thread before work begins

// A (sequence, kv head) whose keys and values are packed.
template <typename T>
struct PackedItem {
  FlashItem item;
  T* keys{nullptr};
  T* values{nullptr};
  std::size_t first_tile{0};  // in the list of all tiles of the batch
};

struct Workspace {
  AlignedBuffer packed;
  std::vector<AlignedBuffer> members;
};

Workspace& workspace() {
  thread_local Workspace kept;
  return kept;
}

template <typename T>
class Forward {
 public:
  Forward(
      const AttentionCall& call,
      const InputTensors& in,
      const OutputTensors& out,
      FlashCounts* counts)
      : call_(call),
        in_(in),
        out_(out),
        counts_(counts),
        table_(flash_table<T>(call.type)),
        tile_keys_(forward_tile_keys(table_.pair)),
        team_(call.threads),
        memory_(workspace()) {
    memory_.members.resize(
        std::max(memory_.members.size(), static_cast<std::size_t>(team_.members())));
    for (int member = 0; member < team_.members(); ++member) {
      scratch_.push_back(
          reserve<T>(memory_.members[static_cast<std::size_t>(member)], scratch_size()));
      member_counts_.emplace_back(counts == nullptr ? 0 : call.heads);
    }
  }

  void run() {
    const std::vector<FlashItem> items = items_of(call_);
    std::size_t begin = 0;
    while (begin < items.size()) {
      std::int64_t size = 0;
      std::size_t end = begin;
      while (end < items.size() && (end == begin || size < kBatchFloats * team_.members())) {
        size += item_size(items[end++]);
      }
      run_batch({items.data() + begin, end - begin}, size);
      begin = end;
    }
    if (memory_.packed.size() > kFlashKeptFloats) {
      memory_.packed = AlignedBuffer();
    }
    for (const FlashCounts& counts : member_counts_) {
      if (counts_ != nullptr) {
        counts_->merge(counts);
      }
    }
  }

 private:
  struct TileTask {
    std::size_t item;
    std::int64_t number;  // of the tile of keys, or the first panel
  };

  // State of a panel while a thread walks the keys; every member is set before use.
  struct Panel {  // NOLINT(cppcoreguidelines-pro-type-member-init)
    FlashSpan span;
    T* queries;
    T* gathered;
    FlashState<T>* state;
    const float* bias[kFlashLanes<T>];
  };

  [[nodiscard]] std::int64_t tiles(const FlashItem& item) const {
    return (item.sequence.keys + tile_keys_ - 1) / tile_keys_;
  }

  [[nodiscard]] std::int64_t tile_count(const FlashItem& item, std::int64_t tile) const {
    return std::min(tile_keys_, item.sequence.keys - tile * tile_keys_);
  }

  [[nodiscard]] std::int64_t keys_size() const {
    return flash_line(table_.keys_size(tile_keys_, call_.head_dim));
  }

  [[nodiscard]] std::int64_t values_size() const {
    return flash_line(table_.across_size(tile_keys_, call_.head_dim));
  }

  [[nodiscard]] std::int64_t item_size(const FlashItem& item) const {
    return item.rows() == 0 ? 0 : tiles(item) * (keys_size() + values_size());
  }

  [[nodiscard]] std::int64_t gathered_size() const {
    return flash_round_up(call_.head_dim, kFlashRows) * kFlashLanes<T>;
  }

  [[nodiscard]] std::int64_t scratch_size() const {
    constexpr auto kState = static_cast<std::int64_t>(sizeof(FlashState<T>) / sizeof(T));
    return kTaskPanels * (table_.lanes_size(call_.head_dim) + gathered_size() + kState) +
           tile_keys_ * kFlashLanes<T>;
  }

  void run_batch(std::span<const FlashItem> items, std::int64_t size) {
    T* memory = reserve<T>(memory_.packed, size);
    batch_.clear();
    std::vector<TileTask> packs;
    std::vector<TileTask> walks;
    for (const FlashItem& item : items) {
      if (item.rows() == 0) {
        continue;
      }
      const std::int64_t count = tiles(item);
      batch_.push_back({item, memory, memory + count * keys_size(), packs.size()});
      memory += count * (keys_size() + values_size());
      for (std::int64_t tile = 0; tile < count; ++tile) {
        packs.push_back({batch_.size() - 1, tile});
      }
      // Late queries see most keys: longest tasks first.
      const std::int64_t panels = panels_of<T>(item);
      const std::int64_t last = (panels - 1) / kTaskPanels * kTaskPanels;
      for (std::int64_t panel = last; panel >= 0; panel -= kTaskPanels) {
        walks.push_back({batch_.size() - 1, panel});
      }
    }
    finite_.assign(packs.size(), 0);
    team_.run(static_cast<std::int64_t>(packs.size()), [&](std::int64_t i, int) {
      pack(packs[static_cast<std::size_t>(i)]);
    });
    team_.run(static_cast<std::int64_t>(walks.size()), [&](std::int64_t i, int member) {
      walk(walks[static_cast<std::size_t>(i)], static_cast<std::size_t>(member));
    });
  }

  void pack(TileTask task) {
    const PackedItem<T>& packed = batch_[task.item];
    const FlashItem& item = packed.item;
    const std::int64_t token = item.sequence.k_begin + task.number * tile_keys_;
    FlashRows rows{
        .type = call_.type,
        .data = in_.k.data,
        .stride = in_.k.token_stride,
        .count = tile_count(item, task.number),
        .head_dim = call_.head_dim};
    rows.data = in_.k.at(token, item.kv_head);
    table_.pack_keys(rows, packed.keys + task.number * keys_size());
    rows.data = in_.v.at(token, item.kv_head);
    rows.stride = in_.v.token_stride;
    const bool finite =
        table_.pack_across(rows, false, packed.values + task.number * values_size());
    finite_[packed.first_tile + static_cast<std::size_t>(task.number)] = finite ? 1 : 0;
  }

  void walk(TileTask task, std::size_t member) {
    const PackedItem<T>& packed = batch_[task.item];
    const FlashItem& item = packed.item;
    Panel panels[kTaskPanels];
    const std::int64_t count = std::min(kTaskPanels, panels_of<T>(item) - task.number);
    T* weights = scratch_[member] + scratch_size() - tile_keys_ * kFlashLanes<T>;
    for (std::int64_t p = 0; p < count; ++p) {
      start(item, task.number + p, p, scratch_[member], panels[p]);
    }
    const FlashSpan last = panels[count - 1].span;
    const std::int64_t seen = item.visible(last.first + last.count - 1);
    for (std::int64_t tile = 0; tile * tile_keys_ < seen; ++tile) {
      for (std::int64_t p = 0; p < count; ++p) {
        advance_panel(packed, tile, panels[p], weights);
      }
    }
    for (std::int64_t p = 0; p < count; ++p) {
      finish(item, panels[p], member);
    }
  }

  void start(
      const FlashItem& item, std::int64_t number, std::int64_t slot, T* scratch, Panel& panel) {
    const std::int64_t queries_size = table_.lanes_size(call_.head_dim);
    panel.span = panel_span<T>(item, number);
    panel.gathered = scratch + slot * gathered_size();
    panel.queries = scratch + kTaskPanels * gathered_size() + slot * queries_size;
    T* states = scratch + kTaskPanels * (gathered_size() + queries_size);
    panel.state = reinterpret_cast<FlashState<T>*>(states) + slot;
    std::int64_t offsets[kFlashLanes<T>];
    query_offsets<T>(item, panel.span, in_.q, offsets);
    bias_rows<T>(call_, item, panel.span, panel.bias);
    table_.pack_lanes(
        {call_.type, in_.q.data, offsets, 0, panel.span.count, call_.head_dim}, panel.queries);
    std::fill_n(panel.gathered, gathered_size(), T{0});
    std::fill_n(panel.state->max, kFlashLanes<T>, -std::numeric_limits<T>::infinity());
    std::fill_n(panel.state->logit, kFlashLanes<T>, -std::numeric_limits<T>::infinity());
    std::fill_n(panel.state->sum, kFlashLanes<T>, T{0});
  }

  void advance_panel(const PackedItem<T>& packed, std::int64_t tile, Panel& panel, T* weights) {
    const std::int64_t first = tile * tile_keys_;
    const std::int64_t count = tile_count(packed.item, tile);
    if (packed.item.visible(panel.span.first + panel.span.count - 1) <= first) {
      return;
    }
    alignas(64) T limits[kFlashLanes<T>];
    const bool limited = tile_limits(packed.item, panel.span, first, count, limits);
    table_.forward(
        {.queries = panel.queries,
         .lanes = panel.span.count,
         .limits = limited ? limits : nullptr,
         .keys = packed.keys + tile * keys_size(),
         .values = packed.values + tile * values_size(),
         .values_finite = finite_[packed.first_tile + static_cast<std::size_t>(tile)] != 0,
         .count = count,
         .head_dim = call_.head_dim,
         .logits =
             {static_cast<T>(call_.scale),
              static_cast<T>(call_.softcap),
              call_.bias == nullptr ? nullptr : panel.bias,
              first},
         .weights = weights,
         .state = panel.state,
         .gathered = panel.gathered});
  }

  void finish(const FlashItem& item, const Panel& panel, std::size_t member) {
    T factors[kFlashLanes<T>] = {};
    T finite[kFlashLanes<T>] = {};
    std::int64_t offsets[kFlashLanes<T>];
    const FlashState<T>& state = *panel.state;
    T* lse = static_cast<T*>(out_.lse);
    for (std::int64_t i = 0; i < panel.span.count; ++i) {
      const std::int64_t row = panel.span.first + i;
      const T sum = state.sum[i];
      factors[i] = sum == 0 ? T{0} : T{1} / sum;
      lse[item.head(row) * call_.total_q + item.sequence.q_begin + item.token(row)] =
          sum == 0 ? -std::numeric_limits<T>::infinity() : state.max[i] + std::log(sum);
    }
    query_offsets<T>(item, panel.span, out_.out, offsets);
    table_.unpack_lanes(
        panel.gathered,
        factors,
        {call_.type, out_.out.data, offsets, 0, panel.span.count, call_.head_dim},
        finite);
    if (counts_ != nullptr) {
      count(item, panel, finite, member_counts_[member]);
    }
  }

  static void count(
      const FlashItem& item, const Panel& panel, const T* finite, FlashCounts& counts) {
    for (std::int64_t i = 0; i < panel.span.count; ++i) {
      const auto head = static_cast<std::size_t>(item.head(panel.span.first + i));
      const auto logit = static_cast<float>(panel.state->logit[i]);
      const bool bad_sum = std::isnan(panel.state->sum[i]);
      // An infinite logit that softcap bounds leaves no trace in the sum or the output.
      const bool infinite = panel.state->logit[i] == std::numeric_limits<T>::infinity();
      counts.max_logit[head] = std::max(counts.max_logit[head], logit);
      counts.nonfinite_rows[head] += bad_sum || infinite || finite[i] != 0 ? 1 : 0;
      counts.nan_rows[head] += bad_sum && logit != std::numeric_limits<float>::infinity() ? 1 : 0;
    }
  }

  const AttentionCall& call_;
  const InputTensors& in_;
  const OutputTensors& out_;
  FlashCounts* counts_;
  const FlashTable<T>& table_;
  std::int64_t tile_keys_;
  ThreadTeam team_;
  Workspace& memory_;
  std::vector<T*> scratch_;
  std::vector<FlashCounts> member_counts_;
  std::vector<PackedItem<T>> batch_;
  std::vector<std::uint8_t> finite_;
};

}  // namespace

void flash_forward(
    const AttentionCall& call,
    const InputTensors& in,
    const OutputTensors& out,
    FlashCounts* counts) {
  if (call.type == DType::kFloat64) {
    Forward<double>(call, in, out, counts).run();
  } else {
    Forward<float>(call, in, out, counts).run();
  }
}

}  // namespace muster::kernels
