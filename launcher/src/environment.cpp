// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/environment.h"

#include <unistd.h>

#include <map>
#include <string_view>

namespace muster::launcher {

namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

// Four ranks with as many BLAS threads each as there are cores would fight for them.
constexpr std::string_view kThreadVariables[] = {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"};

void set_if_given(Variables& variables, const char* name, const std::string& value) {
  if (!value.empty()) {
    variables.insert_or_assign(name, value);
  }
}

}  // namespace

std::vector<std::string> rank_environment(
    const LauncherOptions& options,
    const GenerationSetup& setup,
    int rank,
    const std::string& incarnation,
    std::span<const std::string> inherited) {
  Variables variables;
  for (const std::string& entry : inherited) {
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos) {
      variables.insert_or_assign(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  for (const std::string_view name : kThreadVariables) {
    variables.emplace(name, "1");
  }
  const std::string count = std::to_string(options.process_count);
  const Variables own{
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", count},
      {"LOCAL_RANK", std::to_string(rank)},
      {"LOCAL_WORLD_SIZE", count},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(setup.master_port)},
      {"MUSTER_RUN_ID", options.run_id},
      {"MUSTER_GENERATION", std::to_string(setup.generation.value())},
      {"MUSTER_INCARNATION", incarnation},
      {"MUSTER_RESUME_FROM", setup.resume_from.string()},
      {"MUSTER_CHECKPOINT_ROOT", options.checkpoint_root.string()},
      {"MUSTER_SPOOL", options.spool_directory.string()}};
  for (const auto& [name, value] : own) {
    variables.insert_or_assign(name, value);
  }
  set_if_given(variables, "MUSTER_RUN_UID", setup.run_uid);
  set_if_given(variables, "MUSTER_COLLECTOR", options.collector);
  set_if_given(variables, "MUSTER_TOKEN_FILE", options.token_file.string());
  for (const auto& [name, value] : options.environment) {
    variables.insert_or_assign(name, value);
  }
  std::vector<std::string> out;
  out.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    std::string& text = out.emplace_back(name);
    text += '=';
    text += value;
  }
  return out;
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    out.emplace_back(*entry);
  }
  return out;
}

}  // namespace muster::launcher
