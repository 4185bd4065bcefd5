// SPDX-License-Identifier: Apache-2.0
// Forward: per head and window of queries, block after block over the queries that chose it.
//
// The softmax state of a window's queries stays in memory next to the core (fp32, or fp64) while
// the blocks go by: first the current block of each query, along its diagonal, then past blocks in
// ascending order. A query's sums therefore run in one order, whatever the window, the threads and
// the queries beside it.
#include "kernels/moba/cpu/forward.h"

#include "kernels/moba/cpu/scratch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace muster::kernels {

namespace {

constexpr std::int64_t kWindow = 4096;
constexpr std::int64_t kBlockBytes = 640 << 10U;  // of the keys and values at work

struct Task {
  const MobaSequence* sequence;
  std::int64_t head;
  std::int64_t begin;
  std::int64_t end;
};

struct TaskResult {
  double max_logit{-std::numeric_limits<double>::infinity()};
  std::int64_t nonfinite{0};
};

template <typename T>
class Window {
 public:
  Window(const MobaCall& call, const MobaForwardTensors& tensors, const MobaSelection::State& state)
      : call_(call),
        tensors_(tensors),
        state_(state),
        table_(moba_table<T>()),
        chunk_(moba_chunk<T>(call, kBlockBytes)) {
    shape_ = {
        call.head_dim,
        moba_row_stride<T>(call.head_dim),
        static_cast<T>(call.scale),
        static_cast<T>(call.softcap)};
    using Arena = MobaArena<T>;
    const std::int64_t window = std::min(kWindow, call.total_q);
    const std::int64_t queries = call.head_dim * kMobaTileStride;
    const std::int64_t scores = kMobaKeyStep * kMobaTileStride;
    const std::int64_t rows = kMobaTile * shape_.stride;
    const std::int64_t size = 2 * chunk_ * shape_.stride + 2 * rows + Arena::rounded(queries) +
                              scores + 3 * kMobaTile + window * shape_.stride +
                              4 * Arena::rounded(window);
    Arena arena(moba_scratch<T>(size), size);
    k_ = arena.take(chunk_ * shape_.stride);
    v_ = arena.take(chunk_ * shape_.stride);
    rows_ = arena.take(rows);
    queries_ = arena.take(queries);
    tile_ = {
        0,
        queries_,
        arena.take(rows),
        arena.take(kMobaTile),
        arena.take(kMobaTile),
        arena.take(kMobaTile),
        arena.take(scores)};
    out_ = arena.take(window * shape_.stride);
    max_ = arena.take(window);
    raw_max_ = arena.take(window);
    sum_ = arena.take(window);
    factors_ = arena.take(window);
  }

  TaskResult run(const Task& task) {
    sequence_ = task.sequence;
    head_ = task.head;
    begin_ = task.begin;
    end_ = task.end;
    const std::int64_t count = end_ - begin_;
    std::fill_n(out_, count * shape_.stride, T{0});
    std::fill_n(max_, count, -std::numeric_limits<T>::infinity());
    std::fill_n(raw_max_, count, -std::numeric_limits<T>::infinity());
    std::fill_n(sum_, count, T{0});
    if (call_.causal) {
      attend_current();
    }
    const std::int64_t blocks = call_.candidates(*sequence_, end_ - 1);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto list = state_.list_within(*sequence_, call_.choice_of(head_), b, begin_, end_);
      if (!list.empty()) {
        const std::int64_t first = b * call_.options.block;
        const std::int64_t last = std::min(first + call_.options.block, sequence_->keys);
        attend_list(list, first, last);
      }
    }
    return finish();
  }

