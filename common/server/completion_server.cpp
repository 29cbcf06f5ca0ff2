#include "common/server/completion_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/message.h"
#include "common/base/quoted.h"
#include "common/model/model_folder.h"
#include "common/program/chat_defaults.h"
#include "common/program/standard_output.h"
#include "common/server/chat_request.h"
#include "common/server/embedded.h"
#include "common/server/http_server.h"
#include "common/server/request_body.h"
#include "common/server/worker.h"

namespace staircase {

using nlohmann::json;

namespace {

/// Declares the metrics of a completion server.
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

/// Whether the model has a usable template. Some templates reject a conversation without a system message,
/// others one with it.
bool can_answer(const ServedModel& model, ChatPrompts& prompts) {
  const std::string question = R"({"role": "user", "content": "Hello"})";
  for (const char* before : {"", R"({"role": "system", "content": "Be brief."}, )"}) {
    try {
      apply_template(fmt::format(R"({{"messages": [{}{}]}})", before, question), model, prompts);
      return true;
    } catch (const std::exception&) {  // the next conversation may work
    }
  }
  return false;
}

/// The value of a setting, as a number if it is one.
json json_value(const std::string& text) {
  json parsed = json::parse(text, nullptr, false);
  return parsed.is_discarded() ? json(text) : parsed;
}

/// Throws Error if no request could have these values.
void require_possible(const OptionTexts& defaults, const std::string& file, const ServedModel& model) {
  json body{{"prompt", {0}}, {"max_tokens", 0}};
  for (const auto& [key, value] : defaults) body.emplace(key, json_value(value));
  try {
    CompletionRequest request(body.dump(), model);
    row_options(request);
  } catch (const HttpError& error) {
    throw Error("{}: {}", file, error.what());
  }
}

/// Adds the form of calls and the defaults of chats to the model, and reports what its authors recommend.
ServedModel with_chat_defaults(ServedModel model, ChatPrompts* prompts) {
  GenerationConfig config = generation_config_of(find_model(model.folder));
  const bool chats = prompts != nullptr;
  if (chats) {
    model.set_call_form(call_form_of(*prompts));
    model.chat_defaults = chat_request_defaults(config);
    require_possible(model.chat_defaults, config.file, model);
  } else {
    leave_unread(config);
  }
  report_generation_config(config, " for chats; requests override it");
  return model;
}

/// The endpoints.
struct CompletionServer {
  using Answer = void (CompletionServer::*)(const std::shared_ptr<Exchange>&);
  struct Route {
    const char *path, *method;
    Answer answer;
    bool chats = false;  // only with chats
  };
  static constexpr const char* kModel = "/v1/models/{model}";  // the path of any model

  CompletionServer(const ServerOptions& options, const ServedModel& model, CompletionService& service,
                   Metrics& metrics, ChatPrompts* prompts)
      : model(model),
        service(service),
        metrics(metrics),
        prompts(prompts),
        answers(prompts != nullptr && can_answer(model, *prompts)),
        access(options.access),
        http(
            addresses_of(options.host), options.port, HttpLimits(),
            [this](const std::shared_ptr<Exchange>& exchange) { handle(exchange); },
            [this](const HttpRequest& request) { check(request); },
            [this](const HttpRequest& request, int status) { count(request, status); },
            [this](const HttpRequest& request) { return access.cross_origin_fields(request); }) {
    if (http.is_local()) access.serve_locally();
    declare_metrics(metrics);
  }

