// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/generation.h"

#include "checkpoint/src/layout.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/clock.h>
#include <muster/common/random.h>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string>
#include <thread>

namespace muster::checkpoint {

namespace fs = std::filesystem;

namespace {

// Holders keep the lock for a few file operations; a longer wait means a stuck one.
constexpr auto kLockTimeout = std::chrono::seconds{10};
constexpr auto kLockRetry = std::chrono::milliseconds{5};

// Folders outlive a lost GENERATION file, so their names bound the next number from below.
Generation highest_in_names(const fs::path& run_folder) {
  Generation highest;
  std::error_code error;
  for (auto entry = fs::directory_iterator{run_folder, error}; !error && entry != fs::end(entry);
       entry.increment(error)) {
    if (const auto folder = parse_step_folder(entry->path().filename().string())) {
      highest = std::max(highest, folder->generation);
    }
  }
  return highest;
}

constexpr std::size_t kRunUidBytesMax = 256;

Expected<std::string> read_run_uid(const fs::path& run_folder) {
  const fs::path path = run_folder / kRunUidName;
  auto text = read_regular_file(path, kRunUidBytesMax);
  if (!text) {
    return text.status().code() == StatusCode::kNotFound ? Expected<std::string>{std::string{}}
                                                         : text.status();
  }
  if (text->size() < 2 || text->find('\n') + 1 != text->size()) {
    return data_loss(path.string() + " is damaged: delete it, and the run gets a new line");
  }
  text->pop_back();
  return text;
}

Status ensure_run_uid(const fs::path& run_folder) {
  MUSTER_ASSIGN_OR_RETURN(const std::string known, read_run_uid(run_folder));
  return known.empty() ? write_file_durably(run_folder / kRunUidName, random_hex_id() + "\n")
                       : Status{};
}

}  // namespace

Expected<FileLock> lock_generation(const fs::path& run_folder, std::string_view owner_note) {
  const Deadline deadline = Deadline::after(kLockTimeout);
  while (true) {
    auto lock = FileLock::acquire(run_folder / kGenerationLockName, owner_note);
    if (lock || lock.status().code() != StatusCode::kAlreadyExists || deadline.expired()) {
      return lock;
    }
    std::this_thread::sleep_for(kLockRetry);
  }
}

Expected<Generation> read_generation(const fs::path& run_folder) {
  const fs::path path = run_folder / kGenerationName;
  const auto text = read_regular_file(path, 64);
  if (!text) {
    if (text.status().code() == StatusCode::kNotFound) {
      return Generation{0};
    }
    return text.status();
  }
  std::int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, value);
  if (parsed.ec != std::errc{} || value < 1 || std::string_view(parsed.ptr, end) != "\n") {
    return data_loss(
        path.string() + " is damaged: write the highest generation this run ever had into it");
  }
  return Generation{value};
}

Status check_fence(const fs::path& run_folder, Generation mine) {
  MUSTER_ASSIGN_OR_RETURN(const Generation current, read_generation(run_folder));
  if (current.value() != 0 && current != mine) {
    return failed_precondition(
        "generation ",
        mine.value(),
        " is fenced: generation ",
        current.value(),
        " is in force in ",
        run_folder.string());
  }
  return {};
}

Expected<Generation> allocate_generation(const fs::path& root, const std::string& run_id) {
  MUSTER_RETURN_IF_ERROR(check_run_id(run_id));
  const fs::path run_folder = root / run_id;
  MUSTER_RETURN_IF_ERROR(muster::create_directories(run_folder));
  MUSTER_RETURN_IF_ERROR(fsync_directory(root));
  MUSTER_ASSIGN_OR_RETURN(
      const FileLock lock,
      lock_generation(
          run_folder, "pid " + std::to_string(::getpid()) + " allocating a generation"));
  MUSTER_RETURN_IF_ERROR(ensure_run_uid(run_folder));
  MUSTER_ASSIGN_OR_RETURN(const Generation current, read_generation(run_folder));
  const Generation next{std::max(current, highest_in_names(run_folder)).value() + 1};
  MUSTER_RETURN_IF_ERROR(
      write_file_durably(run_folder / kGenerationName, std::to_string(next.value()) + "\n"));
  return next;
}

Expected<Generation> current_generation(const fs::path& root, const std::string& run_id) {
  MUSTER_RETURN_IF_ERROR(check_run_id(run_id));
  return read_generation(root / run_id);
}

Expected<std::string> run_uid(const fs::path& root, const std::string& run_id) {
  MUSTER_RETURN_IF_ERROR(check_run_id(run_id));
  return read_run_uid(root / run_id);
}

}  // namespace muster::checkpoint
