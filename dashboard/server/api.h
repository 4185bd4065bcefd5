// SPDX-License-Identifier: Apache-2.0
// The routes: what each address answers. docs/operate/dashboard.md lists them.
//
// Not thread-safe: everything runs on the HTTP worker thread.
#pragma once

#include "dashboard/server/http_message.h"
#include "dashboard/server/json_views.h"
#include "dashboard/server/query_source.h"
#include "dashboard/server/static_pages.h"
#include "dashboard/server/url.h"

#include <muster/common/clock.h>
#include <muster/dashboard/server.h>

#include <string>

namespace muster::dashboard {

class Api {
 public:
  // `clock` must outlive this and every stream it gave out; so must this.
  Api(ServerOptions options, QueryFactory open_query, const Clock& clock);

  // Never throws: an unexpected failure is a 500 that says so.
  [[nodiscard]] HttpResponse handle(const HttpRequest& request);

 private:
  [[nodiscard]] HttpResponse route(const HttpRequest& request);
  [[nodiscard]] HttpResponse read(const HttpRequest& request, const Url& url);
  [[nodiscard]] HttpResponse read_run(
      const HttpRequest& request,
      const std::string& run_id,
      const std::string& leaf,
      const Url& url);
  [[nodiscard]] Expected<std::string> run_view(const std::string& run_id, const std::string& leaf);
  [[nodiscard]] Expected<std::string> runs();
  [[nodiscard]] Expected<std::string> events(const std::string& run_id, const Url& url);
  [[nodiscard]] Expected<std::string> range(const std::string& run_id, const Url& url);
  [[nodiscard]] Expected<std::string> step(const std::string& run_id, const Url& url);
  [[nodiscard]] HttpResponse live(
      const HttpRequest& request, const std::string& run_id, const Url& url);
  [[nodiscard]] HttpResponse command(const HttpRequest& request, const std::string& run_id);
  [[nodiscard]] HttpResponse health();
  [[nodiscard]] HttpResponse metrics() const;
  [[nodiscard]] CommandAccess access() const;

  ServerOptions options_;
  QuerySource queries_;
  const Clock* clock_;
  StaticPages pages_;
  bool loopback_;
};

}  // namespace muster::dashboard
