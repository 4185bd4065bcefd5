// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/api.h"

#include "dashboard/server/live_feed.h"
#include "dashboard/server/query_parameters.h"
#include "dashboard/server/range_codec.h"
#include "dashboard/server/request_guard.h"

#include <exception>
#include <limits>
#include <memory>
#include <utility>

namespace muster::dashboard {

namespace {

constexpr std::int64_t kStepMax = std::int64_t{1} << 53;  // exact as a double
constexpr std::int64_t kBucketsMax = 8192;
constexpr std::int64_t kBucketsDefault = 1000;
constexpr std::size_t kSeriesMax = 8192;
constexpr std::size_t kGenerationsMax = 64;
constexpr std::int64_t kBucketsPerReply = 4'000'000;  // 144 MB of answer
constexpr std::int64_t kEventsMax = 5000;
constexpr const char* kJson = "application/json";

int http_status(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return 400;
    case StatusCode::kFailedPrecondition:
      return 403;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kAlreadyExists:
    case StatusCode::kAborted:
      return 409;
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable:
      return 503;
    case StatusCode::kDeadlineExceeded:
      return 504;
    case StatusCode::kUnimplemented:
      return 501;
    default:
      return 500;
  }
}

HttpResponse failure(int status, const std::string& message) {
  HttpResponse response;
  response.status = status;
  response.content_type = kJson;
  response.body = error_json(message);
  return response;
}

HttpResponse failure(const Status& status) {
  return failure(http_status(status.code()), status.message());
}

HttpResponse answer(Expected<std::string> body, const char* content_type = kJson) {
  if (!body.ok()) {
    return failure(body.status());
  }
  HttpResponse response;
  response.content_type = content_type;
  response.body = std::move(body).value();
  response.headers.emplace_back("Cache-Control", "no-store");
  return response;
}

HttpResponse wrong_method(const char* allowed) {
  HttpResponse response =
      failure(405, std::string("this address takes ") + allowed + " requests only");
  response.headers.emplace_back("Allow", allowed);
  return response;
}

void add_security_headers(HttpResponse& response) {
  response.headers.emplace_back(
      "Content-Security-Policy",
      "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
      "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "
      "'none'");
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  response.headers.emplace_back("Referrer-Policy", "no-referrer");
}

struct RangeRequest {
  std::vector<std::int64_t> series;
  std::vector<std::int64_t> generations;
  std::int64_t from{0};
  std::int64_t to{-1};
  std::int64_t buckets{kBucketsDefault};
};

Expected<RangeRequest> parse_range(const Url& url) {
  const QueryParameters parameters{url.query};
  RangeRequest request;
  MUSTER_ASSIGN_OR_RETURN(request.series, parameters.id_list("series", kSeriesMax));
  MUSTER_ASSIGN_OR_RETURN(request.generations, parameters.id_list("generation", kGenerationsMax));
  MUSTER_ASSIGN_OR_RETURN(request.from, parameters.integer("from", 0, 0, kStepMax));
  MUSTER_ASSIGN_OR_RETURN(request.to, parameters.integer("to", -1, -1, kStepMax));
  MUSTER_ASSIGN_OR_RETURN(
      request.buckets, parameters.integer("buckets", kBucketsDefault, 2, kBucketsMax));
  if (request.series.empty()) {
    return invalid_argument(
        "parameter \"series\" is missing; expected ids of /series such as series=3,5-9");
  }
  if (request.to >= 0 && request.to < request.from) {
    return invalid_argument("parameter \"to\" lies before \"from\"");
  }
  const auto entries = static_cast<std::int64_t>(
      request.series.size() * std::max<std::size_t>(request.generations.size(), 1));
  if (entries * request.buckets > kBucketsPerReply) {
    return invalid_argument(
        "series x generations x buckets is over ",
        kBucketsPerReply,
        "; ask for fewer buckets or in several requests");
  }
  return request;
}

}  // namespace

Api::Api(ServerOptions options, QueryFactory open_query, const Clock& clock)
    : options_(std::move(options)),
      queries_(std::move(open_query)),
      clock_(&clock),
      pages_(options_.web_root),
      loopback_(is_loopback_name(options_.listen)) {}

HttpResponse Api::handle(const HttpRequest& request) {
  HttpResponse response;
  try {
    response = route(request);
  } catch (const std::exception& error) {
    response = failure(500, std::string("the dashboard failed: ") + error.what());
  }
  add_security_headers(response);
  return response;
}

