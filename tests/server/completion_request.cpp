// The valid bodies of a completion request, and the messages about all others.
#include "common/server/completion_request.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "common/decoding/beam_search.h"
#include "common/decoding/row.h"
#include "common/program/command_line.h"
#include "common/server/access.h"
#include "common/server/adapter_options.h"
#include "common/server/completion_server.h"
#include "common/server/metrics.h"
#include "tests/error_message.h"
#include "tests/temporary_folder.h"

using namespace staircase;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(STAIRCASE_SOURCE_TREE "/models/tales-6m");
  return loaded;
}

const ServedModel& model() {
  static const ServedModel served("models/tales/", tokenizer(),
                                  {.vocab_size = tokenizer().vocab_size(), .n_positions = 64});
  return served;
}

CompletionRequest request(const std::string& body) {
  return {body, model()};
}

RowOptions options(const std::string& body) {
  CompletionRequest request(body, model());
  RowOptions options;
  add_options(request, options);
  return options;
}

/// The message about a refused body, as a step would read it: "400 top_p: …".
std::string refusal(const std::string& body) {
  try {
    options(body);
  } catch (const HttpError& error) {
    return fmt::format("{} {}: {}", error.status, error.key, error.what());
  }
  return "";
}

std::string with(const std::string& more) {
  return R"({"prompt": "The fox", )" + more + "}";
}

}  // namespace

TEST_CASE("one of the file's keys opens the server, whatever space is around it, and nothing else") {
  const TemporaryFolder folder;
  folder.write("keys", "\xef\xbb\xbf first \t\r\n\n\tsecond\r\n");
  const Access access({.api_key_file = (folder.path() / "keys").string()});
  const auto status = [&](const std::string& authorization) {
    try {
      access.check_key({.authorization = authorization});
    } catch (const HttpError& error) {
      CHECK(error.fields == HttpFields{{"WWW-Authenticate", "Bearer"}});
      CHECK(error.code == "invalid_api_key");
      return error.status;
    }
    return 200;
  };
  for (const char* right : {"Bearer first", "bearer first", "BEARER\tsecond", "Bearer  \t first \t "}) {
    CAPTURE(right);
    CHECK(status(right) == 200);
  }
  for (const char* wrong : {"", "first", "Bearerfirst", "Bearer", "Bearer ", "Bearer \t", "Bearer firs",
                            "Bearer firsu", "Bearer xirst", "Bearer firstfirst", "Bearer FIRST",
                            "Bearer first second", "Basic first", "Bear first", "Bearerx first"}) {
    CAPTURE(wrong);
    CHECK(status(wrong) == 401);
  }
  Access({}).check_key({});  // without a file, none is needed
  folder.write("none", " \r\n\t\n");
  const std::string none = (folder.path() / "none").string();
  CHECK(error_message([&] { Access({.api_key_file = none}); }) ==
        fmt::format("--api-key-file {}: it contains no key", none));
}

TEST_CASE("a host is this server's if only this machine can have its name, or an option names it") {
  const auto refused = [](const Access& access, const std::string& host) {
    return error_message([&] { access.check_host({.host = host}); });
  };
  const Access named({.allowed_hosts = {"Example.org:80"}});
  Access local({});
  CHECK(refused(local, "evil.org") == "");
  local.serve_locally();
  for (const char* own :
       {"localhost", "LOCALHOST:8080", "a.localhost:1", "127.0.0.1:80", "10.0.0.7", "[::1]:80", "[::1]"}) {
    CAPTURE(own);
    CHECK(refused(named, own) == "");
    CHECK(refused(local, own) == "");
  }
  for (const char* host : {"example.org", "EXAMPLE.org:8080"}) {
    CHECK(refused(named, host) == "");
    CHECK(refused(local, host) == fmt::format("the host \"{}\" is not this server's; --allowed-host "
                                              "example.org would allow it",
                                              host));
  }
  for (const char* other :
       {"example.com", "a.example.org", "localhost.evil.org", "alocalhost", "1.2.3.4.evil.org"}) {
    CAPTURE(other);
    CHECK(refused(named, other) != "");
  }
}

TEST_CASE("a browser gets the fields that let a page of an allowed origin read the answer") {
  const auto fields = [](const std::vector<std::string>& origins, const std::string& origin) {
    return Access({.cors_origins = origins}).cross_origin_fields({.origin = origin});
  };
  const HttpFields varies{{"Vary", "Origin"}};
  HttpFields allowed = varies;
  allowed.emplace_back("Access-Control-Allow-Origin", "https://a.b");
  allowed.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  CHECK(fields({}, "https://a.b") == HttpFields{});
  CHECK(fields({"https://a.b"}, "") == varies);
  CHECK(fields({"https://a.b"}, "https://c.d") == varies);
  CHECK(fields({"https://c.d", "https://a.b"}, "https://a.b") == allowed);
  CHECK(fields({"*"}, "https://a.b") == allowed);
  CHECK(fields({"*"}, "") == varies);
  for (const std::string asked : {"", "authorization,x-more"}) {
    CHECK(Access::preflight({.requested_headers = asked}).fields ==
          HttpFields{{"Access-Control-Allow-Methods", "GET, HEAD, POST"},
                     {"Access-Control-Allow-Headers",
                      asked.empty() ? "Authorization, Content-Type, X-Request-Id" : asked},
                     {"Access-Control-Max-Age", "600"}});
  }
}

