#include "common/server/completion_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>
#include <vector>

#include "common/base/file.h"
#include "common/base/quoted.h"
#include "common/program/standard_output.h"
#include "common/server/chat_request.h"
#include "common/server/embedded.h"
#include "common/server/http_server.h"
#include "common/server/worker.h"
#include "min_p.h"

namespace staircase {

using nlohmann::json;

namespace {

constexpr std::string_view kSpaces = " \t\r";

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

/// Text from a client, for an error message.
std::string in_quotes(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

/// The lines of the file, without spaces around them and without the byte order mark of an editor.
std::vector<std::string> read_keys(const std::string& file) {
  std::string text = read_file_or_pipe(file);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  std::vector<std::string> keys;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (const std::string_view key = trimmed(line); !key.empty()) keys.emplace_back(key);
  }
  if (keys.empty()) throw Error("--api-key-file {}: it contains no key", file);
  return keys;
}

/// Compares in a time that depends only on the length of `given`: the time reveals nothing about the key
/// (CWE-208).
bool same_key(const std::string& key, std::string_view given) {
  unsigned difference = key.size() != given.size();
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0;
}

/// Whether a Content-Type, which may have parameters, is JSON's.
bool is_json(std::string_view content_type) {
  return lower(trimmed(content_type.substr(0, content_type.find(';')))) == "application/json";
}

/// The text after the scheme, which is case-insensitive, and spaces (RFC 9110, section 11.4).
std::optional<std::string_view> bearer_of(std::string_view authorization) {
  static constexpr std::string_view kScheme = "bearer";
  if (lower(authorization.substr(0, kScheme.size())) != kScheme) return std::nullopt;
  authorization.remove_prefix(kScheme.size());
  if (authorization.empty() || kSpaces.find(authorization[0]) == kSpaces.npos) return std::nullopt;
  return trimmed(authorization);
}

/// The name in a Host field, without its port.
std::string name_of(std::string_view host) {
  if (host.starts_with('[')) return lower(host.substr(0, host.find(']') + 1));
  return lower(host.substr(0, host.find(':')));
}

/// Whether a name can mean only this machine or an address: no other owner can point it here.
bool is_own_name(const std::string& name) {
  return name.find_first_not_of("0123456789.") == name.npos || name.starts_with('[') || name == "localhost" ||
         name.ends_with(".localhost");
}

/// What a completion server counts.
void declare_metrics(Metrics& metrics) {
  metrics.declare_counter("staircase_requests_total",
                          "Finished requests by path and status; 499 if the client disconnected early.");
  metrics.declare_counter("staircase_requests_left_total", "Requests whose client disconnected early.");
  metrics.declare_counter("staircase_prompt_tokens_total", "Tokens of accepted prompts.");
  metrics.declare_counter("staircase_generated_tokens_total", "New tokens of finished texts.");
  for (const char* name :
       {"staircase_requests_left_total", "staircase_prompt_tokens_total", "staircase_generated_tokens_total"})
    metrics.count(name, 0.0);
  metrics.declare_gauge("staircase_texts", "Accepted texts that have not finished.");
  metrics.declare_gauge("staircase_texts_waiting",
                        "Unfinished texts that wait for a slot in the batch or for blocks.");
  metrics.declare_gauge("staircase_texts_growing", "Unfinished texts that have a slot and blocks.");
  metrics.declare_histogram("staircase_time_to_first_token_seconds",
                            "Time from the request to the first token of a text.",
                            {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100});
  metrics.declare_histogram("staircase_time_per_output_token_seconds",
                            "Mean time per token of a text after its first.",
                            {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5});
}

/// Whether the model has a usable template. Some refuse a conversation without a system message, others one
/// with it.
bool can_answer(const ServedModel& model, ChatPrompts& prompts) {
  const std::string question = R"({"role": "user", "content": "Hello"})";
  for (const char* before : {"", R"({"role": "system", "content": "Be brief."}, )"}) {
    try {
      apply_template(fmt::format(R"({{"messages": [{}{}]}})", before, question), model, prompts);
      return true;
    } catch (const std::exception&) {  // perhaps with the next one
    }
  }
  return false;
}

/// The endpoints.
struct CompletionServer {
  using Answer = void (CompletionServer::*)(const std::shared_ptr<Exchange>&);
  struct Route {
    const char *path, *method;
    Answer answer;
    bool chats = false;  // only with chats
  };
  static constexpr const char* kModel = "/v1/models/{model}";  // the path of any of them