HttpResponse Api::route(const HttpRequest& request) {
  const Status host = check_host(request, loopback_);
  if (!host.ok()) {
    return failure(host);
  }
  const Expected<Url> url = parse_target(request.target);
  if (!url.ok()) {
    return failure(url.status());
  }
  const auto& segments = url.value().segments;
  const bool commands = segments.size() == 4 && segments[0] == "api" && segments[1] == "runs" &&
                        segments[3] == "commands";
  if (request.method == "POST" && commands) {
    return command(request, segments[2]);
  }
  if (request.method != "GET" && request.method != "HEAD") {
    return wrong_method(commands ? "GET, HEAD, POST" : "GET, HEAD");
  }
  return read(request, url.value());
}

HttpResponse Api::read(const HttpRequest& request, const Url& url) {
  const auto& segments = url.segments;
  if (segments.size() == 1 && segments[0] == "healthz") {
    return health();
  }
  if (segments.size() == 1 && segments[0] == "metrics") {
    return metrics();
  }
  if (segments.empty() || segments[0] != "api") {
    return pages_.find(segments);
  }
  if (segments.size() == 2 && segments[1] == "runs") {
    return answer(runs());
  }
  if ((segments.size() == 3 || segments.size() == 4) && segments[1] == "runs") {
    return read_run(request, segments[2], segments.size() == 4 ? segments[3] : "", url);
  }
  return failure(404, "no such address; docs/operate/dashboard.md lists them");
}

HttpResponse Api::read_run(
    const HttpRequest& request,
    const std::string& run_id,
    const std::string& leaf,
    const Url& url) {
  if (leaf == "range") {
    return answer(range(run_id, url), "application/octet-stream");
  }
  if (leaf == "step") {
    return answer(step(run_id, url));
  }
  if (leaf == "events") {
    return answer(events(run_id, url));
  }
  if (leaf == "live") {
    return live(request, run_id, url);
  }
  return answer(run_view(run_id, leaf));
}

Expected<std::string> Api::runs() {
  MUSTER_ASSIGN_OR_RETURN(store::Query * query, queries_.get());
  MUSTER_ASSIGN_OR_RETURN(const auto runs, query->runs());
  return runs_json(runs, access(), unix_ns(clock_->wall_now()));
}

Expected<std::string> Api::run_view(const std::string& run_id, const std::string& leaf) {
  MUSTER_ASSIGN_OR_RETURN(store::Query * query, queries_.get());
  MUSTER_ASSIGN_OR_RETURN(const store::RunInfo run, query->run(run_id));
  if (leaf.empty()) {
    MUSTER_ASSIGN_OR_RETURN(const auto generations, query->generations(run_id));
    return run_json(run, generations, access(), unix_ns(clock_->wall_now()));
  }
  if (leaf == "series") {
    MUSTER_ASSIGN_OR_RETURN(const auto series, query->series(run_id));
    return series_json(series);
  }
  if (leaf == "ranks") {
    MUSTER_ASSIGN_OR_RETURN(const auto ranks, query->ranks(run_id));
    return ranks_json(ranks);
  }
  if (leaf == "commands") {
    MUSTER_ASSIGN_OR_RETURN(const auto commands, query->commands(run_id));
    return commands_json(commands);
  }
  return not_found("a run has no \"" + leaf + "\"; docs/operate/dashboard.md lists what it has");
}

Expected<std::string> Api::events(const std::string& run_id, const Url& url) {
  const QueryParameters parameters{url.query};
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t after, parameters.integer("after", 0, 0, kStepMax));
  MUSTER_ASSIGN_OR_RETURN(
      const std::int64_t limit, parameters.integer("limit", 1000, 1, kEventsMax));
  MUSTER_ASSIGN_OR_RETURN(store::Query * query, queries_.get());
  MUSTER_RETURN_IF_ERROR(query->run(run_id).status());
  MUSTER_ASSIGN_OR_RETURN(
      const auto events, query->events(run_id, after, static_cast<std::int32_t>(limit)));
  return events_json(events);
}

