// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/layout.h"

#include <charconv>
#include <cstdint>

namespace muster::checkpoint {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) {
    return false;
  }
  text.remove_prefix(prefix.size());
  return true;
}

// One spelling per number, so that a name and its folder match exactly.
std::optional<std::int64_t> take_number(std::string_view& text) {
  if (text.empty() || !is_digit(text[0]) ||
      (text[0] == '0' && text.size() > 1 && is_digit(text[1]))) {
    return std::nullopt;
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

}  // namespace

std::string to_name(const StepFolder& folder) {
  return "step-" + std::to_string(folder.step.value()) + ".gen-" +
         std::to_string(folder.generation.value()) + (folder.unfinished ? ".tmp" : "");
}

std::optional<StepFolder> parse_step_folder(std::string_view name) {
  if (!take_prefix(name, "step-")) {
    return std::nullopt;
  }
  const auto step = take_number(name);
  if (!step || !take_prefix(name, ".gen-")) {
    return std::nullopt;
  }
  const auto generation = take_number(name);
  if (!generation || (!name.empty() && name != ".tmp")) {
    return std::nullopt;
  }
  return StepFolder{StepIndex{*step}, Generation{*generation}, !name.empty()};
}

std::string data_name(int rank) {
  return "rank-" + std::to_string(rank) + ".safetensors";
}

std::string record_name(int rank) {
  return "rank-" + std::to_string(rank) + ".json";
}

Status check_run_id(std::string_view run_id) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (run_id.empty() || run_id.size() > 200 || run_id.front() == '.' ||
      run_id.find_first_not_of(kAllowed) != std::string_view::npos) {
    return invalid_argument(
        "run id '" + std::string{run_id} +
        "' cannot name a folder: use letters, digits, '.', '_' and '-', not starting with '.'");
  }
  return {};
}

}  // namespace muster::checkpoint