 private:
  // Attends to the current block of each query: consecutive queries, the later ones see more of it.
  void attend_current() {
    const std::int64_t shift = sequence_->keys - sequence_->queries;
    std::int64_t row = std::max(begin_, -shift);
    while (row < end_) {
      const std::int64_t block = (row + shift) / call_.options.block;
      const std::int64_t first = block * call_.options.block;
      const std::int64_t rows_end = std::min(end_, first + call_.options.block - shift);
      const std::int64_t keys_end = rows_end + shift;
      const std::int64_t last = tensors_.part.last(keys_end);
      for (std::int64_t key = tensors_.part.first(first); key < last; key += chunk_) {
        const std::int64_t count = std::min(chunk_, last - key);
        load_keys(key, count);
        // Queries before the first key of the piece see none of it.
        for (std::int64_t r = std::max(row, key - shift); r < rows_end; r += kMobaTile) {
          attend_tile(nullptr, r, std::min(kMobaTile, rows_end - r), count, r + shift - key);
        }
      }
      row = rows_end;
    }
  }

  void attend_list(std::span<const std::int32_t> list, std::int64_t first, std::int64_t end) {
    const auto size = static_cast<std::int64_t>(list.size());
    const std::int64_t last = tensors_.part.last(end);
    for (std::int64_t key = tensors_.part.first(first); key < last; key += chunk_) {
      const std::int64_t count = std::min(chunk_, last - key);
      load_keys(key, count);
      for (std::int64_t i = 0; i < size; i += kMobaTile) {
        attend_tile(list.data() + i, 0, std::min(kMobaTile, size - i), count, count);
      }
    }
  }

  void load_keys(std::int64_t key, std::int64_t count) {
    const std::int64_t kv_head = head_ / call_.group();
    const std::int64_t token = sequence_->k_begin + key - tensors_.part.begin;
    MobaRows rows = moba_rows(tensors_.in.k, token, kv_head);
    rows.count = count;
    table_.gather(rows, call_.head_dim, k_, shape_.stride);
    rows = moba_rows(tensors_.in.v, token, kv_head);
    rows.count = count;
    table_.gather(rows, call_.head_dim, v_, shape_.stride);
    keys_ = count;
  }

