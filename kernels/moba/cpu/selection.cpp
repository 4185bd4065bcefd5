// SPDX-License-Identifier: Apache-2.0
#include "kernels/moba/cpu/selection.h"

#include <algorithm>

namespace muster::kernels {

void MobaSelection::State::begin(const MobaCall& of) {
  call = of;
  const std::int64_t count = call.choices() * call.total_q * call.slots();
  picks.assign(static_cast<std::size_t>(count), -1);
}

std::span<std::int32_t> MobaSelection::State::picks_of(
    const MobaSequence& sequence, std::int64_t choice, std::int64_t row) {
  const std::int64_t slots = call.slots();
  const std::int64_t at = (choice * call.total_q + sequence.q_begin + row) * slots;
  return std::span(picks).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(slots));
}

void MobaSelection::State::build_lists() {
  const std::int64_t slots = call.slots();
  offsets.assign(static_cast<std::size_t>(call.choices() * call.total_blocks + 1), 0);
  // f(list number, row of the sequence), in the order of rows.
  const auto each_pick = [&](std::int64_t choice, const auto& f) {
    for (const MobaSequence& sequence : call.cut_sequences) {
      const std::int64_t base = choice * call.total_blocks + sequence.first_block;
      const std::int32_t* pick = picks.data() + (choice * call.total_q + sequence.q_begin) * slots;
      for (std::int64_t row = 0; row < sequence.queries; ++row, pick += slots) {
        for (std::int64_t s = 0; s < slots && pick[s] >= 0; ++s) {
          f(static_cast<std::size_t>(base + pick[s]), static_cast<std::int32_t>(row));
        }
      }
    }
  };
  run_moba_tasks(call, call.choices(), [&](std::int64_t choice) {
    each_pick(choice, [&](std::size_t list, std::int32_t /*row*/) { ++offsets[list + 1]; });
  });
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    offsets[i] += offsets[i - 1];
  }
  rows.resize(static_cast<std::size_t>(offsets.back()));
  run_moba_tasks(call, call.choices(), [&](std::int64_t choice) {
    const auto first = offsets.begin() + choice * call.total_blocks;
    std::vector<std::int64_t> next(first, first + call.total_blocks);
    const auto base = static_cast<std::size_t>(choice * call.total_blocks);
    each_pick(choice, [&](std::size_t list, std::int32_t row) {
      rows[static_cast<std::size_t>(next[list - base]++)] = row;
    });
  });
}

std::span<const std::int32_t> MobaSelection::State::list(
    const MobaSequence& sequence, std::int64_t choice, std::int64_t block) const {
  const auto number =
      static_cast<std::size_t>(choice * call.total_blocks + sequence.first_block + block);
  const auto begin = static_cast<std::size_t>(offsets[number]);
  return std::span(rows).subspan(begin, static_cast<std::size_t>(offsets[number + 1]) - begin);
}

std::span<const std::int32_t> MobaSelection::State::list_within(
    const MobaSequence& sequence,
    std::int64_t choice,
    std::int64_t block,
    std::int64_t begin,
    std::int64_t end) const {
  const auto all = list(sequence, choice, block);
  const auto first = std::lower_bound(all.begin(), all.end(), begin);
  const auto last = std::lower_bound(first, all.end(), end);
  return {first, last};
}

Status MobaSelection::State::check(const MobaCall& other) const {
  const MobaOptions& a = call.options;
  const MobaOptions& b = other.options;
  const bool same = call.heads == other.heads && call.kv_heads == other.kv_heads &&
                    call.causal == other.causal && call.cut_sequences == other.cut_sequences &&
                    a.block == b.block && a.top_k == b.top_k &&
                    a.force_neighbour == b.force_neighbour &&
                    a.share_in_group == b.share_in_group && a.whole_length == b.whole_length;
  if (!same) {
    return invalid_argument(
        "selection must be the one that the forward call of these tensors filled: heads, "
        "sequences, mask or options differ");
  }
  return {};
}

MobaSelection::MobaSelection() : state_(std::make_unique<State>()) {}

MobaSelection::~MobaSelection() = default;
MobaSelection::MobaSelection(MobaSelection&&) noexcept = default;
MobaSelection& MobaSelection::operator=(MobaSelection&&) noexcept = default;

std::vector<std::int32_t> MobaSelection::blocks_of(int head, std::int64_t row) const {
  const MobaCall& call = state_->call;
  std::vector<std::int32_t> result;
  for (const MobaSequence& sequence : call.cut_sequences) {
    const std::int64_t own = row - sequence.q_begin;
    if (own < 0 || own >= sequence.queries || head < 0 || head >= call.heads) {
      continue;
    }
    const auto current = static_cast<std::int32_t>(call.current_block(sequence, own));
    if (sequence.dense) {
      const std::int64_t seen = call.causal ? current + 1 : sequence.blocks;
      for (std::int32_t block = 0; block < seen; ++block) {
        result.push_back(block);
      }
      continue;
    }
    for (const std::int32_t block : state_->picks_of(sequence, call.choice_of(head), own)) {
      if (block >= 0) {
        result.push_back(block);
      }
    }
    if (current >= 0) {
      result.push_back(current);
    }
  }
  return result;
}

}  // namespace muster::kernels
