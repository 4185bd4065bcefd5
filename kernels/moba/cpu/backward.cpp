// SPDX-License-Identifier: Apache-2.0
// Backward: per head, block after block over the queries that attended to it, from the global out
// and log sum.
//
// dk and dv of a block are summed by one worker over the block's queries in ascending order. dq
// comes from several blocks: a head's blocks are cut into a few ranges of about equal work, each
// with a separate dq, and these are added in the order of the ranges. The cut depends on the
// sequence and its choices only, so results do not depend on threads.
#include "kernels/moba/cpu/backward.h"

#include "kernels/moba/cpu/forward.h"
#include "kernels/moba/cpu/scratch.h"

#include <muster/common/aligned_buffer.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace muster::kernels {

namespace {

constexpr std::int64_t kBlockBytes = 320
                                     << 10U;  // keys and values at work; their gradients as many
constexpr std::int64_t kTaskRows = 512;
constexpr std::int64_t kLongSequence = 4096;

using Runner = std::function<void(std::int64_t, const std::function<void(std::int64_t)>&)>;

template <typename T>
class Buffer {
 public:
  T* reserve(std::int64_t count) {
    constexpr std::int64_t kFloats = static_cast<std::int64_t>(sizeof(T) / sizeof(float));
    return static_cast<T*>(static_cast<void*>(memory_.reserve(count * kFloats)));
  }

 private:
  AlignedBuffer memory_;
};

// Blocks [begin, end) of a head and their dq [queries - first_row, stride].
template <typename T>
struct Range {
  std::int64_t begin{0};
  std::int64_t end{0};
  std::int64_t first_row{0};  // no earlier query attends to these blocks
  T* dq{nullptr};
};

// A sequence and kv head.
template <typename T>
struct Unit {
  const MobaCall& call;
  const MobaGradientTensors& tensors;
  const MobaSelection::State& state;
  const MobaSequence& sequence;
  std::int64_t kv_head{0};
  // [keys of the part, stride] over the heads of a group; null for a group of one.
  T* dk{nullptr};
  T* dv{nullptr};

  // Keys of the sequence that k and v hold.
  [[nodiscard]] std::int64_t first_key() const { return tensors.part.begin; }

  [[nodiscard]] std::int64_t last_key() const { return tensors.part.last(sequence.keys); }

  // Row of a key in k, v, dk and dv.
  [[nodiscard]] std::int64_t token(std::int64_t key) const {
    return sequence.k_begin + key - tensors.part.begin;
  }
};

template <typename T>
MobaShape<T> shape_of(const MobaCall& call) {
  return {
      call.head_dim,
      moba_row_stride<T>(call.head_dim),
      static_cast<T>(call.scale),
      static_cast<T>(call.softcap)};
}

// ---- a range of blocks of one query head --------------------------------------------------------

template <typename T>
class Worker {
 public:
  Worker(const Unit<T>& unit, std::int64_t head, const T* delta, const Range<T>& range)
      : unit_(unit),
        call_(unit.call),
        sequence_(unit.sequence),
        head_(head),
        delta_(delta),
        range_(range),
        table_(moba_table<T>()),
        shape_(shape_of<T>(unit.call)),
        chunk_(moba_chunk<T>(unit.call, kBlockBytes)) {
    using Arena = MobaArena<T>;
    const std::int64_t rows = kMobaTile * shape_.stride;
    const std::int64_t lanes = Arena::rounded(call_.head_dim * kMobaTileStride);
    const std::int64_t scores = 2 * kMobaKeyStep * kMobaTileStride;
    const std::int64_t keys = chunk_ * shape_.stride;
    const std::int64_t size =
        3 * rows + 2 * lanes + scores + 2 * kMobaTile + 4 * keys + Arena::rounded(chunk_);
    Arena arena(moba_scratch<T>(size), size);
    queries_ = arena.take(lanes);
    dout_ = arena.take(lanes);
    query_rows_ = arena.take(rows);
    dout_rows_ = arena.take(rows);
    dq_ = arena.take(rows);
    scores_ = arena.take(scores);
    lse_ = arena.take(kMobaTile);
    tile_delta_ = arena.take(kMobaTile);
    k_ = arena.take(keys);
    v_ = arena.take(keys);
    dk_ = arena.take(keys);
    dv_ = arena.take(keys);
    factors_ = arena.take(chunk_);
  }

  void run() {
    std::fill_n(range_.dq, (sequence_.queries - range_.first_row) * shape_.stride, T{0});
    for (std::int64_t block = range_.begin; block < range_.end; ++block) {
      const std::int64_t first = block * call_.options.block;
      const std::int64_t last = std::min(first + call_.options.block, sequence_.keys);
      const std::int64_t end = unit_.tensors.part.last(last);
      for (std::int64_t key = unit_.tensors.part.first(first); key < end; key += chunk_) {
        run_keys(block, last, key, std::min(chunk_, end - key));
      }
    }
  }

