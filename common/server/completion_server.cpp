#include "common/server/completion_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "common/base/file.h"
#include "common/program/standard_output.h"
#include "common/server/embedded.h"
#include "common/server/http_server.h"

namespace staircase {

using nlohmann::json;

namespace {

/// The lines of the file, without spaces around them.
std::vector<std::string> read_keys(const std::string& file) {
  std::vector<std::string> keys;
  std::istringstream lines(read_file_or_pipe(file));
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find_first_not_of(" \t\r");
    if (first == line.npos) continue;
    keys.push_back(line.substr(first, line.find_last_not_of(" \t\r") - first + 1));
  }
  if (keys.empty()) throw Error("--api-key-file {}: there is no key in it", file);
  return keys;
}

/// Compares in a time that depends on the length of `given` alone: how long it takes tells nothing of the key
/// (CWE-208).
bool same_key(const std::string& key, const std::string& given) {
  unsigned difference = key.size() != given.size();
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0;
}

/// Whether a Content-Type, which may have parameters, is that of JSON.
bool is_json(const std::string& content_type) {
  std::string type = content_type.substr(0, content_type.find(';'));
  while (type.ends_with(' ')) type.pop_back();
  std::ranges::transform(type, type.begin(), [](unsigned char c) { return std::tolower(c); });
  return type == "application/json";
}

/// What a server of completions counts.
void declare_metrics(Metrics& metrics) {
  metrics.declare_counter("staircase_requests_total", "Answered requests by path and status.");
  metrics.declare_counter("staircase_requests_left_total", "Requests whose client left before the end.");
  metrics.declare_counter("staircase_prompt_tokens_total", "Tokens of the prompts that were taken.");
  metrics.declare_counter("staircase_generated_tokens_total", "New tokens of the texts that have ended.");
  for (const char* name :
       {"staircase_requests_left_total", "staircase_prompt_tokens_total", "staircase_generated_tokens_total"})
    metrics.count(name, 0.0);
  metrics.declare_gauge("staircase_texts", "Texts that were taken and have not ended.");
  metrics.declare_gauge("staircase_texts_waiting", "Those of them that wait for a place in the batch.");
  metrics.declare_gauge("staircase_texts_growing", "Those of them in the batch: its rows.");
  metrics.declare_histogram("staircase_time_to_first_token_seconds",
                            "From the request to the first token of a text.",
                            {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100});
  metrics.declare_histogram("staircase_time_per_output_token_seconds",
                            "Mean of a text behind its first token.",
                            {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5});
}

/// The endpoints.
struct CompletionServer {
  using Answer = void (CompletionServer::*)(const std::shared_ptr<Exchange>&);
  struct Route {
    const char *path, *method;
    Answer answer;
  };

  CompletionServer(const ServerOptions& options, const ServedModel& model, CompletionService& service,
                   Metrics& metrics)
      : model(model),
        service(service),
        metrics(metrics),
        places(options.max_batch_size),
        keys(options.api_key_file.empty() ? std::vector<std::string>() : read_keys(options.api_key_file)),
        http(options.host, options.port, HttpLimits(),
             [this](const std::shared_ptr<Exchange>& exchange) { handle(exchange); }) {
    declare_metrics(metrics);
  }

  static constexpr std::array<Route, 6> routes() {
    return {{{"/", "GET", &CompletionServer::show_page},
             {"/health", "GET", &CompletionServer::tell_health},
             {"/metrics", "GET", &CompletionServer::tell_metrics},
             {"/openapi.json", "GET", &CompletionServer::describe},
             {"/v1/models", "GET", &CompletionServer::list_models},
             {"/v1/completions", "POST", &CompletionServer::complete}}};
  }

  void handle(const std::shared_ptr<Exchange>& exchange) {
    try {
      (this->*route(exchange->request()))(exchange);
    } catch (const HttpError& error) {
      answer(exchange, error_response(error));
    } catch (const std::exception& error) {
      answer(exchange, error_response(HttpError(500, error.what())));
    }
  }

  /// Who answers. Throws HttpError where nobody does.
  Answer route(const HttpRequest& request) const {
    for (const auto& [path, method, answer] : routes()) {
      if (request.path != path) continue;
      const bool only_get = std::string(method) == "GET";
      if (request.method != method && !(only_get && request.method == "HEAD")) {
        HttpError error(405, fmt::format("{} goes with {}, not with {}", path, method, request.method));
        error.fields = {{"Allow", only_get ? "GET, HEAD" : method}};
        throw error;
      }
      if (request.path.starts_with("/v1/")) check_key(request);
      return answer;
    }
    throw HttpError(404,
                    fmt::format("there is nothing at {}",
                                json(request.path).dump(-1, ' ', false, json::error_handler_t::replace)));
  }

  void check_key(const HttpRequest& request) const {
    if (keys.empty()) return;
    static const std::string kScheme = "Bearer ";
    const bool has_key = request.authorization.starts_with(kScheme);
    const std::string given = has_key ? request.authorization.substr(kScheme.size()) : "";
    bool known = false;
    for (const std::string& key : keys) known |= same_key(key, given);  // all of them, whichever it is
    if (has_key && known) return;
    HttpError error(401, "this server wants an API key that it knows: Authorization: Bearer KEY", "",
                    "invalid_api_key");
    error.fields = {{"WWW-Authenticate", "Bearer"}};
    throw error;
  }

