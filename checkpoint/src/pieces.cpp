// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/intervals.h"
#include "checkpoint/src/layout.h"
#include "checkpoint/src/reader.h"
#include "checkpoint/src/safetensors.h"

#include <muster/checkpoint/pieces.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <optional>
#include <utility>

namespace muster::checkpoint {

namespace fs = std::filesystem;

namespace {

// One rank's part of a tensor. `run` is missing when the piece is not one run of elements.
struct IndexedPiece {
  int rank{0};
  std::size_t index{0};  // in the rank's record
  std::optional<Interval> run;
  Pieces::Part part;
  std::vector<Hash128> chunks;  // once all of it has matched its hash
};

// Invariant: once `covering` is there, it has the indices of the non-empty pieces, ascending, which
// tile the tensor.
struct IndexedTensor {
  Pieces::Tensor tensor;
  std::uint64_t element_bits{0};
  std::vector<IndexedPiece> pieces;  // ascending by rank
  std::optional<std::vector<std::size_t>> covering;
};

// Null when the rank has none. `Tensor` is const or not, and so is what comes back.
template <typename Tensor>
auto* of_rank(Tensor& tensor, int rank) {
  const auto found = std::lower_bound(
      tensor.pieces.begin(), tensor.pieces.end(), rank, [](const IndexedPiece& piece, int wanted) {
        return piece.rank < wanted;
      });
  return found == tensor.pieces.end() || found->rank != rank ? nullptr : &*found;
}

std::string range_text(const Interval& elements) {
  return "elements [" + std::to_string(elements.begin) + ", " + std::to_string(elements.end) + ")";
}

std::string in_quotes(const std::string& name) {
  return "tensor '" + name + "'";
}

// Whole pieces whose hash matched, the most recently used first.
class PieceCache {
 public:
  explicit PieceCache(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  [[nodiscard]] bool fits(std::size_t bytes) const { return bytes <= bytes_max_; }

  // Empty when it is not there; no piece that is worth keeping is empty.
  [[nodiscard]] std::span<const std::byte> find(int rank, std::size_t index) {
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.rank == rank && entry.index == index;
    });
    if (found == entries_.end()) {
      return {};
    }
    entries_.splice(entries_.begin(), entries_, found);
    return found->bytes;
  }

  void keep(int rank, std::size_t index, std::vector<std::byte> bytes) {
    used_ += bytes.size();
    entries_.push_front({rank, index, std::move(bytes)});
    while (used_ > bytes_max_) {
      used_ -= entries_.back().bytes.size();
      entries_.pop_back();
    }
  }

 private:
  struct Entry {
    int rank{0};
    std::size_t index{0};
    std::vector<std::byte> bytes;
  };

  const std::size_t bytes_max_;
  std::size_t used_{0};
  std::list<Entry> entries_;
};

class PiecesOnDisk final : public Pieces {
 public:
  PiecesOnDisk(fs::path folder, Manifest manifest, std::size_t cache_bytes)
      : folder_(std::move(folder)), manifest_(std::move(manifest)), cache_(cache_bytes) {}

  Status read_records();

  [[nodiscard]] const fs::path& path() const override { return folder_; }

  [[nodiscard]] StepIndex step() const override { return manifest_.step; }

  [[nodiscard]] Generation generation() const override { return manifest_.generation; }

  [[nodiscard]] int world_size() const override { return manifest_.world_size; }

  [[nodiscard]] std::vector<std::string> names() const override;

  [[nodiscard]] const Tensor* find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second.tensor;
  }

  [[nodiscard]] const std::map<std::string, std::string>& values(int rank) const override {
    return ranks_.at(static_cast<std::size_t>(rank)).record.values;
  }

  Status read(const std::string& name, std::int64_t begin, std::span<std::byte> out) override;

  [[nodiscard]] const Part* find_part(const std::string& name, int rank) const override {
    const auto tensor = tensors_.find(name);
    const IndexedPiece* piece = tensor == tensors_.end() ? nullptr : of_rank(tensor->second, rank);
    return piece == nullptr ? nullptr : &piece->part;
  }

  Status read_part(const std::string& name, int rank, std::span<std::byte> out) override;

 private:
  struct RankFile {
    RankRecord record;
    std::uint64_t data_begin{0};  // 0 until the file's header was matched
  };

  Status index_piece(int rank, std::size_t index);
  Status cover(const std::string& name, IndexedTensor& tensor) const;
  Status read_piece(IndexedPiece& piece, std::uint64_t from, std::span<std::byte> out);
  Status load(IndexedPiece& piece, std::uint64_t from, std::span<std::byte> out);