 private:
  void run_keys(std::int64_t block, std::int64_t block_end, std::int64_t key, std::int64_t count) {
    load_keys(key, count);
    T* dk = dk_;
    T* dv = dv_;
    if (unit_.dk != nullptr) {
      dk = unit_.dk + (key - unit_.first_key()) * shape_.stride;
      dv = unit_.dv + (key - unit_.first_key()) * shape_.stride;
    } else {
      std::fill_n(dk, count * shape_.stride, T{0});
      std::fill_n(dv, count * shape_.stride, T{0});
    }
    const MobaKeys<T> keys{k_, v_, shape_.stride, count, count};
    if (call_.causal) {
      const std::int64_t shift = sequence_.keys - sequence_.queries;
      const std::int64_t end = std::min(block_end - shift, sequence_.queries);
      for (std::int64_t row = std::max<std::int64_t>(key - shift, 0); row < end; row += kMobaTile) {
        MobaKeys<T> seen = keys;
        seen.diagonal = row + shift - key;
        run_tile(nullptr, row, std::min(kMobaTile, end - row), seen, dk, dv);
      }
    }
    const auto list = unit_.state.list(sequence_, call_.choice_of(head_), block);
    const auto size = static_cast<std::int64_t>(list.size());
    for (std::int64_t i = 0; i < size; i += kMobaTile) {
      run_tile(list.data() + i, 0, std::min(kMobaTile, size - i), keys, dk, dv);
    }
    if (unit_.dk == nullptr) {
      write_keys(unit_.tensors.gradients.dk, key, count, dk_, static_cast<T>(call_.scale));
      write_keys(unit_.tensors.gradients.dv, key, count, dv_, T{1});
    }
  }

  void load_keys(std::int64_t key, std::int64_t count) {
    MobaRows rows = moba_rows(unit_.tensors.in.k, unit_.token(key), unit_.kv_head);
    rows.count = count;
    table_.gather(rows, call_.head_dim, k_, shape_.stride);
    rows = moba_rows(unit_.tensors.in.v, unit_.token(key), unit_.kv_head);
    rows.count = count;
    table_.gather(rows, call_.head_dim, v_, shape_.stride);
  }

  void write_keys(
      const AttentionTensor& to, std::int64_t key, std::int64_t count, const T* from, T factor) {
    MobaTarget target = moba_target(to, unit_.token(key), unit_.kv_head);
    target.count = count;
    std::fill_n(factors_, count, factor);
    table_.scatter(from, shape_.stride, factors_, target, call_.head_dim);
  }

  void run_tile(
      const std::int32_t* list,
      std::int64_t first,
      std::int64_t count,
      const MobaKeys<T>& keys,
      T* dk,
      T* dv) {
    load_tile(unit_.tensors.in.q, list, first, count, query_rows_, queries_);
    load_tile(unit_.tensors.gradients.dout, list, first, count, dout_rows_, dout_);
    const T* lse = static_cast<const T*>(unit_.tensors.gradients.lse) + head_ * call_.total_q +
                   sequence_.q_begin;
    for (std::int64_t i = 0; i < kMobaTile; ++i) {
      const std::int64_t row = list == nullptr || i >= count ? first + i : list[i];
      const bool sees = i < count && lse[row] != -std::numeric_limits<T>::infinity();
      lse_[i] = sees ? lse[row] : std::numeric_limits<T>::infinity();
      tile_delta_[i] = sees ? delta_[row] : T{0};
    }
    std::fill_n(dq_, count * shape_.stride, T{0});
    const MobaGradientTile<T> tile{
        count, queries_, dout_, query_rows_, dout_rows_, lse_, tile_delta_, dq_, scores_};
    table_.attend_backward(shape_, keys, tile, dk, dv);
    MobaTarget target{
        range_.dq - range_.first_row * shape_.stride, {}, shape_.stride, count, list, first};
    table_.add_rows(dq_, shape_.stride, target, call_.head_dim);
  }

  void load_tile(
      const AttentionTensor& tensor,
      const std::int32_t* list,
      std::int64_t first,
      std::int64_t count,
      T* rows,
      T* lanes) {
    MobaRows from = moba_rows(tensor, sequence_.q_begin, head_);
    from.rows = list;
    from.first = first;
    from.count = count;
    table_.gather(from, call_.head_dim, rows, shape_.stride);
    table_.transpose(rows, shape_.stride, count, call_.head_dim, lanes);
  }