  CompletionServer(const ServerOptions& options, const ServedModel& model, CompletionService& service,
                   Metrics& metrics, ChatPrompts* prompts)
      : model(model),
        service(service),
        metrics(metrics),
        prompts(prompts),
        answers(prompts != nullptr && can_answer(model, *prompts)),
        origins(options.cors_origins),
        keys(options.api_key_file.empty() ? std::vector<std::string>() : read_keys(options.api_key_file)),
        http(
            addresses_of(options.host), options.port, HttpLimits(),
            [this](const std::shared_ptr<Exchange>& exchange) { handle(exchange); },
            [this](const HttpRequest& request) { check(request); },
            [this](const HttpRequest& request, int status) { count(request, status); },
            [this](const HttpRequest& request) { return cross_origin_fields(request); }) {
    for (const std::string& host : options.allowed_hosts) hosts.push_back(name_of(host));
    checks_host = http.is_local() || !hosts.empty();
    declare_metrics(metrics);
  }

  ~CompletionServer() {
    reader.stop();
    writer.stop();
  }

  static constexpr std::array<Route, 11> routes() {
    return {{{"/", "GET", &CompletionServer::show_page},
             {"/health", "GET", &CompletionServer::tell_health},
             {"/metrics", "GET", &CompletionServer::tell_metrics},
             {"/openapi.json", "GET", &CompletionServer::describe},
             {"/v1/models", "GET", &CompletionServer::list_models},
             {kModel, "GET", &CompletionServer::show_model},
             {"/v1/completions", "POST", &CompletionServer::complete},
             {"/v1/chat/completions", "POST", &CompletionServer::chat, true},
             {"/tokenize", "POST", &CompletionServer::tokenize_text, true},
             {"/detokenize", "POST", &CompletionServer::detokenize_tokens, true},
             {"/apply-template", "POST", &CompletionServer::render, true}}};
  }

  void handle(const std::shared_ptr<Exchange>& exchange) {
    refuse_on_error(exchange, [&] { (this->*check(exchange->request()))(exchange); });
  }

  template <typename Work>
  void refuse_on_error(const std::shared_ptr<Exchange>& exchange, const Work& work) {
    try {
      work();
    } catch (const HttpError& error) {
      exchange->send(error_response(error));
    } catch (const std::exception& error) {
      exchange->send(error_response(HttpError(500, error.what())));
    }
  }

  /// The path of the route, if there is one.
  std::string_view route_of(const HttpRequest& request) const {
    for (const Route& route : routes()) {
      if (request.path == route.path && (prompts != nullptr || !route.chats)) return route.path;
    }
    return request.path.starts_with("/v1/models/") ? kModel : std::string_view();
  }

  /// The function that answers. Throws HttpError for requests that are rejected whatever their body is.
  Answer check(const HttpRequest& request) const {
    check_host(request);
    const std::string_view found = route_of(request);
    for (const auto& [path, method, answer, chats] : routes()) {
      if (found != path) continue;
      if (request.method == "OPTIONS" && allows(request.origin)) return &CompletionServer::allow;
      const bool only_get = std::string(method) == "GET";
      if (request.method != method && !(only_get && request.method == "HEAD")) {
        HttpError error(405, fmt::format("{} accepts {}, not {}", path, method, request.method));
        error.fields = {{"Allow", only_get ? "GET, HEAD" : method}};
        throw error;
      }
      if (found.starts_with("/v1/") || !only_get) check_key(request);
      if (!only_get) check_type(request);
      return answer;
    }
    throw HttpError(404, fmt::format("there is nothing at {}", in_quotes(request.path)));
  }

  /// A page of another site may have a name that points here: its requests come from a browser that takes
  /// this server for the same site ("DNS rebinding").
  void check_host(const HttpRequest& request) const {
    const std::string name = name_of(request.host);
    if (!checks_host || is_own_name(name) || std::ranges::find(hosts, name) != hosts.end()) return;
    throw HttpError(403,
                    fmt::format("the host {} is not this server's; with --allowed-host {} it is",
                                in_quotes(request.host), name),
                    "", "host_not_allowed");
  }