  [[nodiscard]] IndexedPiece* find_piece(const std::string& name, int rank);

  // Names a piece in a sentence: "elements [0, 12) in <folder>/rank-3.safetensors".
  [[nodiscard]] std::string place(const IndexedPiece& piece) const {
    return range_text(*piece.run) + " in " + file_of(piece);
  }

  [[nodiscard]] std::string file_of(const IndexedPiece& piece) const {
    return (folder_ / data_name(piece.rank)).string();
  }

  const fs::path folder_;
  const Manifest manifest_;
  std::vector<RankFile> ranks_;
  std::map<std::string, IndexedTensor> tensors_;
  PieceCache cache_;
};

Status PiecesOnDisk::read_records() {
  for (int rank = 0; rank < manifest_.world_size; ++rank) {
    MUSTER_ASSIGN_OR_RETURN(RankRecord record, read_record(folder_, manifest_, rank));
    ranks_.push_back({std::move(record), 0});
    for (std::size_t index = 0; index < ranks_.back().record.pieces.size(); ++index) {
      MUSTER_RETURN_IF_ERROR(
          index_piece(rank, index).context((folder_ / record_name(rank)).string()));
    }
  }
  return {};
}

// Dtype and global shape are the manifest's on every rank, so every reader sees one tensor.
Status PiecesOnDisk::index_piece(int rank, std::size_t index) {
  const PieceRecord& piece = ranks_[static_cast<std::size_t>(rank)].record.pieces[index];
  const auto known = manifest_.tensors.find(piece.name);
  if (known == manifest_.tensors.end()) {
    return data_loss(in_quotes(piece.name) + " is not in the manifest");
  }
  if (known->second.dtype != piece.dtype) {
    return data_loss(
        in_quotes(piece.name) + " has dtype " + piece.dtype + " here and " + known->second.dtype +
        " in the manifest");
  }
  if (known->second.global_shape != piece.global_shape) {
    return data_loss(in_quotes(piece.name) + " has another global shape here than in the manifest");
  }
  const auto bytes = tensor_bytes(piece.dtype, piece.shape);
  if (!bytes || *bytes != piece.end - piece.begin) {
    return data_loss(in_quotes(piece.name) + " has another size than its shape and dtype need");
  }
  auto [entry, added] = tensors_.try_emplace(piece.name);
  if (added) {
    entry->second.tensor = {piece.dtype, piece.global_shape};
    entry->second.element_bits = dtype_bits(piece.dtype).value();
  }
  if (of_rank(entry->second, rank) != nullptr) {
    return data_loss(in_quotes(piece.name) + " is listed twice");
  }
  entry->second.pieces.push_back(
      {rank,
       index,
       flattened(piece.shape, piece.global_shape, piece.offset),
       {piece.shape, piece.offset, static_cast<std::int64_t>(*bytes)},
       {}});
  return {};
}

std::vector<std::string> PiecesOnDisk::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) {
    names.push_back(name);
  }
  return names;
}

IndexedPiece* PiecesOnDisk::find_piece(const std::string& name, int rank) {
  const auto tensor = tensors_.find(name);
  return tensor == tensors_.end() ? nullptr : of_rank(tensor->second, rank);
}

// Orders the pieces and proves that they tile the tensor, once.
Status PiecesOnDisk::cover(const std::string& name, IndexedTensor& tensor) const {
  if (tensor.covering) {
    return {};
  }
  if (tensor.element_bits % 8 != 0) {
    return unimplemented(
        in_quotes(name) + ": ranges of " + tensor.tensor.dtype +
        ", which has elements below a byte");
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
    const IndexedPiece& piece = tensor.pieces[i];
    if (!piece.run) {
      return unimplemented(
          in_quotes(name) + ": the piece in " + file_of(piece) +
          " is not one run of the row-major tensor (it has a part of several rows): load it with "
          "the "
          "muster that wrote it");
    }
    if (piece.run->begin < piece.run->end) {
      order.push_back(i);
    }
  }
  const auto begin_of = [&](std::size_t i) { return tensor.pieces[i].run->begin; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return begin_of(a) < begin_of(b);
  });
  std::vector<Interval> runs;
  runs.reserve(order.size());
  for (const std::size_t i : order) {
    runs.push_back(*tensor.pieces[i].run);
  }
  const std::int64_t total = element_count(tensor.tensor.global_shape).value_or(0);
  const auto fault = find_coverage_fault(runs, total);
  if (!fault) {
    tensor.covering = std::move(order);
    return {};
  }
  const auto at = [&](std::size_t i) { return place(tensor.pieces[order[i]]); };
  if (fault->twice) {
    return data_loss(
        in_quotes(name) + ": " + range_text(fault->elements) +
        " are there twice: " + at(fault->next - 1) + " and " + at(fault->next));
  }
  const std::string before = fault->next > 0 ? at(fault->next - 1) : "nothing";
  const std::string after = fault->next < order.size() ? at(fault->next) : "nothing";
  return data_loss(
      in_quotes(name) + ": " + range_text(fault->elements) + " are in no piece of " +
      folder_.string() + ": before them come " + before + ", behind them " + after);
}