TEST_CASE("a body is plain JSON by its fields, or it is refused") {
  const auto status = [](const std::string& type, const std::string& encoding) {
    try {
      require_json_body({.content_type = type, .content_encoding = encoding});
    } catch (const HttpError& error) {
      if (!encoding.empty()) CHECK(error.fields == HttpFields{{"Accept-Encoding", "identity"}});
      return error.status;
    }
    return 200;
  };
  for (const char* type :
       {"application/json", " Application/JSON ", "application/json; charset=utf-8", "application/json ;x"})
    CHECK(status(type, "") == 200);
  for (const char* type :
       {"", "text/plain", "application/jsonx", "application/json+x", "application", ";application/json"})
    CHECK(status(type, "") == 415);
  for (const char* encoding : {"identity", " Identity\t"}) CHECK(status("application/json", encoding) == 200);
  for (const char* encoding : {"gzip", "identity, gzip", "br"})
    CHECK(status("application/json", encoding) == 415);
}

TEST_CASE("a key with too many unfinished requests learns how many it has") {
  const TemporaryFolder folder;
  folder.write("keys", "first\n");
  const std::string file = (folder.path() / "keys").string();
  for (const auto& [most, words] :
       {std::pair(1, "1 unfinished request and"), {2, "2 unfinished requests and"}}) {
    Access access({.api_key_file = file, .max_per_key = most});
    const std::vector<HttpRequest> asked(static_cast<std::size_t>(most) + 1,
                                         {.authorization = "Bearer first"});
    for (int i = 0; i < most; ++i) access.begin(asked[static_cast<std::size_t>(i)]);
    CHECK(contains(error_message([&] { access.begin(asked.back()); }), words));
    access.end(asked.front());
    access.begin(asked.back());
  }
}

TEST_CASE("--cors-origin is compared as browsers send it, and what they never send is refused") {
  for (const auto& [given_, origin] :
       std::map<std::string, std::string>{{"*", "*"},
                                          {"null", "null"},
                                          {"https://example.org", "https://example.org"},
                                          {"https://Example.ORG/", "https://example.org"},
                                          {"HTTPS://a.b:443", "https://a.b"},
                                          {"http://a.b:80/", "http://a.b"},
                                          {"http://a.b:443", "http://a.b:443"},
                                          {"http://localhost:3000", "http://localhost:3000"},
                                          {"https://my-app.a_b.org", "https://my-app.a_b.org"},
                                          {"http://[::1]:80", "http://[::1]"},
                                          {"http://[::1]:8080/", "http://[::1]:8080"},
                                          {"http://a.b:65535", "http://a.b:65535"},
                                          {"chrome-extension://abc", "chrome-extension://abc"}}) {
    const auto& given = given_;  // clang 14 captures no structured binding
    CAPTURE(given);
    CHECK(origin_of(given) == origin);
  }
  for (const char* wrong : {"",
                            "example.org",
                            "localhost:3000",
                            "//a.b",
                            "https://",
                            "https:///",
                            "https://a.b,https://c.d",
                            "https://a.b https://c.d",
                            " https://a.b",
                            "https://a.b/path",
                            "https://a.b//",
                            "https://a.b?x",
                            "https://u@a.b",
                            "https://a.b:",
                            "https://a.b:x",
                            "https://a.b:123456",
                            "https://ä.b",
                            "https://*.a.b",
                            "http://[::1",
                            "http://[]",
                            "http://::]",
                            "http://abc]",
                            "http://[abc",
                            "http://::1",
                            "NULL",
                            "**"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(origin_of(wrong), UsageError);
  }
}

TEST_CASE("a prompt is a text, a list of texts, token ids or a list of those") {
  const std::vector<int> fox = tokenizer().encode("The fox"), crow = tokenizer().encode("The crow");
  CHECK(request(R"({"prompt": "The fox"})").prompts() == Prompts{fox});
  CHECK(request(R"({"prompt": ["The fox", "The crow"]})").prompts() == Prompts{fox, crow});
  CHECK(request(R"({"prompt": [5, 7]})").prompts() == Prompts{{5, 7}});
  CHECK(request(R"({"prompt": [[5, 7], [9]]})").prompts() == Prompts{{5, 7}, {9}});
  CHECK(request(R"({"prompt": ["a", "b"], "n": 3})").texts() == 6);
}

TEST_CASE("a special token in a prompt is text") {
  const Prompts prompts = request(R"({"prompt": "a<|endoftext|>b"})").prompts();
  CHECK(prompts == Prompts{tokenizer().encode("a<|endoftext|>b")});
  CHECK(prompts.at(0).size() > 3);
}

TEST_CASE("a body's missing keys have OpenAI's defaults, and null counts as missing") {
  const CompletionRequest least = request(R"({"prompt": "a", "n": null, "max_tokens": null, "stream": null,
    "logprobs": null, "echo": null, "suffix": null, "best_of": null, "logit_bias": null, "user": null,
    "min_p": null, "max_completion_tokens": null, "messages": null})");
  CHECK(least.n == 1);
  CHECK(least.max_tokens == 16);
  CHECK_FALSE(least.stream);
  CHECK_FALSE(least.echo);
  CHECK_FALSE(least.logprobs);
  RowOptions kept = options(with(R"("temperature": null, "top_p": null, "stop": null)"));
  CHECK(kept.sampling.temperature == 1.0f);
  CHECK_FALSE(kept.sampling.top_p);
  CHECK(kept.stop.sequences.empty());
}