  /// Whether pages of that origin may call this server.
  bool allows(const std::string& origin) const {
    return !origin.empty() && std::ranges::any_of(origins, [&](const std::string& allowed) {
      return allowed == "*" || allowed == origin;
    });
  }

  /// Headers that let a browser pass the answer to a page of another origin (the Fetch standard, section
  /// 3.2).
  HttpFields cross_origin_fields(const HttpRequest& request) const {
    if (origins.empty()) return {};
    HttpFields fields{{"Vary", "Origin"}};
    if (!allows(request.origin)) return fields;
    fields.emplace_back("Access-Control-Allow-Origin", request.origin);
    fields.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    return fields;
  }

  /// The browser's preflight before the request itself. It has no key yet.
  void allow(const std::shared_ptr<Exchange>& exchange) {
    const std::string& asked = exchange->request().asked_fields;
    exchange->send({.content_type = "text/plain; charset=utf-8",
                    .fields = {{"Access-Control-Allow-Methods", "GET, HEAD, POST"},
                               {"Access-Control-Allow-Headers",
                                asked.empty() ? "Authorization, Content-Type, X-Request-Id" : asked},
                               {"Access-Control-Max-Age", "600"}}});
  }

  void check_key(const HttpRequest& request) const {
    if (keys.empty()) return;
    const auto given = bearer_of(request.authorization);
    bool known = false;
    for (const std::string& key : keys) known |= same_key(key, given.value_or(""));  // all, whichever it is
    if (given && known) return;
    HttpError error(401, "this server requires a valid API key: Authorization: Bearer KEY", "",
                    "invalid_api_key");
    error.fields = {{"WWW-Authenticate", "Bearer"}};
    throw error;
  }

  static void check_type(const HttpRequest& request) {
    if (!is_json(request.content_type)) {
      throw HttpError(415, fmt::format("the body needs Content-Type: application/json, not {}",
                                       in_quotes(request.content_type)));
    }
    const std::string coding = lower(trimmed(request.content_encoding));
    if (coding.empty() || coding == "identity") return;
    HttpError error(415, fmt::format("the body must not be encoded, but it has Content-Encoding: {}",
                                     in_quotes(request.content_encoding)));
    error.fields = {{"Accept-Encoding", "identity"}};
    throw error;
  }

  void count(const HttpRequest& request, int status) {
    const std::string_view path = route_of(request);
    metrics.count("staircase_requests_total", 1.0,
                  fmt::format("path=\"{}\",status=\"{}\"", path.empty() ? "other" : path, status));
    if (status == HttpServer::kClientLeft) metrics.count("staircase_requests_left_total");
  }

  void show_page(const std::shared_ptr<Exchange>& exchange) {
    exchange->send({.body = answers ? kChatPage : kPage, .content_type = "text/html; charset=utf-8"});
  }

  void tell_health(const std::shared_ptr<Exchange>& exchange) {
    exchange->send({.body = json{{"status", "ok"}}.dump()});
  }

  void tell_metrics(const std::shared_ptr<Exchange>& exchange) {
    const double texts = metrics.value("staircase_texts"), growing = metrics.value("staircase_texts_growing");
    metrics.set("staircase_texts_waiting", std::max(texts - growing, 0.0));
    exchange->send({.body = metrics.text(), .content_type = "text/plain; version=0.0.4; charset=utf-8"});
  }

  void describe(const std::shared_ptr<Exchange>& exchange) {
    json description = json::parse(kOpenApi);
    json& schemas = description["components"]["schemas"];
    schemas["TokenId"]["maximum"] = model.vocab_size - 1;
    for (const char* body :
         {"CompletionRequest", "ChatRequest", "TokenizeRequest", "DetokenizeRequest", "TemplateRequest"})
      schemas[body]["properties"]["model"]["enum"] = {model.name, nullptr};
    for (const char* body : {"CompletionRequest", "ChatRequest"})
      schemas[body]["properties"]["max_tokens"]["maximum"] = model.n_positions;
    schemas["ChatRequest"]["properties"]["max_completion_tokens"]["maximum"] = model.n_positions;
    for (const Route& route : routes()) {
      if (route.chats && prompts == nullptr) description["paths"].erase(route.path);
    }
    description["paths"][kModel]["get"]["parameters"][0]["schema"]["enum"] = {model.name};
    exchange->send({.body = description.dump(2)});
  }

