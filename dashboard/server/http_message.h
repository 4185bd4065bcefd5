// SPDX-License-Identifier: Apache-2.0
// A request and its response, without the HTTP library: what routes are written against.
//
// Plain values. A response is either whole (`body`) or a stream (`stream` set).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::dashboard {

struct HttpRequest {
  std::string method;                          // "GET", upper case
  std::string target;                          // as sent: path and query, still percent-encoded
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  // The header's value, or "" when it is absent.
  [[nodiscard]] const std::string& header(const std::string& name_lower) const {
    static const std::string kAbsent;
    const auto found = headers.find(name_lower);
    return found == headers.end() ? kAbsent : found->second;
  }
};

struct HttpResponse {
  // Asked again and again while the client keeps up: the bytes to send next ("" for none now), or
  // nullopt to end the stream. Runs on the worker thread; what it needs it owns.
  using Stream = std::function<std::optional<std::string>()>;

  int status{200};
  std::string content_type{"text/plain; charset=utf-8"};
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  Stream stream;
};

}  // namespace muster::dashboard