TEST_CASE("the options of a text have OpenAI's names, and unknown keys are ignored") {
  const RowOptions read = options(with(
      R"("max_tokens": 9, "min_tokens": 3, "temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": 11,
         "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5, "logprobs": 4, "stop": "x",
         "ignore_eos": true, "do_sample": "no", "on_overflow": "recompute", "nobody knows": [1])"));
  CHECK(read.stopping.max_new_tokens == 9);
  CHECK(read.stopping.ignore_eos);
  CHECK(read.length.min_new_tokens == 3);
  CHECK(read.sampling.temperature == 0.5f);
  CHECK(read.sampling.top_p == 0.25f);
  CHECK(read.sampling.top_k == 7);
  CHECK(read.sampling.seed == 11);
  CHECK(read.sampling.presence_penalty == 1.0f);
  CHECK(read.sampling.frequency_penalty == -1.0f);
  CHECK(read.sampling.repetition_penalty == 1.5f);
  CHECK(read.logprobs.count == 4);
  CHECK(read.stop.sequences == std::vector<std::string>{"x"});
  CHECK(read.sampling.do_sample);  // not the body's business: it is so unless the temperature is 0
  CHECK_FALSE(options(with(R"("temperature": 0, "do_sample": true)")).sampling.do_sample);
  CHECK(options(with(R"("n": 1)")).stopping.max_new_tokens == 16);
  CHECK(read.overflow.on_overflow == Overflow::kSlide);
}

TEST_CASE("top_k 0 and -1 keep all tokens") {
  CHECK_FALSE(options(with(R"("top_k": 0)")).sampling.top_k);
  CHECK_FALSE(options(with(R"("top_k": -1)")).sampling.top_k);
  CHECK(refusal(with(R"("top_k": -2)")) == "400 top_k: top_k is -2, but it must be 1 or more");
}

TEST_CASE("top_p 0 keeps a token") {
  CHECK(options(with(R"("top_p": 0)")).sampling.top_p == 1e-6f);
}

TEST_CASE("a seed may have any 64 bits, and without one each request has a new one") {
  CHECK(options(with(R"("seed": -1)")).sampling.seed == 4294967295u);
  CHECK(options(with(R"("seed": 4294967297)")).sampling.seed == 1u);
  // Written with a point, up to 2^53: beyond, not every whole number has a form of its own.
  CHECK(options(with(R"("seed": 9007199254740992.0)")).sampling.seed == 0u);
  CHECK(options(with(R"("seed": -9007199254740991.0)")).sampling.seed == 1u);
  CHECK(refusal(with(R"("seed": 9007199254740994.0)")).starts_with("400 seed: seed is "));
  const std::string none = with(R"("n": 1)");
  CHECK_FALSE((options(none).sampling.seed == options(none).sampling.seed &&
               options(none).sampling.seed == options(none).sampling.seed));
}

TEST_CASE("a body that is not a JSON object is refused with 400") {
  for (const char* body : {"", "{", "[]", "null", "\"prompt\"", "{\"prompt\": NaN}", "{\"prompt\": 1e999}",
                           "{\"prompt\": \"a\", \"prompt\": \"b\"}", "{\"prompt\": \"\xff\"}",
                           "{\"prompt\": \"\\ud800\"}", "{} {}"}) {
    CAPTURE(body);
    CHECK(begins_with(refusal(body), "400 : the body "));
  }
  CHECK(begins_with(refusal(std::string("{\"prompt\": \"a\0\"}", 16)), "400 : the body "));
  CHECK(begins_with(refusal("{\"prompt\": " + std::string(100000, '[')), "400 : the body nests"));
}

TEST_CASE("a prompt that is missing, empty, of another kind or too long is refused") {
  CHECK(refusal("{}") == "400 prompt: the body has no prompt");
  CHECK(refusal(R"({"prompt": ""})") == "400 prompt: prompt is empty, but it must have at least one token");
  for (const char* prompt : {"7", "true", "{}", "[]", "[[]]", "[\"a\", 1]", "[[1], \"a\"]", "[\"\"]", "[1.5]",
                             "[-1]", "[100000]", "[[1, 4294967296]]", "[[\"a\"]]", "[[[1]]]"}) {
    CAPTURE(prompt);
    CHECK(begins_with(refusal(fmt::format(R"({{"prompt": {}}})", prompt)), "400 prompt: "));
  }
  CHECK(refusal(R"({"prompt": [5, 5, 5], "max_tokens": 62})") ==
        "400 prompt: this model's maximum context length is 64 tokens, but the prompt has 3 and max_tokens "
        "is 62");
  CHECK(refusal(R"({"prompt": [5, 5, 5], "max_tokens": 61})") == "");
  CHECK(begins_with(refusal(R"({"prompt": ")" + std::string(1 << 20, 'a') + "\"}"),
                    "400 prompt: this model's maximum"));
  const nlohmann::json many{{"prompt", std::vector<std::string>(129, "a")}};
  CHECK(begins_with(refusal(many.dump()), "400 prompt: prompt is a list of 129"));
  CHECK(refusal(R"({"prompt": ["a", "b"], "n": 65})") ==
        "400 prompt: prompt is a list of 2 and n is 65, but a request may generate at most 128 texts");
  CHECK(refusal(R"({"prompt": ["a", "b"], "n": 64})") == "");
}