  json one_model() const {
    return {{"id", model.name},
            {"object", "model"},
            {"created", started},
            {"owned_by", "staircase"},
            {"context_length", model.n_positions}};
  }

  void list_models(const std::shared_ptr<Exchange>& exchange) {
    exchange->send({.body = json{{"object", "list"}, {"data", {one_model()}}}.dump()});
  }

  void show_model(const std::shared_ptr<Exchange>& exchange) {
    const std::string name = exchange->request().path.substr(std::string_view(kModel).find('{'));
    if (name != model.name) {
      throw HttpError(
          404, fmt::format("there is no model {}, but one named {}", in_quotes(name), in_quotes(model.name)),
          "model", "model_not_found");
    }
    exchange->send({.body = one_model().dump()});
  }

  /// Processes a body in the server thread, once it is read.
  using Then = std::function<void()>;

  /// Reads a body in another thread: a large one takes longer than other clients may wait.
  void read(Worker& thread, const std::shared_ptr<Exchange>& exchange, std::function<Then()> work) {
    const auto has_left = std::make_shared<std::atomic<bool>>(false);
    exchange->on_left([has_left] { *has_left = true; });
    thread.post([this, exchange, has_left, work = std::move(work)] {
      if (*has_left) return;
      Then then;
      try {
        then = work();
      } catch (const HttpError& error) {
        then = [error] { throw error; };
      } catch (const std::exception& error) {
        then = [message = std::string(error.what())] { throw HttpError(500, message); };
      }
      exchange->post_at_once([=, this] {
        if (!*has_left) refuse_on_error(exchange, then);
      });
    });
  }

  void complete(const std::shared_ptr<Exchange>& exchange) {
    read(reader, exchange, [this, exchange]() -> Then {
      const auto request = std::make_shared<CompletionRequest>(exchange->request().body, model);
      return [this, exchange, request] {
        submit(exchange, *request,
               std::make_shared<CompletionReply>("cmpl-" + unique_id(), request, model, exchange, metrics));
      };
    });
  }

  /// A template may take long. So chats wait for each other, but completions do not wait for them.
  void chat(const std::shared_ptr<Exchange>& exchange) {
    read(writer, exchange, [this, exchange]() -> Then {
      const auto request = std::make_shared<ChatRequest>(exchange->request().body, model, *prompts);
      return [this, exchange, request] {
        const auto on_answer = [this, request](const std::vector<int>& answer) {
          writer.post([this, request, answer] {
            prompts->answered(request->rendered(), request->prompts().front(), answer);
          });
        };
        submit(exchange, *request,
               std::make_shared<CompletionReply>("chatcmpl-" + unique_id(), request, model, exchange, metrics,
                                                 chat_form(), on_answer));
      };
    });
  }

  void tokenize_text(const std::shared_ptr<Exchange>& exchange) {
    answer_body(exchange, [this](const std::string& body) { return tokenize(body, model, *prompts); });
  }

  void detokenize_tokens(const std::shared_ptr<Exchange>& exchange) {
    answer_body(exchange, [this](const std::string& body) { return detokenize(body, model); });
  }

  void render(const std::shared_ptr<Exchange>& exchange) {
    answer_body(exchange, [this](const std::string& body) { return apply_template(body, model, *prompts); });
  }

  /// `work` computes the answer, in JSON, from the body.
  void answer_body(const std::shared_ptr<Exchange>& exchange,
                   std::function<std::string(const std::string& body)> work) {
    read(writer, exchange, [exchange, work = std::move(work)]() -> Then {
      return [exchange, answer = work(exchange->request().body)] { exchange->send({.body = answer}); };
    });
  }

  void submit(const std::shared_ptr<Exchange>& exchange, CompletionRequest& request,
              const std::shared_ptr<CompletionReply>& reply) {
    exchange->on_left([this, reply] {
      reply->leave();
      service.cancel(reply);
    });
    const Admission admission = service.submit(request, reply);
    if (admission == Admission::kTaken) {
      metrics.count("staircase_texts", request.texts());
      for (const auto& prompt : request.prompts()) {
        metrics.count("staircase_prompt_tokens_total", static_cast<double>(prompt.size()));
      }
      return reply->begin();
    }
    exchange->on_left(nullptr);
    HttpError error =
        admission == Admission::kFull
            ? HttpError(429, "the queue is full; please try again later", "", "queue_full")
            : HttpError(503, "this server is shutting down and accepts no more requests", "", "ending");
    error.fields = {{"Retry-After", "1"}};
    throw error;
  }