  const Unit<T>& unit_;
  const MobaCall& call_;
  const MobaSequence& sequence_;
  std::int64_t head_;
  const T* delta_;
  Range<T> range_;
  const MobaTable<T>& table_;
  MobaShape<T> shape_;
  std::int64_t chunk_;
  T* queries_;
  T* dout_;
  T* query_rows_;
  T* dout_rows_;
  T* dq_;
  T* scores_;
  T* lse_;
  T* tile_delta_;
  T* k_;
  T* v_;
  T* dk_;
  T* dv_;
  T* factors_;
};

// Number of ranges: few where the heads alone keep threads busy or a sequence is short.
std::int64_t range_count(const MobaCall& call, const MobaSequence& sequence) {
  constexpr std::int64_t kMost = 4;
  if (sequence.keys < kLongSequence) {
    return 1;
  }
  return std::max<std::int64_t>(kMost / call.kv_heads, 1);
}

template <typename T>
std::vector<Range<T>> cut_ranges(const Unit<T>& unit, std::int64_t head, std::int64_t count) {
  const MobaSequence& sequence = unit.sequence;
  const std::int64_t choice = unit.call.choice_of(head);
  std::vector<std::int64_t> work{0};
  for (std::int64_t b = 0; b < sequence.blocks; ++b) {
    const auto listed = static_cast<std::int64_t>(unit.state.list(sequence, choice, b).size());
    const std::int64_t key = b * unit.call.options.block;
    const bool held = key < unit.last_key() && key + unit.call.options.block > unit.first_key();
    work.push_back(work.back() + (held ? listed + unit.call.options.block : 0));
  }
  std::vector<Range<T>> ranges;
  std::int64_t begin = 0;
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t goal = work.back() / count * (r + 1);
    const auto found = std::lower_bound(work.begin() + begin, work.end(), goal);
    const std::int64_t end =
        r + 1 == count ? sequence.blocks : std::min(found - work.begin(), sequence.blocks);
    const std::int64_t first_key = begin * unit.call.options.block;
    const std::int64_t first_row = first_key - (sequence.keys - sequence.queries);
    ranges.push_back(
        {begin,
         end,
         unit.call.causal ? std::clamp<std::int64_t>(first_row, 0, sequence.queries) : 0,
         nullptr});
    begin = end;
  }
  ranges.front().first_row = 0;
  return ranges;
}

// delta[row] = out . dout
template <typename T>
void make_delta(
    const Unit<T>& unit, std::int64_t head, std::int64_t begin, std::int64_t end, T* delta) {
  const MobaTable<T>& table = moba_table<T>();
  const std::int64_t stride = moba_row_stride<T>(unit.call.head_dim);
  T* out = moba_scratch<T>(2 * kMobaTile * stride);
  T* dout = out + kMobaTile * stride;
  for (std::int64_t row = begin; row < end; row += kMobaTile) {
    const std::int64_t count = std::min(kMobaTile, end - row);
    MobaRows rows = moba_rows(unit.tensors.gradients.out, unit.sequence.q_begin, head);
    rows.first = row;
    rows.count = count;
    table.gather(rows, unit.call.head_dim, out, stride);
    rows = moba_rows(unit.tensors.gradients.dout, unit.sequence.q_begin, head);
    rows.first = row;
    rows.count = count;
    table.gather(rows, unit.call.head_dim, dout, stride);
    table.row_dots(out, dout, stride, count, unit.call.head_dim, delta + row);
  }
}

// dq of rows [begin, end) = the sum over ranges, scaled.
template <typename T>
void write_dq(
    const Unit<T>& unit,
    std::int64_t head,
    const std::vector<Range<T>>& ranges,
    std::int64_t begin,
    std::int64_t end) {
  const MobaTable<T>& table = moba_table<T>();
  const std::int64_t stride = moba_row_stride<T>(unit.call.head_dim);
  T* sum = ranges.front().dq;
  for (std::size_t r = 1; r < ranges.size(); ++r) {
    const std::int64_t first = std::max(begin, ranges[r].first_row);
    if (first < end) {
      const MobaTarget target{sum, {}, stride, end - first, nullptr, first};
      const T* own = ranges[r].dq + (first - ranges[r].first_row) * stride;
      table.add_rows(own, stride, target, unit.call.head_dim);
    }
  }
  T factors[static_cast<std::size_t>(kTaskRows)];
  std::fill_n(factors, end - begin, static_cast<T>(unit.call.scale));
  MobaTarget target = moba_target(unit.tensors.gradients.dq, unit.sequence.q_begin, head);
  target.first = begin;
  target.count = end - begin;
  table.scatter(sum + begin * stride, stride, factors, target, unit.call.head_dim);
}

