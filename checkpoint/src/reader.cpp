// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/reader.h"

#include "checkpoint/src/layout.h"
#include "checkpoint/src/safetensors.h"

#include <muster/common/file.h>
#include <muster/common/hash.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <numeric>
#include <utility>
#include <vector>

namespace muster::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kReadBytes = std::size_t{4} << 20;

// A file read from front to back and hashed while it is read, until the first seek.
class HashedFile {
 public:
  static Expected<HashedFile> open(const fs::path& path) {
    FileDescriptor fd{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};

    struct stat info {};

    if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
      const int error = errno;
      return error == ENOENT ? data_loss(path.string() + " is missing")
                             : io_error(path.string(), error);
    }
    if (!S_ISREG(info.st_mode)) {
      return data_loss(path.string() + " is not a regular file");
    }
    return HashedFile{std::move(fd), path, static_cast<std::uint64_t>(info.st_size)};
  }

  [[nodiscard]] std::uint64_t size() const { return size_; }

  [[nodiscard]] std::string hash() const { return to_hex(hasher_.digest()); }

  Status read(std::span<std::byte> bytes) {
    std::span<std::byte> rest = bytes;
    while (!rest.empty()) {
      const ssize_t count = ::read(fd_.get(), rest.data(), rest.size());
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count < 0) {
        return io_error(path_.string(), errno);
      }
      if (count == 0) {
        return data_loss(path_.string() + " ended while it was read");
      }
      rest = rest.subspan(static_cast<std::size_t>(count));
    }
    if (!jumped_) {
      hasher_.update(bytes);
    }
    return {};
  }

  // What follows is read from there and no longer counts for hash().
  Status jump(std::uint64_t position) {
    jumped_ = true;
    return ::lseek(fd_.get(), static_cast<off_t>(position), SEEK_SET) >= 0
               ? Status{}
               : io_error(path_.string(), errno);
  }

 private:
  HashedFile(FileDescriptor fd, fs::path path, std::uint64_t size)
      : fd_(std::move(fd)), path_(std::move(path)), size_(size) {}

  FileDescriptor fd_;
  fs::path path_;
  std::uint64_t size_;
  Hasher128 hasher_;
  bool jumped_{false};
};

struct FileHeader {
  SafetensorsHeader tensors;
  std::uint64_t data_begin{0};
};

Expected<FileHeader> read_header(HashedFile& file) {
  if (file.size() < kHeaderLengthBytes) {
    return data_loss("the file ends inside the header length");
  }
  std::array<std::byte, kHeaderLengthBytes> prefix{};
  MUSTER_RETURN_IF_ERROR(file.read(prefix));
  MUSTER_ASSIGN_OR_RETURN(const std::uint64_t length, decode_header_length(prefix, file.size()));
  std::string json(length, '\0');
  MUSTER_RETURN_IF_ERROR(file.read(std::as_writable_bytes(std::span{json.data(), json.size()})));
  MUSTER_ASSIGN_OR_RETURN(SafetensorsHeader tensors, decode_header(json, file.size()));
  return FileHeader{std::move(tensors), kHeaderLengthBytes + length};
}

// Indices of the record's pieces in file order, after each has been found in the header.
Expected<std::vector<std::size_t>> match_pieces(
    const SafetensorsHeader& header, const RankRecord& record) {
  std::vector<std::size_t> order(record.pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const PieceRecord& x = record.pieces[a];
    const PieceRecord& y = record.pieces[b];
    return std::tie(x.begin, x.end, x.name) < std::tie(y.begin, y.end, y.name);
  });
  std::vector<TensorEntry> entries = header.tensors;
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  const bool same = std::equal(
      order.begin(),
      order.end(),
      entries.begin(),
      entries.end(),
      [&](std::size_t index, const TensorEntry& entry) {
        const PieceRecord& piece = record.pieces[index];
        return entry == TensorEntry{piece.name, piece.dtype, piece.shape, piece.begin, piece.end};
      });
  if (!same) {
    return data_loss("the header names other tensors than the rank's record");
  }
  return order;
}

// The requested part of a piece; the rest is read for its hash only.
struct Window {
  std::uint64_t begin{0};
  std::span<std::byte> out;