  const ServedModel& model;
  CompletionService& service;
  Metrics& metrics;
  ChatPrompts* const prompts;
  const bool answers;  // otherwise the model only continues texts
  const std::vector<std::string> origins, keys;
  const long long started = static_cast<long long>(std::time(nullptr));
  std::vector<std::string> hosts;  // allowed ones
  bool checks_host = true;
  Worker reader;    // of completions
  Worker writer;    // of the prompts of chats: runs all of `prompts`
  HttpServer http;  // the last: its thread uses the others
};

}  // namespace

std::string origin_of(const std::string& option) {
  if (option == "*" || option == "null") return option;
  const auto is_one_of = [](std::string_view signs, bool letters) {
    return [=](char c) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
      return (letters && plain) || signs.find(c) != signs.npos;
    };
  };
  std::string origin = option;
  for (char& c : origin)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  if (origin.ends_with('/') && !origin.ends_with("//")) origin.pop_back();
  const std::size_t colons = origin.find("://");
  const std::string scheme = origin.substr(0, colons);
  std::string host = colons == origin.npos ? "" : origin.substr(colons + 3);
  const std::size_t end = host.starts_with('[') ? host.find(']') : host.find(':');
  const std::size_t colon = end == host.npos ? end : host.find(':', end);
  const std::string port = colon == host.npos ? "" : host.substr(colon + 1);
  if (colon != host.npos) host.resize(colon);
  const bool is_address = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  const std::string_view inside = is_address ? std::string_view(host).substr(1, host.size() - 2) : host;
  if (scheme.empty() || !std::ranges::all_of(scheme, is_one_of("+.-", true)) || inside.empty() ||
      !std::ranges::all_of(inside, is_one_of(is_address ? ":." : ".-_", true)) ||
      !std::ranges::all_of(port, is_one_of("0123456789", false)) || (colon != host.npos && port.empty()) ||
      port.size() > 5) {
    throw UsageError(
        "--cors-origin is {}, but it must be one origin as browsers send it, such as https://example.org or "
        "http://localhost:3000; repeat the option for several",
        quoted(option, 80));
  }
  const bool is_default = (scheme == "http" && port == "80") || (scheme == "https" && port == "443");
  return scheme + "://" + host + (port.empty() || is_default ? "" : ":" + port);
}

void add_options(OptionSink& sink, ServerOptions& options) {
  sink.add("--host", Path{&options.host, "ADDRESS"},
           "address to listen on; 0.0.0.0 is all of this machine's");
  sink.add("--port", &options.port, "port to listen on; 0 picks a free one", between(0, 65535));
  sink.add("--allowed-host", &options.allowed_hosts,
           "a host name of this server, besides localhost and addresses; repeatable");
  sink.add("--cors-origin", &options.cors_origins,
           "origin whose pages may call the server, such as https://example.org; * allows all; repeatable");
  sink.rule([&options] {
    for (std::string& origin : options.cors_origins) origin = origin_of(origin);
  });
  sink.add("--api-key-file", Path{&options.api_key_file, "FILE"},
           "file of API keys, one per line; /v1/ and every POST require one");
  sink.add("--max-batch-size", &options.max_batch_size, "maximum number of sequences in the batch",
           at_least(1));
  sink.add("--max-queue", &options.max_queue, "maximum queue length", at_least(0));
}

RowOptions row_options(CompletionRequest& request) {
  RowOptions options;
  add_options(request, options);
  MinPOptions tail;
  add_options(request, tail, options.sampling);
  if (!request.logit_bias.empty()) {
    options.edit_raw_logits = [biases = request.logit_bias](std::span<float> logits) {
      for (const auto& [id, bias] : biases) logits[static_cast<std::size_t>(id)] += bias;
    };
  }
  if (tail.min_p)
    options.edit_final_logits = [p = *tail.min_p](std::span<float> logits) { keep_min_p(logits, p); };
  return options;
}

void CompletionService::drain() {
  std::_Exit(0);
}

void serve_completions(const ServerOptions& options, const ServedModel& model, CompletionService& service,
                       const std::vector<ProgramMetric>& program_metrics, ChatPrompts* prompts) {
  Metrics metrics;
  CompletionServer server(options, model, service, metrics, prompts);
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