TEST_CASE("an invalid value is refused with 400 and the name of its key") {
  for (const char* wrong : {R"("n": 0)",
                            R"("n": 129)",
                            R"("n": 1.5)",
                            R"("n": "1")",
                            R"("max_tokens": -1)",
                            R"("max_tokens": 1e30)",
                            R"("max_tokens": 99999999999999999999)",

                            R"("temperature": -1)",
                            R"("temperature": "hot")",
                            R"("temperature": 101)",
                            R"("temperature": 1e39)",
                            R"("top_p": -0.1)",
                            R"("top_p": 1.01)",
                            R"("presence_penalty": 2.5)",
                            R"("frequency_penalty": -3)",
                            R"("repetition_penalty": 0)",
                            R"("repetition_penalty": 1e-30)",
                            R"("repetition_penalty": 100.5)",
                            R"("logprobs": 21)",
                            R"("logprobs": true)",
                            R"("echo": 1)",
                            R"("stream": "yes")",
                            R"("seed": 0.5)",
                            R"("seed": 1e300)",
                            R"("seed": 18446744073709551616)",
                            R"("n": 4294967297.0)",
                            R"("stop": 5)",
                            R"("stop": [1])",
                            R"("stop": "")",
                            R"("stop": ["a", ""])",
                            R"("user": 5)",
                            R"("model": 5)"}) {
    CAPTURE(wrong);
    const std::string key = nlohmann::json::parse(fmt::format("{{{}}}", wrong)).begin().key();
    CHECK(begins_with(refusal(with(wrong)), fmt::format("400 {}: ", key)));
  }
}

TEST_CASE("the ends of each range are valid") {
  for (const char* end :
       {R"("n": 128)", R"("temperature": 0)", R"("temperature": 100)", R"("top_p": 0)", R"("top_p": 1)",
        R"("presence_penalty": 2)", R"("presence_penalty": -2)", R"("frequency_penalty": 2)",
        R"("frequency_penalty": -2)", R"("repetition_penalty": 0.125)", R"("repetition_penalty": 100)",
        R"("logprobs": 0)", R"("logprobs": 20)", R"("max_tokens": 0)"}) {
    CAPTURE(end);
    CHECK(refusal(with(end)) == "");
  }
}

TEST_CASE("values that contradict each other are refused with 400") {
  CHECK(refusal(with(R"("min_tokens": 17)")) ==
        "400 min_tokens: min_tokens is 17, but it must be at most 16, the value of max_tokens");
}

TEST_CASE("texts of equal prompts follow the first of them, in their order") {
  CHECK(request(R"({"prompt": ["A", "B", "A"]})").texts_by_prompt() == std::vector<int>{0, 2, 1});
  CHECK(request(R"({"prompt": ["A", "B", "B", "A"], "n": 2})").texts_by_prompt() ==
        std::vector<int>{0, 1, 6, 7, 2, 3, 4, 5});
}

TEST_CASE("a whole number may be written with a point") {
  CHECK(request(R"({"prompt": [5.0, 7], "n": 2.0})").prompts() == Prompts{{5, 7}});
  CHECK(options(with(R"("top_k": 3.0, "seed": -1.0)")).sampling.top_k == 3);
}

TEST_CASE("of best_of texts the client gets n") {
  const CompletionRequest best =
      request(R"({"prompt": ["a", "b"], "n": 2, "best_of": 5, "best_by": "logprob"})");
  CHECK(best.texts() == 10);
  CHECK(best.prompt(4) == best.prompts()[0]);
  CHECK(best.prompt(5) == best.prompts()[1]);
  CHECK(best.ranks());
  CHECK(!request(with(R"("n": 3, "best_of": 3)")).ranks());
  CHECK(!request(with(R"("n": 3, "best_of": null)")).ranks());
  CHECK(request(with(R"("best_of": 2, "best_by": "vote")")).votes);
  CHECK(options(with(R"("best_of": 2, "logprobs": 3)")).logprobs.count == 3);
  CompletionRequest plain(with(R"("best_of": 2)"), model());
  CHECK(row_options(plain).logprobs.count == 0);
  const std::pair<const char*, const char*> wrong[] = {
      {R"("best_of": 2, "n": 3)", "best_of: best_of is 2, but it must be at least 3, the value of n"},
      {R"("best_of": 129)", "best_of: best_of is 129, but it must be between 1 and 128"},
      {R"("best_of": 0)", "best_of: best_of is 0, but it must be between 1 and 128"},
      {R"("best_of": 1.5)", "best_of: best_of is 1.5, but it must be a whole number between 1 and 128"},
      {R"("best_of": "all")",
       R"(best_of: best_of is "all", but it must be a whole number between 1 and 128)"},
      {R"("best_of": 4, "temperature": 0)",
       "best_of: best_of is 4, but with temperature 0 all 4 texts would be the same"},
      {R"("best_of": 4, "stream": true)", "stream: best_of above n compares whole texts: leave out stream"},
      {R"("best_of": 4, "best_by": "length")",
       R"(best_by: best_by is "length", but it must be one of logprob, vote)"},
      {R"("best_by": "vote")", "best_by: best_by needs best_of above n: without it all texts are returned"},
      {R"("best_of": 4, "n": 2, "best_by": "vote")",
       "best_by: a vote has one winner, but n is 2: leave it out"}};
  for (const auto& [body, message] : wrong) CHECK(refusal(with(body)) == fmt::format("400 {}", message));
  CHECK(refusal(R"({"prompt": ["a", "b", "c"], "best_of": 50})") ==
        "400 prompt: prompt is a list of 3 and best_of is 50, but a request may generate at most 128 texts");
}

