// SPDX-License-Identifier: Apache-2.0
// Reads a committed checkpoint as named global tensors, independent of the number of ranks that
// wrote it and of their cuts.
#pragma once

#include <muster/common/expected.h>
#include <muster/common/ids.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace muster::checkpoint {

// Tensors that all ranks wrote to one checkpoint, read by ranges of whole tensors or by the pieces
// of one rank. Never returns a byte of a piece that does not match the hash taken by its rank.
//
// Memory: the records of all ranks, and a cache of whole pieces bounded by `cache_bytes`, so that
// small reads from one piece do not read and hash it again. A piece that is read in full, or does
// not fit in the cache, goes straight to the caller. A piece that does not fit is hashed in chunks
// of 4 MiB as well as in full, so that later reads need, and check, only the chunks they touch.
//
// Not thread-safe. Reads the folder only; files are open only during a call.
class Pieces {
 public:
  struct Tensor {
    std::string dtype;  // safetensors name
    std::vector<std::int64_t> global_shape;

    friend bool operator==(const Tensor&, const Tensor&) = default;
  };

  // One rank's part of a tensor, row-major; `shape` and `offset` are as long as global_shape.
  struct Part {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> offset;
    std::int64_t bytes{0};
  };

  static constexpr std::size_t kCacheBytes = std::size_t{256} << 20;

  // Checks manifest, records and the sizes of all files (the fast check) and that records and
  // manifest agree about every tensor. kDataLoss names the file, and the tensor when it is one;
  // kVersionMismatch for a checkpoint of a newer muster.
  [[nodiscard]] static Expected<std::unique_ptr<Pieces>> open(
      const std::filesystem::path& checkpoint, std::size_t cache_bytes = kCacheBytes);

  Pieces() = default;
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;
  Pieces(Pieces&&) = delete;
  Pieces& operator=(Pieces&&) = delete;
  virtual ~Pieces() = default;

  [[nodiscard]] virtual const std::filesystem::path& path() const = 0;
  [[nodiscard]] virtual StepIndex step() const = 0;
  [[nodiscard]] virtual Generation generation() const = 0;
  // Number of ranks that wrote it, >= 1.
  [[nodiscard]] virtual int world_size() const = 0;

  // Ascending.
  [[nodiscard]] virtual std::vector<std::string> names() const = 0;
  // Null when no rank saved such a tensor.
  [[nodiscard]] virtual const Tensor* find(const std::string& name) const = 0;
  // The values saved by `rank`, which must be below world_size().
  [[nodiscard]] virtual const std::map<std::string, std::string>& values(int rank) const = 0;

  // Reads elements [begin, begin + out.size() / element size) of the flattened global tensor from
  // the pieces that hold them. The pieces of all ranks must cover the tensor exactly once: a hole,
  // a range that two pieces hold, and damaged bytes are kDataLoss naming tensor, elements and file.
  // kNotFound for an unknown name, kInvalidArgument for a range outside the tensor or a part of an
  // element, kUnimplemented for a tensor with a piece that is not one run of the flattened tensor.
  // `out` is unspecified after an error.
  [[nodiscard]] virtual Status read(
      const std::string& name, std::int64_t begin, std::span<std::byte> out) = 0;

  // --- one rank's own, for what every rank saves in full ---
  // Null when `rank` saved no such tensor.
  [[nodiscard]] virtual const Part* find_part(const std::string& name, int rank) const = 0;
  // Reads all bytes of that piece; out.size() must be its byte count. Errors as read().
  [[nodiscard]] virtual Status read_part(
      const std::string& name, int rank, std::span<std::byte> out) = 0;
};

}  // namespace muster::checkpoint