  // The bytes [from, from + size) of the piece that `out` takes, and where in the stretch they are.
  [[nodiscard]] std::pair<std::span<std::byte>, std::size_t> of(
      std::uint64_t from, std::size_t size) const {
    const std::uint64_t first = std::max(begin, from);
    const std::uint64_t last = std::min(begin + out.size(), from + size);
    if (first >= last) {
      return {};
    }
    return {out.subspan(first - begin, last - first), static_cast<std::size_t>(first - from)};
  }
};

Status wrong_hash(const PieceRecord& piece) {
  return data_loss("tensor '" + piece.name + "' does not match its hash");
}

// Bytes [from, from + size) of the piece, from the file's position on: those that are wanted in the
// window, all of them in what comes back.
Expected<std::span<const std::byte>> read_stretch(
    HashedFile& file,
    std::uint64_t from,
    std::size_t size,
    const Window& window,
    std::vector<std::byte>& scratch) {
  const auto [wanted, at] = window.of(from, size);
  if (wanted.size() == size) {
    MUSTER_RETURN_IF_ERROR(file.read(wanted));
    return std::span<const std::byte>{wanted};
  }
  scratch.resize(std::max(scratch.size(), size));
  const auto stretch = std::span{scratch}.first(size);
  MUSTER_RETURN_IF_ERROR(file.read(stretch));
  std::copy_n(stretch.begin() + static_cast<std::ptrdiff_t>(at), wanted.size(), wanted.begin());
  return std::span<const std::byte>{stretch};
}

// All of it, from the file's position on. `chunks`, if set, takes the hashes of its stretches.
Status read_piece(
    HashedFile& file,
    const PieceRecord& piece,
    const Window& window,
    std::vector<std::byte>& scratch,
    const ByteCounter& count,
    std::vector<Hash128>* chunks) {
  const std::uint64_t bytes = piece.end - piece.begin;
  std::vector<Hash128> hashes;
  Hasher128 hasher;
  for (std::uint64_t done = 0; done < bytes;) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kReadBytes, bytes - done));
    MUSTER_ASSIGN_OR_RETURN(const auto stretch, read_stretch(file, done, size, window, scratch));
    hasher.update(stretch);
    if (chunks != nullptr) {
      hashes.push_back(hash128(stretch));
    }
    done += size;
    if (count) {
      count(size);
    }
  }
  if (to_hex(hasher.digest()) != piece.hash) {
    return wrong_hash(piece);
  }
  if (chunks != nullptr) {
    *chunks = std::move(hashes);
  }
  return {};
}

// Only the stretches that the window needs, of a piece that was read in full before.
Status read_known_piece(
    HashedFile& file,
    std::uint64_t piece_begin,
    const PieceRecord& piece,
    const Window& window,
    const std::vector<Hash128>& chunks) {
  const std::uint64_t bytes = piece.end - piece.begin;
  const std::uint64_t last = window.begin + window.out.size();
  std::vector<std::byte> scratch;
  for (std::uint64_t at = window.begin / kReadBytes * kReadBytes; at < last; at += kReadBytes) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kReadBytes, bytes - at));
    MUSTER_RETURN_IF_ERROR(file.jump(piece_begin + at));
    MUSTER_ASSIGN_OR_RETURN(const auto stretch, read_stretch(file, at, size, window, scratch));
    if (hash128(stretch) != chunks[at / kReadBytes]) {
      return wrong_hash(piece);
    }
  }
  return {};
}

Status check_listing(const Manifest& manifest) {
  std::vector<std::string> listed;
  std::vector<std::string> expected;
  for (const FileEntry& file : manifest.files) {
    listed.push_back(file.name);
  }
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    expected.push_back(data_name(rank));
    expected.push_back(record_name(rank));
  }
  return manifest.world_size > 0 && listed == expected
             ? Status{}
             : data_loss("does not list two files for each of its ranks");
}

Status check_rank_files(const fs::path& folder, const Manifest& manifest) {
  std::error_code error;
  for (auto entry = fs::directory_iterator{folder, error}; !error && entry != fs::end(entry);
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool listed =
        std::any_of(manifest.files.begin(), manifest.files.end(), [&](const FileEntry& file) {
          return file.name == name;
        });
    if (name.starts_with("rank-") && !listed) {
      return data_loss(entry->path().string() + " is not in the manifest");
    }
  }
  return error ? io_error(folder.string(), error.value()) : Status{};
}

}  // namespace

