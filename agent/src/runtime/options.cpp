// SPDX-License-Identifier: Apache-2.0
// AgentOptions from the variables that `muster run` (and torchrun) set.
#include <muster/agent/agent.h>
#include <muster/common/file.h>
#include <muster/common/random.h>
#include <muster/common/text.h>

#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

namespace muster::agent {
namespace {

constexpr std::size_t kTokenBytesMax = 4096;

std::optional<std::string> variable(const char* name) {
  // Nothing in muster writes the environment while a second thread is there to read it.
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>{value};
}

Expected<std::int64_t> integer(
    const char* name, std::int64_t fallback, std::int64_t min, std::int64_t max) {
  const std::optional<std::string> text = variable(name);
  if (!text) {
    return fallback;
  }
  const auto value = muster::parse<std::int64_t>(*text);
  if (!value || *value < min || *value > max) {
    return invalid_argument(name, "='", *text, "' must be an integer between ", min, " and ", max);
  }
  return *value;
}

std::string trimmed(std::string text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  text.erase(end == std::string::npos ? 0 : end + 1);
  return text;
}

Expected<std::string> read_token() {
  const std::optional<std::string> path = variable("MUSTER_TOKEN_FILE");
  if (!path) {
    return std::string{};
  }
  auto content = read_file(*path, kTokenBytesMax);
  if (!content) {
    return content.status().context("MUSTER_TOKEN_FILE");
  }
  return trimmed(std::move(content).value());
}

Status read_identity(AgentOptions& options) {
  constexpr std::int64_t kRankMax = std::numeric_limits<std::int32_t>::max();
  if (variable("WORLD_SIZE") && !variable("RANK")) {
    return invalid_argument("WORLD_SIZE is set and RANK is not: set both, or neither");
  }
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t world_size, integer("WORLD_SIZE", 1, 1, kRankMax));
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t rank, integer("RANK", 0, 0, world_size - 1));
  MUSTER_ASSIGN_OR_RETURN(
      const std::int64_t generation,
      integer("MUSTER_GENERATION", 1, 1, std::numeric_limits<std::int64_t>::max()));
  options.world_size = static_cast<int>(world_size);
  options.identity.rank = Rank{static_cast<std::int32_t>(rank)};
  options.identity.generation = Generation{generation};
  options.identity.run_id = variable("MUSTER_RUN_ID").value_or("local");
  options.identity.incarnation = variable("MUSTER_INCARNATION").value_or(random_hex_id());
  options.identity.run_uid = variable("MUSTER_RUN_UID").value_or("");
  return {};
}

}  // namespace

Expected<AgentOptions> AgentOptions::from_environment() {
  AgentOptions options;
  MUSTER_RETURN_IF_ERROR(read_identity(options));
  MUSTER_ASSIGN_OR_RETURN(options.token, read_token());
  constexpr std::int64_t kDay = std::int64_t{24} * 60 * 60;
  const std::int64_t fallback =
      std::chrono::duration_cast<std::chrono::seconds>(options.collective_timeout).count();
  MUSTER_ASSIGN_OR_RETURN(
      const std::int64_t timeout, integer("MUSTER_COLLECTIVE_TIMEOUT", fallback, 1, kDay));
  options.collective_timeout = std::chrono::seconds{timeout};
  MUSTER_ASSIGN_OR_RETURN(
      const std::int64_t allow_attention_change, integer("MUSTER_ALLOW_ATTENTION_CHANGE", 0, 0, 1));
  options.allow_attention_change = allow_attention_change == 1;
  options.collector = variable("MUSTER_COLLECTOR").value_or("");
  options.checkpoint_root = variable("MUSTER_CHECKPOINT_ROOT").value_or("");
  options.resume_from = variable("MUSTER_RESUME_FROM").value_or("");
  options.spool_directory = variable("MUSTER_SPOOL").value_or("");
  return options;
}

}  // namespace muster::agent
