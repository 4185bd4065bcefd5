// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/snapshot.h"

#include "checkpoint/src/safetensors.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <set>
#include <utility>

namespace muster::checkpoint {

namespace {

Status check_region(const TensorPiece& piece) {
  const std::size_t rank = piece.shape.size();
  if (piece.global_shape.size() != rank || piece.offset.size() != rank) {
    return invalid_argument(
        "tensor '" + piece.name + "': shape, global_shape and offset differ in length");
  }
  for (std::size_t i = 0; i < rank; ++i) {
    if (piece.offset[i] < 0 || piece.global_shape[i] < piece.shape[i] ||
        piece.offset[i] > piece.global_shape[i] - piece.shape[i]) {
      return invalid_argument(
          "tensor '", piece.name, "': the piece leaves its global shape in dimension ", i);
    }
  }
  return {};
}

Expected<PieceRecord> plan_piece(const TensorPiece& piece) {
  if (piece.name.empty() || piece.name == "__metadata__") {
    return invalid_argument("a tensor cannot be named '" + piece.name + "'");
  }
  const std::string dtype{safetensors_name(piece.dtype)};
  const auto bytes = tensor_bytes(dtype, piece.shape);
  if (!bytes) {
    return bytes.status().context("tensor '" + piece.name + "'");
  }
  if (*bytes != piece.data.size()) {
    return invalid_argument(
        "tensor '",
        piece.name,
        "': ",
        piece.data.size(),
        " bytes given, shape and dtype need ",
        *bytes);
  }
  MUSTER_RETURN_IF_ERROR(check_region(piece));
  return PieceRecord{
      {piece.name,
       dtype,
       piece.shape,
       piece.global_shape,
       piece.offset,
       static_cast<std::int64_t>(*bytes)},
      0,
      *bytes,
      ""};
}

}  // namespace

Expected<std::vector<PieceRecord>> plan_pieces(const RankState& state) {
  std::vector<PieceRecord> pieces;
  std::set<std::string_view> names;
  for (const TensorPiece& tensor : state.tensors) {
    MUSTER_ASSIGN_OR_RETURN(PieceRecord piece, plan_piece(tensor));
    if (!names.insert(tensor.name).second) {
      return invalid_argument("tensor name '" + tensor.name + "' is used twice");
    }
    pieces.push_back(std::move(piece));
  }
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return dtype_bits(pieces[a].dtype) > dtype_bits(pieces[b].dtype);
  });
  std::uint64_t position = 0;
  for (const std::size_t index : order) {
    pieces[index].begin = position;
    position += pieces[index].end;  // still the piece's size
    pieces[index].end = position;
  }
  return pieces;
}

bool plan_fits(const std::vector<PieceRecord>& pieces, const RankState& state) {
  return std::equal(
      pieces.begin(),
      pieces.end(),
      state.tensors.begin(),
      state.tensors.end(),
      [](const PieceRecord& piece, const TensorPiece& tensor) {
        return piece.name == tensor.name && piece.dtype == safetensors_name(tensor.dtype) &&
               piece.shape == tensor.shape && piece.global_shape == tensor.global_shape &&
               piece.offset == tensor.offset && piece.end - piece.begin == tensor.data.size();
      });
}

std::uint64_t data_bytes(const std::vector<PieceRecord>& pieces) {
  std::uint64_t bytes = 0;
  for (const PieceRecord& piece : pieces) {
    bytes = std::max(bytes, piece.end);
  }
  return bytes;
}

Status Snapshot::fill(
    const RankState& state, std::shared_ptr<const std::vector<PieceRecord>> pieces) {
  const std::size_t bytes = data_bytes(*pieces);
  if (bytes > capacity_) {
    memory_.reset();
    memory_.reset(new (std::nothrow) std::byte[bytes]);
    capacity_ = memory_ == nullptr ? 0 : bytes;
    if (memory_ == nullptr) {
      return resource_exhausted("no memory for a snapshot of ", bytes, " bytes");
    }
  }
  for (std::size_t i = 0; i < pieces->size(); ++i) {
    const auto source = state.tensors[i].data;
    if (!source.empty()) {
      std::memcpy(memory_.get() + (*pieces)[i].begin, source.data(), source.size());
    }
  }
  size_ = bytes;
  pieces_ = std::move(pieces);
  values_ = state.values;
  return {};
}

}  // namespace muster::checkpoint