Expected<std::string> Api::range(const std::string& run_id, const Url& url) {
  MUSTER_ASSIGN_OR_RETURN(RangeRequest request, parse_range(url));
  MUSTER_ASSIGN_OR_RETURN(store::Query * query, queries_.get());
  MUSTER_ASSIGN_OR_RETURN(const store::RunInfo run, query->run(run_id));
  if (request.generations.empty()) {
    request.generations.push_back(run.generation);
  }
  std::vector<store::SeriesRange> ranges;
  ranges.reserve(request.series.size() * request.generations.size());
  for (const std::int64_t generation : request.generations) {
    for (const std::int64_t series : request.series) {
      MUSTER_ASSIGN_OR_RETURN(
          store::SeriesRange found,
          query->range(
              run_id,
              series,
              generation,
              request.from,
              request.to,
              static_cast<std::int32_t>(request.buckets)));
      ranges.push_back(std::move(found));
    }
  }
  return encode_ranges(ranges);
}

Expected<std::string> Api::step(const std::string& run_id, const Url& url) {
  const QueryParameters parameters{url.query};
  const auto metric = url.query.find("metric");
  if (metric == url.query.end() || metric->second.empty()) {
    return invalid_argument(
        "parameter \"metric\" is missing; expected a name of /series such as "
        "metric=train_moe_expert_tokens");
  }
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t step, parameters.integer("step", -1, -1, kStepMax));
  MUSTER_ASSIGN_OR_RETURN(
      const std::int64_t generation, parameters.integer("generation", -1, -1, kStepMax));
  MUSTER_ASSIGN_OR_RETURN(store::Query * query, queries_.get());
  MUSTER_ASSIGN_OR_RETURN(const store::RunInfo run, query->run(run_id));
  MUSTER_ASSIGN_OR_RETURN(
      const store::StepValues values,
      query->at_step(run_id, metric->second, generation < 0 ? run.generation : generation, step));
  return step_json(metric->second, values);
}

HttpResponse Api::live(const HttpRequest& request, const std::string& run_id, const Url& url) {
  // A reconnecting browser sends the last event it received in Last-Event-ID.
  std::map<std::string, std::string> values = url.query;
  if (!request.header("last-event-id").empty()) {
    values["after"] = request.header("last-event-id");
  }
  const auto after = QueryParameters{values}.integer("after", 0, 0, kStepMax);
  if (!after.ok()) {
    return failure(after.status());
  }
  const auto query = queries_.get();
  const Status known = query.ok() ? query.value()->run(run_id).status() : query.status();
  if (!known.ok()) {
    return failure(known);
  }
  HttpResponse response;
  response.content_type = "text/event-stream";
  response.headers.emplace_back("Cache-Control", "no-store");
  auto feed = std::make_shared<LiveFeed>(queries_, *clock_, run_id, after.value());
  response.stream = [feed]() -> std::optional<std::string> { return feed->next(); };
  return response;
}

HttpResponse Api::command(const HttpRequest& request, const std::string& run_id) {
  const Status allowed = check_operator(request, options_.token, loopback_);
  if (!allowed.ok()) {
    return failure(allowed);
  }
  if (!options_.issue_command) {
    return failure(501, "nobody takes commands here: this dashboard only reads a database");
  }
  const Expected<CommandRequest> wanted = parse_command_request(request.body);
  if (!wanted.ok()) {
    return failure(wanted.status());
  }
  const auto query = queries_.get();
  const Status known = query.ok() ? query.value()->run(run_id).status() : query.status();
  if (!known.ok()) {
    return failure(known);
  }
  const Expected<CommandId> id = options_.issue_command(
      run_id, wanted.value().kind, wanted.value().argument, wanted.value().reason);
  if (!id.ok()) {
    return failure(id.status());
  }
  HttpResponse response = answer(command_id_json(id.value()));
  response.status = 201;
  return response;
}

HttpResponse Api::health() {
  const auto query = queries_.get();
  const Status state = query.ok() ? query.value()->data_version().status() : query.status();
  HttpResponse response;
  response.status = state.ok() ? 200 : 503;
  response.body = state.ok() ? "ok\n" : state.to_string() + "\n";
  return response;
}

HttpResponse Api::metrics() const {
  if (!options_.metrics_text) {
    return failure(404, "no metrics here: this dashboard only reads a database");
  }
  return answer(options_.metrics_text(), "text/plain; version=0.0.4; charset=utf-8");
}

CommandAccess Api::access() const {
  if (!options_.issue_command || (!loopback_ && options_.token.empty())) {
    return CommandAccess::kOff;
  }
  return options_.token.empty() ? CommandAccess::kOpen : CommandAccess::kToken;
}

}  // namespace muster::dashboard