Status PiecesOnDisk::read(const std::string& name, std::int64_t begin, std::span<std::byte> out) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return not_found(folder_.string() + " has no " + in_quotes(name));
  }
  IndexedTensor& tensor = found->second;
  MUSTER_RETURN_IF_ERROR(cover(name, tensor));
  const std::uint64_t element = tensor.element_bits / 8;
  const std::int64_t total = element_count(tensor.tensor.global_shape).value_or(0);
  const auto count = static_cast<std::int64_t>(out.size() / element);
  if (out.size() % element != 0 || begin < 0 || begin > total || count > total - begin) {
    return invalid_argument(
        in_quotes(name),
        ": ",
        out.size(),
        " bytes from element ",
        begin,
        " on are not in ",
        total,
        " elements of ",
        element,
        " bytes");
  }
  const Interval wanted{begin, begin + count};
  const auto& order = *tensor.covering;
  auto next = std::partition_point(order.begin(), order.end(), [&](std::size_t i) {
    return tensor.pieces[i].run->end <= wanted.begin;
  });
  for (std::int64_t at = wanted.begin; at < wanted.end; ++next) {
    IndexedPiece& piece = tensor.pieces[*next];
    const std::int64_t end = std::min(wanted.end, piece.run->end);
    const auto target = out.subspan(
        static_cast<std::size_t>(at - begin) * element,
        static_cast<std::size_t>(end - at) * element);
    MUSTER_RETURN_IF_ERROR(
        read_piece(piece, static_cast<std::uint64_t>(at - piece.run->begin) * element, target)
            .context(range_text(*piece.run)));
    at = end;
  }
  return {};
}

Status PiecesOnDisk::read_part(const std::string& name, int rank, std::span<std::byte> out) {
  IndexedPiece* piece = find_piece(name, rank);
  if (piece == nullptr) {
    return not_found(folder_.string(), ": rank ", rank, " has no ", in_quotes(name));
  }
  if (static_cast<std::int64_t>(out.size()) != piece->part.bytes) {
    return invalid_argument(
        in_quotes(name),
        ": the piece of rank ",
        rank,
        " has ",
        piece->part.bytes,
        " bytes, not ",
        out.size());
  }
  return read_piece(*piece, 0, out);
}

Status PiecesOnDisk::read_piece(IndexedPiece& piece, std::uint64_t from, std::span<std::byte> out) {
  const auto size = static_cast<std::size_t>(piece.part.bytes);
  if (out.empty()) {
    return {};
  }
  std::span<const std::byte> kept = cache_.find(piece.rank, piece.index);
  if (kept.empty() && (out.size() == size || !cache_.fits(size))) {
    return load(piece, from, out);
  }
  if (kept.empty()) {
    std::vector<std::byte> whole(size);
    MUSTER_RETURN_IF_ERROR(load(piece, 0, whole));
    cache_.keep(piece.rank, piece.index, std::move(whole));
    kept = cache_.find(piece.rank, piece.index);
  }
  std::memcpy(out.data(), kept.data() + from, out.size());
  return {};
}

Status PiecesOnDisk::load(IndexedPiece& piece, std::uint64_t from, std::span<std::byte> out) {
  RankFile& file = ranks_[static_cast<std::size_t>(piece.rank)];
  if (file.data_begin == 0) {
    MUSTER_ASSIGN_OR_RETURN(file.data_begin, find_data(folder_, file.record));
  }
  return read_piece_range(
      folder_, file.record, file.data_begin, piece.index, from, out, piece.chunks);
}

}  // namespace

Expected<std::unique_ptr<Pieces>> Pieces::open(
    const fs::path& checkpoint, std::size_t cache_bytes) {
  MUSTER_ASSIGN_OR_RETURN(Manifest manifest, read_manifest(checkpoint));
  MUSTER_RETURN_IF_ERROR(check_files(checkpoint, manifest));
  auto pieces = std::make_unique<PiecesOnDisk>(checkpoint, std::move(manifest), cache_bytes);
  MUSTER_RETURN_IF_ERROR(pieces->read_records());
  return Expected<std::unique_ptr<Pieces>>{std::move(pieces)};
}

}  // namespace muster::checkpoint