TEST_CASE("a service that searches takes the keys of a beam search") {
  ServedModel searching = model();
  searching.searches = true;
  const auto search = [&](const std::string& more) {
    return CompletionRequest(with(R"("use_beam_search": true, )" + more), searching);
  };
  const auto refused = [&](const std::string& body) -> std::string {
    try {
      CompletionRequest{with(body), searching};
    } catch (const HttpError& error) {
      return fmt::format("{} {}: {}", error.status, error.key, error.what());
    }
    return "";
  };
  CompletionRequest found =
      search(R"("best_of": 4, "n": 2, "temperature": 0, "top_p": 1.0, "top_k": -1, "length_penalty": 0.5,
                "early_stopping": "never", "presence_penalty": 1, "min_tokens": 3)");
  const RowOptions row = row_options(found);
  REQUIRE(row.extras.search);
  CHECK(row.extras.search->num_beams == 4);
  CHECK(row.extras.search->length_penalty == 0.5f);
  CHECK(row.extras.search->early_stopping == EarlyStopping::kNever);
  CHECK(row.sampling.temperature == 1.0f);
  CHECK(row.sampling.presence_penalty == 1.0f);
  CHECK(row.length.min_new_tokens == 3);
  CHECK(found.ranks());
  CHECK(found.texts() == 4);
  CHECK(search(R"("n": 3)").search->num_beams == 3);
  for (const char* neutral :
       {R"("temperature": 0)", R"("temperature": 1)", R"("top_k": 0)", R"("top_k": -1)", R"("top_p": 1)",
        R"("min_p": 0)", R"("length_penalty": -10)", R"("length_penalty": 10)", R"("early_stopping": false)"})
    CHECK(search(fmt::format(R"("n": 2, {})", neutral)).search->num_beams == 2);
  CHECK(search(R"("n": 2, "early_stopping": true)").search->early_stopping == EarlyStopping::kTrue);
  for (const char* key : {"temperature", "top_k", "top_p", "min_p"})
    CHECK(refused(fmt::format(R"("use_beam_search": true, "n": 2, "{}": {})", key,
                              key == std::string_view("top_k") ? "1" : "0.5")) ==
          fmt::format("400 {0}: use_beam_search does not sample: leave out {0}", key));
  CHECK(!CompletionRequest(with(R"("use_beam_search": false, "length_penalty": 1)"), searching).search);
  const std::pair<const char*, const char*> wrong[] = {
      {R"("use_beam_search": 1)", "use_beam_search: use_beam_search is 1, but it must be true or false"},
      {R"("use_beam_search": true)",
       "use_beam_search: use_beam_search needs best_of, or n, above 1: the number of its beams"},
      {R"("use_beam_search": true, "n": 2, "stream": true)",
       "stream: use_beam_search compares whole texts: leave out stream"},
      {R"("use_beam_search": true, "best_of": 2, "best_by": "vote")",
       "best_by: a beam search ranks its texts itself: leave out best_by"},
      {R"("use_beam_search": true, "n": 2, "length_penalty": 11)",
       "length_penalty: length_penalty is 11, but it must be between -10 and 10"},
      {R"("use_beam_search": true, "n": 2, "early_stopping": "soon")",
       R"(early_stopping: early_stopping is "soon", but it must be true, false or "never")"},
      {R"("use_beam_search": true, "n": 2, "echo": true, "logprobs": 1)",
       "echo: log-probabilities of a prompt (echo with logprobs) cannot be combined with a beam search: "
       "leave "
       "one of them out"},
      {R"("length_penalty": 2)", "length_penalty: length_penalty needs use_beam_search to be true"},
      {R"("early_stopping": true)", "early_stopping: early_stopping needs use_beam_search to be true"}};
  for (const auto& [body, message] : wrong) CHECK(refused(body) == fmt::format("400 {}", message));
  for (const std::string key : {"use_beam_search", "length_penalty", "early_stopping"})
    CHECK(contains(refused(fmt::format("\"{}s\": 1", key)), fmt::format("did you mean {}?", key)));
}