Expected<Manifest> read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  const auto text = read_regular_file(path);
  if (!text) {
    return text.status().code() == StatusCode::kNotFound
               ? data_loss(path.string() + " is missing: this folder is not a checkpoint")
               : text.status();
  }
  auto manifest = decode_manifest(*text);
  if (!manifest) {
    return manifest.status().context(path.string());
  }
  MUSTER_RETURN_IF_ERROR(check_listing(*manifest).context(path.string()));
  return manifest;
}

Status check_files(const fs::path& folder, const Manifest& manifest) {
  const auto name = parse_step_folder(folder.filename().string());
  if (name && (name->step != manifest.step || name->generation != manifest.generation)) {
    return data_loss(folder.string() + " holds the manifest of another step or generation");
  }
  for (const FileEntry& file : manifest.files) {
    const fs::path path = folder / file.name;
    std::error_code error;
    const std::uint64_t bytes = fs::file_size(path, error);
    if (error) {
      return data_loss(path.string() + " is missing");
    }
    if (bytes != file.bytes) {
      return data_loss(
          path.string(),
          " has ",
          bytes,
          " bytes, must have ",
          file.bytes,
          " according to the manifest");
    }
  }
  return check_rank_files(folder, manifest);
}

Expected<RankRecord> read_record(const fs::path& folder, const Manifest& manifest, int rank) {
  const auto index = static_cast<std::size_t>(rank) * 2;
  const FileEntry& data_entry = manifest.files[index];
  const FileEntry& record_entry = manifest.files[index + 1];
  const fs::path path = folder / record_entry.name;
  MUSTER_ASSIGN_OR_RETURN(const std::string text, read_regular_file(path));
  if (to_hex(hash128(text)) != record_entry.hash) {
    return data_loss(path.string() + " does not match its hash");
  }
  auto record = decode_record(text);
  if (!record) {
    return record.status().context(path.string());
  }
  if (record->file != data_entry.name || record->file_hash != data_entry.hash ||
      record->file_bytes != data_entry.bytes || record->identity.rank.value() != rank) {
    return data_loss(path.string() + " and the manifest disagree about " + data_entry.name);
  }
  return record;
}

Status check_data(const fs::path& folder, const RankRecord& record, const ByteCounter& count) {
  const fs::path path = folder / record.file;
  MUSTER_ASSIGN_OR_RETURN(HashedFile file, HashedFile::open(path));
  const auto header = read_header(file);
  if (!header) {
    return header.status().context(path.string());
  }
  const auto order = match_pieces(header->tensors, record);
  if (!order) {
    return order.status().context(path.string());
  }
  std::vector<std::byte> scratch;
  for (const std::size_t index : *order) {
    MUSTER_RETURN_IF_ERROR(
        read_piece(file, record.pieces[index], {}, scratch, count, nullptr).context(path.string()));
  }
  if (file.hash() != record.file_hash) {
    return data_loss(path.string() + ": the header does not match the file's hash");
  }
  return {};
}

Expected<std::uint64_t> find_data(const fs::path& folder, const RankRecord& record) {
  const fs::path path = folder / record.file;
  MUSTER_ASSIGN_OR_RETURN(HashedFile file, HashedFile::open(path));
  const auto header = read_header(file);
  if (!header) {
    return header.status().context(path.string());
  }
  MUSTER_RETURN_IF_ERROR(match_pieces(header->tensors, record).status().context(path.string()));
  return header->data_begin;
}

Status read_piece_range(  // NOLINT(readability-function-size): a place in a file takes them all
    const fs::path& folder,
    const RankRecord& record,
    std::uint64_t data_begin,
    std::size_t piece_index,
    std::uint64_t from,
    std::span<std::byte> out,
    std::vector<Hash128>& chunks) {
  const fs::path path = folder / record.file;
  const PieceRecord& piece = record.pieces[piece_index];
  MUSTER_ASSIGN_OR_RETURN(HashedFile file, HashedFile::open(path));
  const std::uint64_t begin = data_begin + piece.begin;
  if (!chunks.empty()) {
    return read_known_piece(file, begin, piece, {from, out}, chunks).context(path.string());
  }
  MUSTER_RETURN_IF_ERROR(file.jump(begin));
  std::vector<std::byte> scratch;
  return read_piece(file, piece, {from, out}, scratch, {}, &chunks).context(path.string());
}

}  // namespace muster::checkpoint