template <typename T>
void write_group(const Unit<T>& unit, std::int64_t begin, std::int64_t end) {
  const std::int64_t stride = moba_row_stride<T>(unit.call.head_dim);
  T factors[static_cast<std::size_t>(kTaskRows)];
  const auto write = [&](const AttentionTensor& to, const T* from, T factor) {
    std::fill_n(factors, end - begin, factor);
    MobaTarget target = moba_target(to, unit.token(unit.first_key()), unit.kv_head);
    target.first = begin;
    target.count = end - begin;
    moba_table<T>().scatter(from + begin * stride, stride, factors, target, unit.call.head_dim);
  };
  write(unit.tensors.gradients.dk, unit.dk, static_cast<T>(unit.call.scale));
  write(unit.tensors.gradients.dv, unit.dv, T{1});
}

template <typename T>
void run_unit(Unit<T> unit, const Runner& run) {
  const MobaCall& call = unit.call;
  const MobaSequence& sequence = unit.sequence;
  const std::int64_t stride = moba_row_stride<T>(call.head_dim);
  const std::int64_t row_tasks = (sequence.queries + kTaskRows - 1) / kTaskRows;
  const auto end_of = [](std::int64_t task, std::int64_t count) {
    return std::min((task + 1) * kTaskRows, count);
  };
  const std::int64_t keys = unit.last_key() - unit.first_key();
  Buffer<T> group;
  if (call.group() > 1) {
    unit.dk = group.reserve(2 * keys * stride);
    unit.dv = unit.dk + keys * stride;
    std::fill_n(unit.dk, 2 * keys * stride, T{0});
  }
  Buffer<T> queries;
  for (std::int64_t h = 0; h < call.group(); ++h) {
    const std::int64_t head = unit.kv_head * call.group() + h;
    std::vector<Range<T>> ranges = cut_ranges(unit, head, range_count(call, sequence));
    std::int64_t size = MobaArena<T>::rounded(sequence.queries);
    for (const Range<T>& range : ranges) {
      size += (sequence.queries - range.first_row) * stride;
    }
    MobaArena<T> arena(queries.reserve(size), size);
    T* delta = arena.take(sequence.queries);
    for (Range<T>& range : ranges) {
      range.dq = arena.take((sequence.queries - range.first_row) * stride);
    }
    run(row_tasks, [&](std::int64_t task) {
      make_delta(unit, head, task * kTaskRows, end_of(task, sequence.queries), delta);
    });
    run(static_cast<std::int64_t>(ranges.size()), [&](std::int64_t task) {
      Worker<T>(unit, head, delta, ranges[static_cast<std::size_t>(task)]).run();
    });
    run(row_tasks, [&](std::int64_t task) {
      write_dq(unit, head, ranges, task * kTaskRows, end_of(task, sequence.queries));
    });
  }
  if (call.group() > 1) {
    run((keys + kTaskRows - 1) / kTaskRows,
        [&](std::int64_t task) { write_group(unit, task * kTaskRows, end_of(task, keys)); });
  }
}

template <typename T>
void gradients_as(
    const MobaCall& call, const MobaGradientTensors& tensors, const MobaSelection::State& state) {
  std::vector<Unit<T>> side_by_side;
  std::vector<Unit<T>> one_by_one;
  for (const MobaSequence& sequence : call.cut_sequences) {
    auto& units = range_count(call, sequence) == 1 ? side_by_side : one_by_one;
    for (std::int64_t head = 0; !sequence.dense && head < call.kv_heads; ++head) {
      units.push_back({call, tensors, state, sequence, head, nullptr, nullptr});
    }
  }
  const Runner alone = [](std::int64_t tasks, const std::function<void(std::int64_t)>& task) {
    for (std::int64_t i = 0; i < tasks; ++i) {
      task(i);
    }
  };
  const Runner together = [&call](
                              std::int64_t tasks, const std::function<void(std::int64_t)>& task) {
    run_moba_tasks(call, tasks, task);
  };
  for (const Unit<T>& unit : one_by_one) {
    run_unit(unit, together);
  }
  run_moba_tasks(call, static_cast<std::int64_t>(side_by_side.size()), [&](std::int64_t task) {
    run_unit(side_by_side[static_cast<std::size_t>(task)], alone);
  });
}

}  // namespace

void moba_gradients(
    const MobaCall& call, const MobaGradientTensors& tensors, const MobaSelection::State& state) {
  if (call.type == DType::kFloat64) {
    gradients_as<double>(call, tensors, state);
  } else {
    gradients_as<float>(call, tensors, state);
  }
}

}  // namespace muster::kernels
