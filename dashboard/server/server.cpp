// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/api.h"
#include "dashboard/server/start_server.h"

#include <utility>

namespace muster::dashboard {

namespace {

class HttpServer final : public Server {
 public:
  HttpServer(ServerOptions options, QueryFactory open_query, const Clock& clock)
      : api_(std::move(options), std::move(open_query), clock) {}

  Status listen(const std::string& address, HttpLimits limits) {
    MUSTER_ASSIGN_OR_RETURN(
        service_,
        HttpService::start(
            address, [this](const HttpRequest& request) { return api_.handle(request); }, limits));
    url_ = "http://" + service_->address();
    return {};
  }

  [[nodiscard]] std::string url() const override { return url_; }

  void stop() override { service_->stop(); }

 private:
  Api api_;
  std::unique_ptr<HttpService> service_;  // After api_: joined before it goes.
  std::string url_;
};

}  // namespace

Expected<std::unique_ptr<Server>> start_server(
    ServerOptions options, QueryFactory open_query, const Clock& clock, HttpLimits limits) {
  const std::string address = options.listen;
  auto server = std::make_unique<HttpServer>(std::move(options), std::move(open_query), clock);
  MUSTER_RETURN_IF_ERROR(server->listen(address, limits));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace muster::dashboard