  // Queries list[0 .. count), or first, first + 1, .. without a list.
  void attend_tile(
      const std::int32_t* list,
      std::int64_t first,
      std::int64_t count,
      std::int64_t keys,
      std::int64_t diagonal) {
    MobaRows rows = moba_rows(tensors_.in.q, sequence_->q_begin, head_);
    rows.rows = list;
    rows.first = first;
    rows.count = count;
    table_.gather(rows, call_.head_dim, rows_, shape_.stride);
    table_.transpose(rows_, shape_.stride, count, call_.head_dim, queries_);
    const auto place = [&](std::int64_t i) {
      return (list == nullptr ? first + i : list[i]) - begin_;
    };
    const auto row_size = static_cast<std::size_t>(shape_.stride) * sizeof(T);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = place(i);
      std::memcpy(tile_.out + i * shape_.stride, out_ + at * shape_.stride, row_size);
      tile_.max[i] = max_[at];
      tile_.raw_max[i] = raw_max_[at];
      tile_.sum[i] = sum_[at];
    }
    for (std::int64_t i = count; i < kMobaTile; ++i) {
      tile_.max[i] = tile_.raw_max[i] = tile_.sum[i] = T{0};
    }
    tile_.count = count;
    table_.attend(shape_, {k_, v_, shape_.stride, keys, diagonal}, tile_);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = place(i);
      std::memcpy(out_ + at * shape_.stride, tile_.out + i * shape_.stride, row_size);
      max_[at] = tile_.max[i];
      raw_max_[at] = tile_.raw_max[i];
      sum_[at] = tile_.sum[i];
    }
  }

  TaskResult finish() {
    TaskResult result;
    const std::int64_t count = end_ - begin_;
    T* lse =
        static_cast<T*>(tensors_.out.lse) + head_ * call_.total_q + sequence_->q_begin + begin_;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool empty = sum_[i] == T{0};
      factors_[i] = empty ? T{0} : T{1} / sum_[i];
      lse[i] = empty ? -std::numeric_limits<T>::infinity() : max_[i] + std::log(sum_[i]);
      result.max_logit = std::max(result.max_logit, static_cast<double>(raw_max_[i]));
    }
    MobaTarget target = moba_target(tensors_.out.out, sequence_->q_begin, head_);
    target.first = begin_;
    target.count = count;
    table_.scatter(out_, shape_.stride, factors_, target, call_.head_dim);
    if (tensors_.count_nonfinite) {
      for (std::int64_t i = 0; i < count; ++i) {
        const bool bad = nonfinite(i);
        result.nonfinite += bad ? 1 : 0;
        if (bad && tensors_.bad_rows != nullptr) {
          tensors_.bad_rows[head_ * call_.total_q + sequence_->q_begin + begin_ + i] = 1;
        }
      }
    }
    return result;
  }

  // A NaN logit makes all of the output NaN; so does one of +inf, unless softcap bounds it.
  [[nodiscard]] bool nonfinite(std::int64_t row) const {
    if (raw_max_[row] == std::numeric_limits<T>::infinity()) {
      return true;
    }
    const DType type = sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32;
    const MobaRows rows{out_ + row * shape_.stride, type, shape_.stride, 1, nullptr, 0};
    double square = 0;
    std::int64_t count = 0;
    moba_tables().gate.norms(rows, call_.head_dim, &square, &count);
    return count > 0;
  }

  const MobaCall& call_;
  const MobaForwardTensors& tensors_;
  const MobaSelection::State& state_;
  const MobaTable<T>& table_;
  std::int64_t chunk_;  // keys at work
  MobaShape<T> shape_;
  T* k_;
  T* v_;
  std::int64_t keys_{0};
  T* rows_;
  T* queries_;
  MobaTile<T> tile_;
  // State of the window.
  T* out_;
  T* max_;
  T* raw_max_;
  T* sum_;
  T* factors_;
  // The current task.
  const MobaSequence* sequence_{nullptr};
  std::int64_t head_{0};
  std::int64_t begin_{0};
  std::int64_t end_{0};
};

template <typename T>
void forward_as(
    const MobaForwardTensors& tensors,
    const MobaSelection::State& state,
    std::vector<float>& max_logit,
    std::vector<std::int64_t>& nonfinite) {
  const MobaCall& call = state.call;
  std::vector<Task> tasks;
  for (const MobaSequence& sequence : call.cut_sequences) {
    for (std::int64_t head = 0; !sequence.dense && head < call.heads; ++head) {
      for (std::int64_t row = 0; row < sequence.queries; row += kWindow) {
        tasks.push_back({&sequence, head, row, std::min(row + kWindow, sequence.queries)});
      }
    }
  }
  std::vector<TaskResult> results(tasks.size());
  run_moba_tasks(call, static_cast<std::int64_t>(tasks.size()), [&](std::int64_t number) {
    const auto index = static_cast<std::size_t>(number);
    results[index] = Window<T>(call, tensors, state).run(tasks[index]);
  });
  max_logit.assign(static_cast<std::size_t>(call.heads), -std::numeric_limits<float>::infinity());
  nonfinite.assign(static_cast<std::size_t>(call.heads), 0);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const auto head = static_cast<std::size_t>(tasks[i].head);
    max_logit[head] = std::max(max_logit[head], static_cast<float>(results[i].max_logit));
    nonfinite[head] += results[i].nonfinite;
  }
}

}  // namespace

void moba_attend_all(
    const MobaForwardTensors& tensors,
    const MobaSelection::State& state,
    std::vector<float>& max_logit,
    std::vector<std::int64_t>& nonfinite) {
  if (state.call.type == DType::kFloat64) {
    forward_as<double>(tensors, state, max_logit, nonfinite);
  } else {
    forward_as<float>(tensors, state, max_logit, nonfinite);
  }
}

}  // namespace muster::kernels