  ~CompletionServer() {
    compiler.stop();
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

  /// The path of the request's route; empty if there is none.
  std::string_view route_of(const HttpRequest& request) const {
    for (const Route& route : routes()) {
      if (request.path == route.path && (prompts != nullptr || !route.chats)) return route.path;
    }
    return request.path.starts_with("/v1/models/") ? kModel : std::string_view();
  }

  /// The function that answers. Throws HttpError for requests that are rejected whatever their body contains.
  Answer check(const HttpRequest& request) const {
    access.check_host(request);
    const std::string_view found = route_of(request);
    for (const auto& [path, method, answer, chats] : routes()) {
      if (found != path) continue;
      if (request.method == "OPTIONS" && access.allows(request.origin)) return &CompletionServer::allow;
      const bool only_get = std::string(method) == "GET";
      if (request.method != method && !(only_get && request.method == "HEAD")) {
        HttpError error(405, fmt::format("{} accepts {}, not {}", path, method, request.method));
        error.fields = {{"Allow", only_get ? "GET, HEAD" : method}};
        throw error;
      }
      if (found.starts_with("/v1/") || !only_get) access.check_key(request);
      if (!only_get) require_json_body(request);
      return answer;
    }
    throw HttpError(404, fmt::format("there is nothing at {}", in_json(request.path)));
  }

  void allow(const std::shared_ptr<Exchange>& exchange) {
    exchange->send(Access::preflight(exchange->request()));
  }

  void count(const HttpRequest& request, int status) {
    access.end(request);
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
    json& of_completions = schemas["CompletionRequest"]["properties"];
    for (const char* key : {"use_beam_search", "length_penalty", "early_stopping"}) {
      if (!model.searches) of_completions.erase(key);
    }
    for (const auto& [key, property] : of_completions.items()) {  // a chat has these properties or its own
      if (key != "prompt" && key != "echo") schemas["ChatRequest"]["properties"].emplace(key, property);
    }
    schemas["TokenId"]["maximum"] = model.vocab_size - 1;
    json names = model.adapters;
    names.insert(names.begin(), model.name);
    json with_null = names;
    with_null.push_back(nullptr);
    for (const char* body :
         {"CompletionRequest", "ChatRequest", "TokenizeRequest", "DetokenizeRequest", "TemplateRequest"})
      schemas[body]["properties"]["model"]["enum"] = with_null;
    for (const char* body : {"CompletionRequest", "ChatRequest"})
      schemas[body]["properties"]["max_tokens"]["maximum"] = model.n_positions;
    schemas["ChatRequest"]["properties"]["max_completion_tokens"]["maximum"] = model.n_positions;
    for (const auto& [key, value] : model.chat_defaults) {
      json& property = schemas["ChatRequest"]["properties"][key];
      property["default"] = property["x-recommended"] = json_value(value);
    }
    for (const Route& route : routes()) {
      if (route.chats && prompts == nullptr) description["paths"].erase(route.path);
    }
    description["paths"][kModel]["get"]["parameters"][0]["schema"]["enum"] = names;
    exchange->send({.body = description.dump(2)});
  }

  /// An adapter as vLLM lists it: a model whose parent is the model that it changes.
  json one_model(int adapter) const {
    json listed{{"id", model.name_of(adapter)},
                {"object", "model"},
                {"created", started},
                {"owned_by", "staircase"},
                {"context_length", model.n_positions}};
    if (adapter != kNoAdapter) listed["parent"] = model.name;
    return listed;
  }

  void list_models(const std::shared_ptr<Exchange>& exchange) {
    json models = json::array();
    for (int i = kNoAdapter; i < std::ssize(model.adapters); ++i) models.push_back(one_model(i));
    exchange->send({.body = json{{"object", "list"}, {"data", models}}.dump()});
  }

  void show_model(const std::shared_ptr<Exchange>& exchange) {
    const std::string name = exchange->request().path.substr(std::string_view(kModel).find('{'));
    exchange->send({.body = one_model(require_model(name, model)).dump()});
  }

  /// Processes a body in the server thread, once it is read.
  using Then = std::function<void()>;

  /// Reads a body in another thread, because a large one would keep other clients waiting.
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
      exchange->post_without_flush([=, this] {
        if (!*has_left) refuse_on_error(exchange, then);
      });
    });
  }

  /// Whether the body may have a constraint. It can take seconds to make; only constrained requests wait.
  static bool may_be_constrained(const std::shared_ptr<Exchange>& exchange) {
    const auto is_there = [&](const std::string& key) {
      return exchange->request().body.find('"' + key + '"') != std::string::npos;
    };
    return is_there("tools") || std::ranges::any_of(constraint_keys(), is_there);
  }

  void complete(const std::shared_ptr<Exchange>& exchange) {
    access.begin(exchange->request());
    Worker& thread = may_be_constrained(exchange) ? compiler : reader;
    read(thread, exchange, [this, exchange]() -> Then {
      const auto request = std::make_shared<CompletionRequest>(exchange->request().body, model);
      return [this, exchange, request] {
        submit(exchange, *request,
               std::make_shared<CompletionReply>("cmpl-" + unique_id(), request, model, exchange, metrics));
      };
    });
  }