TEST_CASE("stop sequences are few and short") {
  const auto stops = [](std::size_t count, std::size_t length) {
    return with(R"("stop": )" +
                nlohmann::json(std::vector<std::string>(count, std::string(length, 'x'))).dump());
  };
  CHECK(refusal(stops(16, 256)) == "");
  CHECK(refusal(stops(17, 1)) == "400 stop: stop is a list of 17, but it must have at most 16");
  CHECK(refusal(stops(10000, 1)) == "400 stop: stop is a list of 10000, but it must have at most 16");
  CHECK(refusal(stops(1, 257)) == "400 stop: stop has a text of 257 bytes, but it must have at most 256");
}

TEST_CASE("a key that would change the text and is not implemented is refused, unless it changes nothing") {
  CHECK(refusal(with(R"("best_of": 1, "suffix": "", "logit_bias": {}, "stop_token_ids": [], "tools": [],
                        "response_format": {"type": "text"}, "use_beam_search": false, "length_penalty": 1.0)")) ==
        "");
  CHECK(refusal(with(R"("max_completion_tokens": 5)")) ==
        "400 max_completion_tokens: max_completion_tokens is not implemented: leave it out");
  struct Key {
    const char *name, *plain, *wrong;  // the value that changes nothing, if there is one
  };
  for (const Key& key : std::initializer_list<Key>{{"suffix", R"("")", R"("end")"},
                                                   {"stop_token_ids", "[]", "[5]"},
                                                   {"include_stop_str_in_output", "false", "true"},
                                                   {"max_new_tokens", nullptr, "5"},
                                                   {"min_new_tokens", nullptr, "5"},
                                                   {"n_predict", nullptr, "5"},
                                                   {"messages", nullptr, "[]"},
                                                   {"prompt_logprobs", nullptr, "1"},
                                                   {"prompt_embeds", nullptr, R"("x")"},
                                                   {"truncate_prompt_tokens", nullptr, "5"},
                                                   {"tools", "[]", R"([{"type": "function"}])"},
                                                   {"allowed_token_ids", nullptr, "[5]"},
                                                   {"bad_words", "[]", R"(["x"])"},
                                                   {"use_beam_search", "false", "true"},
                                                   {"num_beams", "1", "4"},
                                                   {"length_penalty", "1", "0"},
                                                   {"early_stopping", "false", "true"},
                                                   {"logits_processors", "[]", R"(["x"])"},
                                                   {"repeat_penalty", "1", "1.1"},
                                                   {"typical_p", "1", "0.9"},
                                                   {"tfs_z", "1", "0.9"},
                                                   {"top_a", "0", "0.1"},
                                                   {"top_n_sigma", "-1", "1"},
                                                   {"mirostat", "0", "2"},
                                                   {"dynatemp_range", "0", "0.5"},
                                                   {"xtc_probability", "0", "0.5"},
                                                   {"dry_multiplier", "0", "0.8"}}) {
    CAPTURE(key.name);
    const auto refused = [&](const char* value) {
      return refusal(with(fmt::format(R"("{}": {})", key.name, value)));
    };
    if (key.plain != nullptr) CHECK(refused(key.plain) == "");
    CHECK(refused("null") == "");
    CHECK(begins_with(refused(key.wrong), fmt::format("400 {0}: {0} is not implemented", key.name)));
  }
}

TEST_CASE(
    "each key that is not implemented is accepted with the value that changes nothing, and with no other") {
  const std::map<std::string, const char*> harmless{{"suffix", "\"\""},
                                                    {"stop_token_ids", "[]"},
                                                    {"include_stop_str_in_output", "false"},
                                                    {"max_new_tokens", ""},
                                                    {"min_new_tokens", ""},
                                                    {"n_predict", ""},
                                                    {"prompt_logprobs", ""},
                                                    {"prompt_embeds", ""},
                                                    {"truncate_prompt_tokens", ""},
                                                    {"tools", "[]"},
                                                    {"allowed_token_ids", ""},
                                                    {"bad_words", "[]"},
                                                    {"use_beam_search", "false"},
                                                    {"num_beams", "1"},
                                                    {"length_penalty", "1"},
                                                    {"early_stopping", "false"},
                                                    {"logits_processors", "[]"},
                                                    {"repeat_penalty", "1"},
                                                    {"typical_p", "1"},
                                                    {"tfs_z", "1"},
                                                    {"top_a", "0"},
                                                    {"top_n_sigma", "-1"},
                                                    {"mirostat", "0"},
                                                    {"dynatemp_range", "0"},
                                                    {"xtc_probability", "0"},
                                                    {"dry_multiplier", "0"}};
  for (const auto& [key_, value] : harmless) {
    const auto& key = key_;  // clang 14 captures no structured binding
    CAPTURE(key);
    CHECK(refusal(with(fmt::format("\"{}\": null", key))) == "");
    if (*value != '\0') CHECK(refusal(with(fmt::format("\"{}\": {}", key, value))) == "");
    CHECK(begins_with(refusal(with(fmt::format("\"{}\": 7", key))),
                      fmt::format("400 {}: {} is not implemented", key, key)));
  }
}

TEST_CASE("a near miss of a known key is refused, other keys are ignored") {
  CHECK(refusal(with(R"("max_token": 5)")) ==
        "400 max_token: unknown key \"max_token\"; did you mean max_tokens?");
  for (const char* key : {"maxTokens",
                          "max-tokens",
                          "max tokens",
                          "Temperature",
                          "temprature",
                          "tempearture",
                          "topp",
                          "top-k",
                          "minp",
                          "stops",
                          "sead",
                          "seeds",
                          "presence_penality",
                          "repetition_penaltys",
                          "frequencypenalty",
                          "logprob",
                          "logit_biases",
                          "ignore_eso",
                          "streams",
                          "stream_option",
                          "N",
                          "mode",
                          "Echo"}) {
    CAPTURE(key);
    CHECK(begins_with(refusal(with(fmt::format("\"{}\": 1", key))), fmt::format("400 {}: unknown key", key)));
  }
  for (const char* key :
       {"store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "x", "a", "nn", "id",
        "priority", "request_id", "detokenize", "skip_special_tokens", "spaces_between_special_tokens",
        "parallel_tool_calls", "cache_salt", "return_token_ids", "timeout", "do_sample"}) {
    CAPTURE(key);
    CHECK(refusal(with(fmt::format("\"{}\": 1", key))) == "");
  }
}

TEST_CASE("logit_bias is a number for each of some tokens") {
  const auto bias = [](const std::string& value) {
    return request(with("\"logit_bias\": " + value)).logit_bias;
  };
  CHECK(bias(R"({"5": 1.5, "4095": -100})") ==
        std::vector<std::pair<int, float>>{{4095, -100.0f}, {5, 1.5f}});
  CHECK(bias("{}").empty());
  for (const char* wrong : {"[]", "5", R"({"5": "1"})", R"({"5": 100.1})", R"({"5": -101})", R"({"5": null})",
                            R"({"-1": 1})", R"({"4096": 1})", R"({"a": 1})", R"({"": 1})", R"({"5 ": 1})",
                            R"({"99999999999999999999": 1})", R"({"5": 1e999})"}) {
    CAPTURE(wrong);
    CHECK(begins_with(refusal(with(fmt::format("\"logit_bias\": {}", wrong))), "400 "));
  }
  nlohmann::json many;
  for (int id = 0; id < 1025; ++id) many[std::to_string(id)] = 1;
  CHECK(refusal(with("\"logit_bias\": " + many.dump())) ==
        "400 logit_bias: logit_bias has 1025 tokens, but at most 1024 are read");
  many.erase("1024");
  CHECK(refusal(with("\"logit_bias\": " + many.dump())) == "");
}

TEST_CASE("min_p and logit_bias are at the ends of the chain") {
  CompletionRequest body(with(R"("min_p": 0.5, "logit_bias": {"1": 4, "2": -100})"), model());
  const RowOptions options = row_options(body);
  std::vector<float> logits{1.0f, 0.0f, 9.0f, 3.5f};
  options.edit_raw_logits(logits, {});
  CHECK(logits == std::vector{1.0f, 4.0f, -91.0f, 3.5f});
  options.edit_final_logits(logits);
  CHECK(logits == std::vector{kMasked, 4.0f, kMasked, 3.5f});
  CompletionRequest plain(with(R"("logit_bias": {})"), model());
  CHECK_FALSE(row_options(plain).edit_raw_logits);
  CHECK_FALSE(row_options(plain).edit_final_logits);
  for (const char* wrong : {"-0.1", "1.1", "true", "\"0.1\"", "1e39"}) {
    CompletionRequest broken(with(fmt::format("\"min_p\": {}", wrong)), model());
    CHECK_THROWS_AS(row_options(broken), HttpError);
  }
}

TEST_CASE("a body of very many values or keys is refused before it is built") {
  const auto many = [](const char* begin, const char* one, int count, const char* end) {
    std::string body = begin;
    for (int i = 0; i < count; ++i) body += fmt::format(fmt::runtime(one), i);
    return body + end;
  };
  CHECK(refusal(many(R"({"prompt": "a")", R"(, "key{}": 0)", 1999, "}")) == "");
  CHECK(refusal(many(R"({"prompt": "a")", R"(, "key{}": 0)", 2000, "}")) ==
        "400 : the body has 2001 keys, but at most 2000 are read");
  // As many numbers as the prompts of 128 texts have in a context of 64, and one for each key.
  CHECK(refusal(many(R"({"prompt": "a", "x": [0)", ", 0", 128 * 64 + 1999, "]}")) == "");
  CHECK(refusal(many(R"({"prompt": "a", "x": [0)", ", 0", 128 * 64 + 2000, "]}")) ==
        "400 : the body has 10194 values, but at most 10193 are read");
  CHECK(refusal(R"({"prompt": [4095]})") == "");
  CHECK(
      begins_with(refusal(R"({"prompt": [4096]})"),
                  "400 prompt: a token id of prompt is 4096, but it must be a whole number from 0 to 4095"));
  // Such a text is not tokenized.
  CHECK(contains(refusal(R"({"prompt": ")" + std::string(1 << 20, 'a') + "\"}"),
                 "but the prompt has 1048576 bytes"));
  CHECK(refusal(many(R"({"prompt": "a")", R"(, "key{}": 0)", 200000, "}")) ==
        "400 : the body has 200001 keys, but at most 2000 are read");
  CHECK(begins_with(refusal(many(R"({"prompt": [1)", ", 1", 1000000, "]}")),
                    "400 : the body has 1000001 values"));
  CHECK(begins_with(refusal(many(R"({"stop": [[])", ",[]", 500000, R"(], "prompt": "a"})")),
                    "400 : the body has"));
  // The contents of a text do not count, whatever is escaped there.
  CHECK(refusal(R"({"prompt": "a", "user": "\\\"{})" + std::string(20000, ',') + R"(\\"})") == "");
  CHECK(refusal(R"({"prompt": "a", "user": ")" + std::string(20000, ':') + R"("})") == "");
}

