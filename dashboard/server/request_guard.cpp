// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/request_guard.h"

#include <muster/common/constant_time.h>

#include <algorithm>

namespace muster::dashboard {

namespace {

constexpr std::string_view kBearer = "Bearer ";

std::string_view without_port(std::string_view host) {
  if (!host.empty() && host.front() == '[') {
    return host.substr(0, host.find(']') + 1);
  }
  return host.substr(0, host.find(':'));
}

Status check_token(const HttpRequest& request, const std::string& token, bool on_loopback) {
  if (token.empty()) {
    if (on_loopback) {
      return {};
    }
    return failed_precondition(
        "commands are off: the dashboard listens beyond loopback without an operator token; "
        "start the collector with one");
  }
  const std::string_view given = request.header("authorization");
  if (given.substr(0, kBearer.size()) != kBearer ||
      !equal_in_constant_time(given.substr(kBearer.size()), token)) {
    return failed_precondition(
        "the operator token is missing or wrong; send \"Authorization: Bearer <token>\"");
  }
  return {};
}

// Without parameters, spaces around it and case.
bool is_json(std::string_view type) {
  constexpr std::string_view kMediaType = "application/json";
  type = type.substr(0, type.find(';'));
  type.remove_prefix(std::min(type.find_first_not_of(" \t"), type.size()));
  type = type.substr(0, type.find_last_not_of(" \t") + 1);
  return std::equal(
      type.begin(), type.end(), kMediaType.begin(), kMediaType.end(), [](char a, char b) {
        return (a >= 'A' && a <= 'Z' ? a + ('a' - 'A') : a) == b;
      });
}

}  // namespace

bool is_loopback_name(std::string_view host) {
  const std::string_view name = without_port(host);
  const bool ipv4 = name.substr(0, 4) == "127." &&
                    name.find_first_not_of("0123456789.") == std::string_view::npos;
  return ipv4 || name == "localhost" || name == "[::1]";
}

Status check_host(const HttpRequest& request, bool listens_on_loopback) {
  const std::string& host = request.header("host");
  if (!listens_on_loopback || is_loopback_name(host)) {
    return {};
  }
  return failed_precondition(
      "Host \"" + host + "\" is not a loopback name; open the dashboard as http://127.0.0.1, or " +
      "listen on an outside address");
}

Status check_operator(
    const HttpRequest& request, const std::string& token, bool listens_on_loopback) {
  if (!is_json(request.header("content-type"))) {
    return invalid_argument("a command needs the header \"Content-Type: application/json\"");
  }
  if (request.header("x-muster-operator").empty()) {
    return failed_precondition("a command needs the header \"X-Muster-Operator: <who>\"");
  }
  const std::string& origin = request.header("origin");
  if (!origin.empty() && origin != "http://" + request.header("host") &&
      origin != "https://" + request.header("host")) {
    return failed_precondition("a page of " + origin + " may not send commands here");
  }
  return check_token(request, token, listens_on_loopback);
}

}  // namespace muster::dashboard