  /// A template may take long, so chats wait for each other, but completions do not wait for chats.
  void chat(const std::shared_ptr<Exchange>& exchange) {
    access.begin(exchange->request());
    if (!may_be_constrained(exchange)) return write_prompt(exchange);
    read(compiler, exchange, [this, exchange]() -> Then {
      make_constraint(exchange->request().body, model);
      return [this, exchange] { write_prompt(exchange); };
    });
  }

  void write_prompt(const std::shared_ptr<Exchange>& exchange) {
    read(writer, exchange, [this, exchange]() -> Then {
      const auto request = std::make_shared<ChatRequest>(exchange->request().body, model, *prompts);
      return [this, exchange, request] {
        const auto on_answer = [this, request](const std::vector<int>& answer) {
          writer.post([this, request, answer] {
            if (request->adapter == kNoAdapter)
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
    if (admission == Admission::kAccepted) {
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
  const bool answers;  // whether it answers chats, or only continues texts
  const long long started = static_cast<long long>(std::time(nullptr));
  Access access;
  Worker compiler;  // compiles constraints
  Worker reader;    // reads completions without a constraint
  Worker writer;    // writes prompts of chats: makes all calls of `prompts`
  HttpServer http;  // last, because its thread uses the others
};

}  // namespace

void add_options(OptionSink& sink, ServerOptions& options) {
  sink.add("--host", Path{&options.host, "ADDRESS"},
           "address to listen on; 0.0.0.0 means all addresses of this machine");
  sink.add("--port", &options.port, "port to listen on; 0 picks a free one", between(0, 65535));
  sink.add("--allowed-host", &options.access.allowed_hosts,
           "a host name of this server, besides localhost and addresses; repeatable");
  sink.add("--cors-origin", &options.access.cors_origins,
           "origin whose pages may call the server, such as https://example.org; * allows all; repeatable");
  sink.rule([&options] {
    for (std::string& origin : options.access.cors_origins) origin = origin_of(origin);
  });
  sink.add("--api-key-file", Path{&options.access.api_key_file, "FILE"},
           "file of API keys, one per line; /v1/ and every POST require one");
  sink.add("--max-per-key", &options.access.max_per_key, "maximum unfinished requests of each API key",
           at_least(1));
  sink.refuse_if([&access = options.access] { return access.max_per_key && access.api_key_file.empty(); },
                 "--max-per-key needs --api-key-file: without keys, it cannot tell clients apart");
  sink.add("--max-batch-size", &options.max_batch_size, "maximum number of sequences in the batch",
           at_least(1));
  sink.add("--max-queue", &options.max_queue, "maximum queue length", at_least(0));
}

void serve_completions(const ServerOptions& options, const ServedModel& model, CompletionService& service,
                       const std::vector<ProgramMetric>& program_metrics, ChatPrompts* prompts,
                       const std::vector<std::string>& adapters) {
  Metrics metrics;
  ServedModel with_defaults = with_chat_defaults(model, prompts);
  with_defaults.adapters = adapters;
  with_defaults.searches = service.searches();
  if (std::ranges::count(adapters, model.name) > 0)
    throw UsageError("--adapter {}=...: this is the model's own name", model.name);
  CompletionServer server(options, with_defaults, service, metrics, prompts);
  std::vector<ProgramMetric> own_metrics = service.metrics();
  own_metrics.insert(own_metrics.end(), program_metrics.begin(), program_metrics.end());
  for (const auto& [name, help, value] : own_metrics) {
    if (name.ends_with("_total")) {
      metrics.declare_counter("staircase_" + name, help);
    } else {
      metrics.declare_gauge("staircase_" + name, help);
    }
  }
  const auto update_metrics = [&] {
    for (const auto& [name, help, value] : own_metrics) metrics.set("staircase_" + name, value());
  };
  update_metrics();
  server.http.start([&] { service.drain(); });
  print(fmt::format("listening on {}\n", server.http.url()));
  while (service.pass()) {
    update_metrics();
    server.http.flush();
  }
  server.http.wait();
}

}  // namespace staircase