TEST_CASE("stream_options belong to a stream") {
  CHECK(request(with(R"("stream": true, "stream_options": {"include_usage": true})")).include_usage);
  CHECK_FALSE(request(with(R"("stream": true, "stream_options": {"include_usage": null})")).include_usage);
  CHECK_FALSE(request(with(R"("stream": true, "stream_options": null)")).include_usage);
  CHECK(begins_with(refusal(with(R"("stream_options": {})")), "400 stream_options: "));
  CHECK(begins_with(refusal(with(R"("stream": true, "stream_options": 5)")), "400 stream_options: "));
  CHECK(begins_with(refusal(with(R"("stream": true, "stream_options": {"include_usage": 1})")),
                    "400 stream_options: include_usage is 1"));
}

TEST_CASE("only the served model can be requested") {
  CHECK(refusal(with(R"("model": "tales")")) == "");
  CHECK(refusal(with(R"("model": "gpt-4")")) ==
        "404 model: there is no model \"gpt-4\", but one named \"tales\"");
}

TEST_CASE("a server has at most 1,024 adapters") {
  const auto refusal = [](std::size_t count) {
    return error_message([&] {
      CommandLine line("A server.");
      AdapterOptions adapters;
      add_options(line, adapters);
      adapters.pairs.assign(count, "a=b");
      line.parse(0, nullptr);
    });
  };
  CHECK(refusal(1024) == "");
  CHECK(refusal(1025) == "--adapter is given 1025 times, but a server has at most 1024 adapters");
}

