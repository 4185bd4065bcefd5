// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/text.h"

#include <muster/common/random.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <string_view>

namespace muster::moe_lm {
namespace {

namespace fs = std::filesystem;

// Philox streams: this one for data, hashes of names for weights.
constexpr std::uint64_t kDataStream = 0x6461746100000000;
constexpr std::uint64_t kElsewhereStream = 0x6576616c00000000;
constexpr std::uint64_t kElsewhereSeed = 20260101;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Returns the run of digits at `at`, without leading zeros.
std::string_view digits(const std::string& text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_digit(text[end])) {
    ++end;
  }
  return std::string_view{text}.substr(at, end - at);
}

std::string_view without_zeros(std::string_view number) {
  return number.substr(std::min(number.find_first_not_of('0'), number.size()));
}

Expected<std::string> read_file(const fs::path& path) {
  std::ifstream file{path, std::ios::binary};
  if (!file) {
    return io_error("cannot read '" + path.string() + "'", errno);
  }
  return std::string{std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{}};
}

std::vector<fs::path> text_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator{folder, error}) {
    if (entry.path().extension() == ".txt") {
      files.push_back(entry.path());
    }
  }
  const auto is_chapter = [](const fs::path& file) {
    return file.filename().string().starts_with("chapter_");
  };
  if (std::any_of(files.begin(), files.end(), is_chapter)) {
    std::erase_if(files, [&](const fs::path& file) { return !is_chapter(file); });
  }
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return natural_less(a.filename().string(), b.filename().string());
  });
  return files;
}

// Copies a sequence from a random offset of the text, with the byte that follows each of its bytes.
void append(const std::string& text, std::int64_t length, Random random, Batch& batch) {
  const std::uint64_t start = random.below(text.size() - static_cast<std::size_t>(length));
  for (std::uint64_t i = start; i < start + static_cast<std::uint64_t>(length); ++i) {
    batch.tokens.push_back(static_cast<unsigned char>(text[i]));
    batch.targets.push_back(static_cast<unsigned char>(text[i + 1]));
  }
}

}  // namespace

bool natural_less(const std::string& a, const std::string& b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const std::string_view run_a = digits(a, i);
      const std::string_view run_b = digits(b, j);
      const std::string_view number_a = without_zeros(run_a);
      const std::string_view number_b = without_zeros(run_b);
      if (number_a != number_b) {
        return number_a.size() != number_b.size() ? number_a.size() < number_b.size()
                                                  : number_a < number_b;
      }
      i += run_a.size();
      j += run_b.size();
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

Expected<std::string> load_text(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return not_found("'", path, "' does not exist; --data takes a file or a folder of *.txt");
  }
  if (!fs::is_directory(path, error)) {
    return read_file(path);
  }
  const std::vector<fs::path> files = text_files(path);
  if (files.empty()) {
    return not_found("folder '", path.string(), "' has no *.txt files to train on");
  }
  std::string text;
  for (const fs::path& file : files) {
    MUSTER_ASSIGN_OR_RETURN(const std::string part, read_file(file));
    text += part;
  }
  return text;
}

Batch BatchSource::sequences(std::int64_t index, std::int64_t first, std::int64_t count) const {
  Batch batch;
  for (std::int64_t sequence = first; sequence < first + count; ++sequence) {
    const auto global = static_cast<std::uint64_t>(index * sequences_per_batch + sequence);
    append(*text, length, Random{seed, kDataStream + global}, batch);
  }
  return batch;
}

Batch BatchSource::elsewhere(std::int64_t first, std::int64_t count) const {
  Batch batch;
  for (std::int64_t sequence = first; sequence < first + count; ++sequence) {
    const auto global = static_cast<std::uint64_t>(sequence);
    append(*text, length, Random{kElsewhereSeed, kElsewhereStream + global}, batch);
  }
  return batch;
}

void keep_loss_of_every(std::int64_t n, std::int64_t length, Batch& batch) {
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    const std::int64_t position = static_cast<std::int64_t>(i) % length;
    if ((position + 1) % n != 0) {
      batch.targets[i] = -1;
    }
  }
}

}  // namespace muster::moe_lm
