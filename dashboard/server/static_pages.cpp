// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/static_pages.h"

#include <muster/common/file.h>

#include <algorithm>
#include <array>
#include <optional>
#include <system_error>
#include <utility>

namespace muster::dashboard {

namespace {

constexpr std::size_t kFileBytesMax = std::size_t{16} << 20U;

constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kMimeTypes{{
    {".html", "text/html; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
    {".css", "text/css; charset=utf-8"},
    {".svg", "image/svg+xml"},
    {".png", "image/png"},
    {".ico", "image/x-icon"},
    {".json", "application/json"},
    {".map", "application/json"},
    {".woff2", "font/woff2"},
    {".txt", "text/plain; charset=utf-8"},
}};

std::optional<std::string> read_embedded(const std::string& path) {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.path == path) {
      return std::string(file.content);
    }
  }
  return std::nullopt;
}

// Follows links, but never out of `root`.
std::optional<std::string> read_below(const std::filesystem::path& root, const std::string& path) {
  std::error_code error;
  const auto folder = std::filesystem::canonical(root, error);
  const auto file =
      error ? std::filesystem::path{} : std::filesystem::canonical(root / path, error);
  if (error || !std::filesystem::is_regular_file(file, error)) {
    return std::nullopt;
  }
  if (std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first != folder.end()) {
    return std::nullopt;
  }
  auto content = read_file(file, kFileBytesMax);
  return content.ok() ? std::optional(std::move(content).value()) : std::nullopt;
}

}  // namespace

std::string_view mime_type(std::string_view path) {
  for (const auto& [ending, type] : kMimeTypes) {
    if (path.size() >= ending.size() && path.substr(path.size() - ending.size()) == ending) {
      return type;
    }
  }
  return "application/octet-stream";
}

HttpResponse StaticPages::find(const std::vector<std::string>& segments) const {
  std::string path;
  for (const std::string& segment : segments) {
    // A decoded "/" inside a segment would be a path of its own.
    if (segment.find('/') != std::string::npos) {
      path.clear();
      break;
    }
    path += path.empty() ? segment : "/" + segment;
  }
  if (segments.empty()) {
    path = "index.html";
  }
  auto content = path.empty()    ? std::nullopt
                 : root_.empty() ? read_embedded(path)
                                 : read_below(root_, path);
  HttpResponse response;
  if (!content) {
    response.status = 404;
    response.body = "no such page; the dashboard is at /\n";
    return response;
  }
  response.content_type = std::string(mime_type(path));
  response.body = std::move(*content);
  // The names under assets/ carry a hash of their content.
  const bool hashed = path.compare(0, 7, "assets/") == 0;
  response.headers.emplace_back(
      "Cache-Control", hashed ? "public, max-age=31536000, immutable" : "no-cache");
  return response;
}

}  // namespace muster::dashboard