TEST_CASE("an error has OpenAI's form") {
  const HttpResponse response = error_response(HttpError(429, "too \xff many", "", "queue_full"));
  CHECK(response.status == 429);
  const auto error = nlohmann::json::parse(response.body)["error"];
  CHECK(error["message"] == "too \xef\xbf\xbd many");
  CHECK(error["type"] == "rate_limit_error");
  CHECK(error["param"].is_null());
  CHECK(error["code"] == "queue_full");
  for (const auto& [status, type] :
       {std::pair(400, "invalid_request_error"), std::pair(401, "authentication_error"),
        std::pair(403, "invalid_request_error"), std::pair(429, "rate_limit_error"),
        std::pair(499, "invalid_request_error"), std::pair(500, "server_error"),
        std::pair(503, "server_error")})
    CHECK(nlohmann::json::parse(error_response(HttpError(status, "")).body)["error"]["type"] == type);
}

TEST_CASE("metrics are counted, set and put into buckets") {
  Metrics metrics;
  metrics.declare_counter("answers_total", "Answers.");
  metrics.declare_gauge("rows", "Rows.");
  metrics.declare_histogram("wait_seconds", "Waiting.", {0.5, 1});
  metrics.count("answers_total", 1, "status=\"200\"");
  metrics.count("answers_total", 2, "status=\"200\"");
  metrics.count("answers_total", 1, "status=\"404\"");
  metrics.set("rows", 3);
  // A value on a border belongs to the bucket below it: le is "less or equal".
  for (const double seconds : {0.25, 0.5, 0.75, 8.0}) metrics.observe("wait_seconds", seconds);
  CHECK(metrics.text() ==
        "# HELP answers_total Answers.\n# TYPE answers_total counter\n"
        "answers_total{status=\"200\"} 3\nanswers_total{status=\"404\"} 1\n"
        "# HELP rows Rows.\n# TYPE rows gauge\nrows 3\n"
        "# HELP wait_seconds Waiting.\n# TYPE wait_seconds histogram\n"
        "wait_seconds_bucket{le=\"0.5\"} 2\nwait_seconds_bucket{le=\"1\"} 3\n"
        "wait_seconds_bucket{le=\"+Inf\"} 4\nwait_seconds_sum 9.5\nwait_seconds_count 4\n");
}

TEST_CASE("a text of as many bytes as may fit is tokenized, and a longer one is not") {
  std::string_view longest;
  for (int id = 0; id < tokenizer().vocab_size(); ++id)
    if (tokenizer().bytes(id).size() > longest.size()) longest = tokenizer().bytes(id);
  std::string text;
  for (int i = 0; i < 64; ++i) text += longest;
  const auto message = [](const std::string& prompt) {
    return refusal(nlohmann::json{{"prompt", prompt}}.dump());
  };
  CHECK(message(text).find(fmt::format("{} bytes", text.size())) == std::string::npos);
  CHECK(message(text) != "");
  CHECK(message(text + "a").find(fmt::format("{} bytes", text.size() + 1)) != std::string::npos);
}
