// SPDX-License-Identifier: Apache-2.0
#include <muster/common/log.h>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace muster {

namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

// Makes spdlog's registry before any thread exists. Two threads whose first lines came at once
// would make it together: correct, but the library is not instrumented, so a race detector cannot
// see why.
[[maybe_unused]] const spdlog::logger* const made_early = spdlog::default_logger_raw();

}  // namespace

void init_logging(std::string_view program, LogLevel level) {
  auto logger = spdlog::stderr_color_mt(std::string{program});
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ [%n] %v");
  logger->set_level(to_spdlog(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

LogLevel parse_log_level(std::string_view name) {
  if (name == "debug") {
    return LogLevel::kDebug;
  }
  if (name == "warning") {
    return LogLevel::kWarning;
  }
  if (name == "error") {
    return LogLevel::kError;
  }
  return name == "off" ? LogLevel::kOff : LogLevel::kInfo;
}

void log_debug(std::string_view line) {
  spdlog::debug(line);
}

void log_info(std::string_view line) {
  spdlog::info(line);
}

void log_warning(std::string_view line) {
  spdlog::warn(line);
}

void log_error(std::string_view line) {
  spdlog::error(line);
}

}  // namespace muster