  void answer(const std::shared_ptr<Exchange>& exchange, const HttpResponse& response) {
    exchange->send(response);
    count(*exchange, response.status);
  }

  void count(const Exchange& exchange, int status) {
    const std::string& path = exchange.request().path;
    const bool known = std::ranges::any_of(routes(), [&](const Route& route) { return route.path == path; });
    metrics.count("staircase_requests_total", 1.0,
                  fmt::format("path=\"{}\",status=\"{}\"", known ? path : "other", status));
  }

  void show_page(const std::shared_ptr<Exchange>& exchange) {
    answer(exchange, {.body = kPage, .content_type = "text/html; charset=utf-8"});
  }

  void tell_health(const std::shared_ptr<Exchange>& exchange) {
    answer(exchange, {.body = json{{"status", "ok"}}.dump()});
  }

  void tell_metrics(const std::shared_ptr<Exchange>& exchange) {
    const double texts = metrics.value("staircase_texts");
    metrics.set("staircase_texts_waiting", std::max(texts - places, 0.0));
    metrics.set("staircase_texts_growing", std::min(texts, 1.0 * places));
    answer(exchange, {.body = metrics.text(), .content_type = "text/plain; version=0.0.4; charset=utf-8"});
  }

  void describe(const std::shared_ptr<Exchange>& exchange) {
    json description = json::parse(kOpenApi);
    json& schemas = description["components"]["schemas"];
    schemas["TokenId"]["maximum"] = model.vocab_size - 1;
    schemas["CompletionRequest"]["properties"]["model"]["enum"] = {model.name, nullptr};
    answer(exchange, {.body = description.dump(2)});
  }

  void list_models(const std::shared_ptr<Exchange>& exchange) {
    const json one{{"id", model.name}, {"object", "model"}, {"created", started}, {"owned_by", "staircase"}};
    answer(exchange, {.body = json{{"object", "list"}, {"data", {one}}}.dump()});
  }

  void complete(const std::shared_ptr<Exchange>& exchange) {
    if (!is_json(exchange->request().content_type)) {
      throw HttpError(
          415,
          fmt::format(
              "the body must come as Content-Type: application/json, not as {}",
              json(exchange->request().content_type).dump(-1, ' ', false, json::error_handler_t::replace)));
    }
    const auto request = std::make_shared<CompletionRequest>(exchange->request().body, model);
    const auto reply = std::make_shared<CompletionReply>(fmt::format("cmpl-{:x}-{}", started, ++requests),
                                                         request, model, exchange, metrics);
    exchange->on_left([this, reply] {
      reply->leave();
      service.cancel(reply);
      metrics.count("staircase_requests_left_total");
    });
    const Admission admission = service.submit(*request, reply);
    if (admission == Admission::kTaken) {
      metrics.count("staircase_texts", request->texts());
      for (const auto& prompt : request->prompts()) {
        metrics.count("staircase_prompt_tokens_total", static_cast<double>(prompt.size()));
      }
      return count(*exchange, 200);
    }
    HttpError error =
        admission == Admission::kFull
            ? HttpError(429, "too many texts wait already; please try again later", "", "queue_full")
            : HttpError(503, "this server ends, and takes no further request", "", "ending");
    error.fields = {{"Retry-After", "1"}};
    throw error;
  }

  const ServedModel& model;
  CompletionService& service;
  Metrics& metrics;
  const int places;  // in the batch
  const std::vector<std::string> keys;
  const long long started = static_cast<long long>(std::time(nullptr));
  long long requests = 0;
  HttpServer http;  // the last: its thread uses the others
};

}  // namespace

void add_options(OptionSink& sink, ServerOptions& options) {
  sink.add("--host", Path{&options.host, "ADDRESS"},
           "address to listen on; 0.0.0.0 is all of this machine's");
  sink.add("--port", &options.port, "port to listen on; 0 takes a free one", between(0, 65535));
  sink.add("--api-key-file", Path{&options.api_key_file, "FILE"},
           "file of API keys, one per line; /v1/ requires one");
  sink.add("--max-batch-size", &options.max_batch_size, "maximum number of sequences in the batch",
           at_least(1));
  sink.add("--max-queue", &options.max_queue, "maximum queue length", at_least(0));
}

void serve_completions(const ServerOptions& options, const ServedModel& model, CompletionService& service,
                       const std::vector<ProgramMetric>& program_metrics) {
  Metrics metrics;
  CompletionServer server(options, model, service, metrics);
  for (const auto& [name, help, value] : program_metrics) {
    if (name.ends_with("_total")) {
      metrics.declare_counter("staircase_" + name, help);
    } else {
      metrics.declare_gauge("staircase_" + name, help);
    }
  }
  const auto tell = [&] {
    for (const auto& [name, help, value] : program_metrics) metrics.set("staircase_" + name, value());
  };
  tell();
  server.http.start([&] { service.drain(); });
  print(fmt::format("listening on {}\n", server.http.url()));
  while (service.pass()) {
    tell();
    server.http.flush();
  }
  server.http.wait();
}

}  // namespace staircase
