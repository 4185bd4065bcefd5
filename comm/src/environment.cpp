// SPDX-License-Identifier: Apache-2.0
#include <muster/comm/backends.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace muster::comm {

namespace {

// Null where it is not set. Nothing in muster writes the environment beside other threads.
const char* variable(const char* name) {
  return std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
}

Expected<std::string> text_of(const char* name) {
  const char* value = variable(name);
  if (value == nullptr || *value == '\0') {
    return invalid_argument(
        std::string{"environment variable "} + name +
        " is not set; start the ranks with `muster run`, which sets it");
  }
  return std::string{value};
}

Expected<int> number_of(const char* name) {
  MUSTER_ASSIGN_OR_RETURN(const std::string text, text_of(name));
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || rest != end || number < 0) {
    return invalid_argument(
        std::string{"environment variable "} + name + " is \"" + text +
        "\": it must be a whole number from 0");
  }
  return number;
}

std::string text_or(const char* name, std::string_view fallback) {
  const char* value = variable(name);
  return std::string{value == nullptr || *value == '\0' ? fallback : std::string_view{value}};
}

}  // namespace

Expected<std::unique_ptr<Communicator>> connect_from_environment(Deadline deadline) {
  if (variable("RANK") == nullptr) {
    return std::move(make_local_group(1).front());
  }
  ConnectOptions options;
  MUSTER_ASSIGN_OR_RETURN(options.rank, number_of("RANK"));
  MUSTER_ASSIGN_OR_RETURN(options.size, number_of("WORLD_SIZE"));
  if (options.rank >= options.size) {
    return invalid_argument(
        "RANK must be between 0 and WORLD_SIZE - 1, got RANK ",
        options.rank,
        " and WORLD_SIZE ",
        options.size);
  }
  MUSTER_ASSIGN_OR_RETURN(const int local_size, number_of("LOCAL_WORLD_SIZE"));
  MUSTER_ASSIGN_OR_RETURN(const int port, number_of("MASTER_PORT"));
  MUSTER_ASSIGN_OR_RETURN(const std::string run, text_of("MUSTER_RUN_ID"));
  MUSTER_ASSIGN_OR_RETURN(const int generation, number_of("MUSTER_GENERATION"));
  options.session = concat(run, ".gen-", generation, ".port-", port);
  const bool one_host = local_size == options.size;
  const std::string backend = text_or("MUSTER_COMM", one_host ? "shm" : "gloo");
  if (backend == "shm") {
    if (!one_host) {
      return invalid_argument(
          "MUSTER_COMM is shm, but LOCAL_WORLD_SIZE is ",
          local_size,
          " of WORLD_SIZE ",
          options.size,
          ": ranks of several hosts need MUSTER_COMM=gloo");
    }
    return connect_shm(options, deadline);
  }
  if (backend == "gloo") {
    MUSTER_ASSIGN_OR_RETURN(options.gloo_store_path, text_of("MUSTER_GLOO_STORE"));
    options.gloo_interface = text_or("MUSTER_GLOO_INTERFACE", options.gloo_interface);
    return connect_gloo(options, deadline);
  }
  return invalid_argument(
      "environment variable MUSTER_COMM is \"" + backend + "\": it must be shm or gloo");
}

}  // namespace muster::comm
