// Output: what reaches standard output, and when.
#include "common/program/output.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/tiny_model.h"

namespace staircase {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(STAIRCASE_SOURCE_TREE "/models/tales-6m");
  return tokenizer;
}

/// What a run prints that chooses these tokens.
std::string printed(const std::vector<int>& tokens, FinishReason reason, Output::Form form) {
  Captured captured(stdout);
  Output output(tokenizer(), 4095, {{321}}, form);
  const OnToken on_token = output.begin();
  for (const int token : tokens) on_token({token});
  output.finish(reason, {20, 300, 280});
  output.close(1000, 500);
  return captured.text();
}

std::vector<std::string> keys(const nlohmann::ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

TEST_CASE("the message of a failed check is not captured with the output that it is about") {
  const Captured terminal(stdout);
  std::string captured;
  {
    const Captured inner(stdout);
    std::printf("the output\n");
    std::fflush(stdout);
    std::cout << "a check failed, values: " << 7 << std::endl;  // as doctest prints it
    captured = inner.text();
  }
  CHECK(captured == "the output\n");
  CHECK(terminal.text() == "a check failed, values: 7\n");
}

TEST_CASE("text reaches standard output token by token, and the prompt does not") {
  const std::string text = "The queen smiled.";
  const std::vector<int> tokens = tokenizer().encode(text);
  REQUIRE(tokens.size() >= 3);
  std::vector<std::string> after_each;
  {
    Captured captured(stdout);
    Output output(tokenizer(), 4095, {{321}}, Output::Form::kText);
    const OnToken on_token = output.begin();
    for (const int token : tokens) {
      on_token({token});
      after_each.push_back(captured.text());
    }
  }
  std::string want;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    want += tokenizer().bytes(tokens[i]);
    CHECK(after_each[i] == want);
  }
  CHECK(want == text);
}

TEST_CASE("a character is printed with its last byte and not before") {
  // In this vocabulary each byte of a character beyond ASCII is a token.
  const std::vector<int> tokens = tokenizer().encode("a😀é");
  REQUIRE(tokens.size() == 7);
  std::vector<std::string> after_each;
  {
    Captured captured(stdout);
    Output output(tokenizer(), 4095, {{321}}, Output::Form::kText);
    const OnToken on_token = output.begin();
    for (const int token : tokens) {
      on_token({token});
      after_each.push_back(captured.text());
    }
  }
  CHECK(after_each == std::vector<std::string>{"a", "a", "a", "a", "a😀", "a😀", "a😀é"});
}

TEST_CASE("a character that is never finished ends as a replacement character") {
  std::vector<int> tokens = tokenizer().encode("a😀");
  tokens.pop_back();
  CHECK(printed(tokens, FinishReason::kLength, Output::Form::kText) == "a\uFFFD\n");
  const auto json =
      nlohmann::ordered_json::parse(printed(tokens, FinishReason::kLength, Output::Form::kJson));
  CHECK(json["sequences"][0]["text"] == "a\uFFFD");
  CHECK(json["sequences"][0]["token_ids"] == tokens);
}

TEST_CASE("the end-of-text token that ends a run is a token but not text") {
  CHECK(printed({321, 4095}, FinishReason::kEos, Output::Form::kText) == "The\n");
  const auto json =
      nlohmann::ordered_json::parse(printed({321, 4095}, FinishReason::kEos, Output::Form::kJson));
  CHECK(json["sequences"][0]["text"] == "The");
  CHECK(json["sequences"][0]["token_ids"] == std::vector<int>{321, 4095});
  CHECK(json["sequences"][0]["finish_reason"] == "eos");
}

TEST_CASE("an end-of-text token inside a run is text like any other") {
  CHECK(printed({4095, 4095, 321}, FinishReason::kLength, Output::Form::kText) ==
        "<|endoftext|><|endoftext|>The\n");
  CHECK(printed({321, 4095}, FinishReason::kLength, Output::Form::kText) == "The<|endoftext|>\n");
  CHECK(printed({321, 4095, 321}, FinishReason::kLength, Output::Form::kText) == "The<|endoftext|>The\n");
  for (const std::vector<int>& tokens : {std::vector<int>{321, 4095}, {321, 4095, 321}, {4095}}) {
    const auto json =
        nlohmann::ordered_json::parse(printed(tokens, FinishReason::kLength, Output::Form::kJson));
    CHECK(json["sequences"][0]["text"] == tokenizer().decode(tokens));
  }
}

TEST_CASE("log-probabilities and figures of the prompt are printed as JSON, a missing one as null") {
  Captured captured(stdout);
  Output output(tokenizer(), 4095, {{321}}, Output::Form::kJson);
  {
    Captured tables(stderr);  // which are for people
    output.echo(0, {{.id = 321, .logprobs = Logprobs()}}, std::nullopt);
    output.begin()({.id = 11, .logprobs = Logprobs{-0.5f, {{12, -0.25f}, {11, -0.5f}}}});
    CHECK(tables.text() == "");
  }
  output.finish(FinishReason::kLength);
  output.close(1000);
  const auto sequence = nlohmann::ordered_json::parse(captured.text())["sequences"][0];
  CHECK(sequence["perplexity"].is_null());
  CHECK(sequence["prompt_logprobs"].dump() ==
        R"([{"token_id":321,"text":"The","logprob":null,"top_logprobs":[]}])");
  CHECK(sequence["logprobs"].dump() ==
        R"([{"token_id":11,"text":",","logprob":-0.5,"top_logprobs":[)"
        R"({"token_id":12,"text":"-","logprob":-0.25},{"token_id":11,"text":",","logprob":-0.5}]}])");
}

TEST_CASE("candidates are printed with a bar each, and the chosen one is marked wherever it is") {
  const std::vector<Candidate> candidates = {{11, 0.75f}, {12, 0.2f}, {321, 17.0f / 320.0f}};
  const auto told = [&](Output::Form form, std::FILE* stream) {
    const Captured text(stdout), lines(stderr);
    Output output(tokenizer(), 4095, {{321}}, form);
    output.begin()({.id = 12, .candidates = candidates});
    output.finish(FinishReason::kLength);
    output.close(1000);
    return (stream == stdout ? text : lines).text();
  };
  CHECK(told(Output::Form::kText, stderr) ==
        "  \",\"               75.0 % ██████████████████████████████\n"
        "> \"-\"               20.0 % ████████\n"
        "  \"The\"              5.3 % ██▏\n\n");
  const auto json = nlohmann::ordered_json::parse(told(Output::Form::kJson, stdout))["sequences"][0];
  REQUIRE(json["candidates"].size() == 1);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const auto& one = json["candidates"][0][i];
    CHECK(one["token_id"] == candidates[i].token_id);
    CHECK(one["text"] == tokenizer().decode(std::span(&candidates[i].token_id, 1)));
    CHECK(one["probability"].get<float>() == candidates[i].probability);
  }
}

TEST_CASE("a text is printed in one piece if lines about its tokens would come between") {
  const Token plain{.id = 12};
  Token with_candidates = plain, with_logprobs = plain;
  with_candidates.candidates = {{12, 1.0f}};
  with_logprobs.logprobs = Logprobs{-0.5f, {}};
  for (const auto& [token, whole] :
       {std::pair(plain, false), {with_candidates, true}, {with_logprobs, true}}) {
    const Captured text(stdout), lines(stderr);
    Output output(tokenizer(), 4095, {{321}}, Output::Form::kText);
    const OnToken on_token = output.begin();
    on_token(token);
    on_token(token);
    CHECK(text.text() == (whole ? "" : "--"));
    output.finish(FinishReason::kLength);
    output.close(1000);
    CHECK(text.text() == "--\n");
  }
}

TEST_CASE("log-probabilities stand beside their token with four digits, and a missing one is a dash") {
  const Captured text(stdout), lines(stderr);
  Output output(tokenizer(), 4095, {{321}}, Output::Form::kText);
  const OnToken on_token = output.begin();
  on_token({.id = 11, .logprobs = Logprobs{-0.53125f, {{12, -0.15625f}, {11, -0.5f}}}});
  on_token({.id = 12, .logprobs = Logprobs{std::nullopt, {}}});
  output.finish(FinishReason::kLength);
  output.close(1000);
  CHECK(contains(
      lines.text(),
      "\",\"               -0.5312  |  \"-\" -0.1562  \",\" -0.5000\n\"-\"                     -\n"));
}

TEST_CASE("lines about tokens name their prompt or their text where there are several") {
  const Captured text(stdout), lines(stderr);
  Output output(tokenizer(), 4095, {{321}, {11}}, Output::Form::kText);
  const Token chosen{.id = 12, .logprobs = Logprobs{-0.5f, {}}};
  output.echo(0, {{.id = 321, .logprobs = Logprobs()}}, std::nullopt);
  output.echo(1, {{.id = 11, .logprobs = Logprobs()}}, std::nullopt);
  const OnRowToken on_token = output.begin_texts(2);
  on_token(1, chosen);
  on_token(0, {.id = 12, .candidates = {{12, 0.0f}}});
  output.finish(std::vector<Generation>(2), {});
  output.close(1000);
  CHECK(lines.text() ==
        "prompt 1: \"The\"                   -\nprompt 2: \",\"                     -\n"
        "[2] \"-\"               -0.5000\n[1]\n> \"-\"                0.0 % \n\n");
}

TEST_CASE("a prompt that is echoed is printed in front of its text") {
  Captured captured(stdout);
  Output output(tokenizer(), 4095, {{321}}, Output::Form::kText);
  output.echo(0, {{.id = 321, .logprobs = Logprobs()}}, std::nullopt);
  output.begin()({11});
  output.finish(FinishReason::kLength);
  output.close(1000);
  CHECK(captured.text() == "The,\n");
}

TEST_CASE("times are those at which tokens were chosen, not shown, and the score of a search is printed") {
  Captured captured(stdout);
  Output output(tokenizer(), 4095, {{321}}, Output::Form::kJson);
  const OnRowToken on_token = output.begin_texts(1);
  const Clock::time_point start = Clock::now();
  for (const int second : {1, 3, 5}) {
    Token token{11};
    token.time = start + std::chrono::seconds(second);
    on_token(0, token);
  }
  Generation generation;
  generation.score = -0.75;
  output.finish(std::vector<Generation>{generation}, {});
  output.close(1000);
  const auto json = nlohmann::ordered_json::parse(captured.text());
  CHECK(json["sequences"][0]["score"] == -0.75);
  CHECK(json["stats"]["ms_per_token"].get<double>() == doctest::Approx(2000.0));
  CHECK(json["stats"]["tokens_per_second"].get<double>() == doctest::Approx(0.5));
}

TEST_CASE(
    "of a batch the first token of any sequence ends the prefill, and the last of any ends the decoding") {
  Captured captured(stdout);
  Output output(tokenizer(), 4095, {{321}, {11}}, Output::Form::kJson);
  const OnRowToken on_token = output.begin_texts(3, 2);
  const Clock::time_point start = Clock::now();
  const auto choose = [&](int row, int second) {
    Token token{11};
    token.time = start + std::chrono::seconds(second);
    on_token(row, token);
  };
  // The first two begin together; the third waits for the end of the second.
  choose(0, 10);
  choose(1, 10);
  choose(1, 12);
  choose(2, 15);
  choose(0, 19);
  choose(2, 20);
  output.finish(std::vector<Generation>(3), {});
  CHECK(output.statistics().prefill_ms == doctest::Approx(10e3).epsilon(1e-3));
  CHECK(output.statistics().decode_ms == doctest::Approx(10e3));
  CHECK(output.statistics().decode_tokens == 3);
  CHECK(output.statistics().row_ms == doctest::Approx((9 + 2 + 5) * 1e3));
  CHECK(contains(to_string(output.statistics()), "prefill 10000"));
  CHECK(contains(to_string(output.statistics()), "ms (TTFT)"));
  // A second batch adds its own times; a sequence without a token has none. Their sum is not a TTFT.
  const OnRowToken on_second = output.begin_texts(2);
  Token token{11};
  token.time = Clock::now() + std::chrono::seconds(4);
  on_second(1, token);
  output.finish(std::vector<Generation>(2), {});
  CHECK(output.statistics().prefill_ms == doctest::Approx(14e3).epsilon(1e-3));
  CHECK(contains(to_string(output.statistics()), "ms (2 together)"));
  CHECK(output.statistics().decode_ms == doctest::Approx(10e3));
}

TEST_CASE("no token at all is an empty text") {
  CHECK(printed({}, FinishReason::kLength, Output::Form::kText) == "\n");
  const auto json = nlohmann::ordered_json::parse(printed({}, FinishReason::kLength, Output::Form::kJson));
  CHECK(json["sequences"][0]["token_ids"] == nlohmann::ordered_json::array());
  CHECK(json["stats"]["new_tokens"] == 0);
  CHECK(json["stats"]["ms_per_token"] == 0.0);
  CHECK(json["stats"]["tokens_per_second"] == 0.0);
}

TEST_CASE("the JSON object has the documented keys in their order and no other") {
  const std::string text = printed({321, 11}, FinishReason::kLength, Output::Form::kJson);
  CHECK(text.back() == '\n');
  CHECK(text.find('\n') == text.size() - 1);
  const auto json = nlohmann::ordered_json::parse(text);
  CHECK(keys(json) == std::vector<std::string>{"sequences", "stats"});
  REQUIRE(json["sequences"].size() == 1);
  CHECK(keys(json["sequences"][0]) ==
        std::vector<std::string>{"prompt_token_ids", "token_ids", "text", "finish_reason"});
  CHECK(keys(json["stats"]) == std::vector<std::string>{"prompt_tokens", "new_tokens", "prefill_ms",
                                                        "ms_per_token", "tokens_per_second", "weight_bytes",
                                                        "activation_bytes", "cache_bytes",
                                                        "cache_allocated_bytes", "cache_copied_bytes"});
  CHECK(json["sequences"][0]["prompt_token_ids"] == std::vector<int>{321});
  CHECK(json["sequences"][0]["finish_reason"] == "length");
  CHECK(json["stats"]["prompt_tokens"] == 1);
  CHECK(json["stats"]["new_tokens"] == 2);
  CHECK(json["stats"]["weight_bytes"] == 1000);
  CHECK(json["stats"]["activation_bytes"] == 500);
  CHECK(json["stats"]["cache_bytes"] == 20);
  CHECK(json["stats"]["cache_allocated_bytes"] == 300);
  CHECK(json["stats"]["cache_copied_bytes"] == 280);
}

TEST_CASE("each sequence of a run has its own entry") {
  std::string text;
  {
    Captured captured(stdout);
    Output output(tokenizer(), 4095, {{321}}, Output::Form::kJson);
    for (const int token : {11, 321}) {
      const OnToken on_token = output.begin();
      on_token({token});
      on_token({4095});
      output.finish(FinishReason::kEos, {token == 11 ? 7u : 5u, 10, 1});
    }
    output.close(0);
    text = captured.text();
  }
  const auto json = nlohmann::ordered_json::parse(text);
  REQUIRE(json["sequences"].size() == 2);
  CHECK(json["sequences"][0]["text"] == ",");
  CHECK(json["sequences"][1]["text"] == "The");
  CHECK(json["stats"]["new_tokens"] == 4);
  CHECK(json["stats"]["cache_bytes"] == 7);  // one cache after the other
  CHECK(json["stats"]["cache_allocated_bytes"] == 20);
  CHECK(json["stats"]["cache_copied_bytes"] == 2);
}

TEST_CASE("of sequences that grow together, the first is printed as it grows, and the others after it") {
  std::string while_growing, text;
  {
    Captured captured(stdout);
    Output output(tokenizer(), 4095, {{321}, {11}}, Output::Form::kText);
    const OnRowToken on_token = output.begin_texts(3, 2);
    for (const int row : {0, 1, 2, 0, 2}) on_token(row, {row == 1 ? 4095 : 321});
    while_growing = captured.text();
    std::vector<Generation> rows(3);
    rows[1].finish_reason = FinishReason::kEos;
    output.finish(rows, {});
    output.close(0);
    text = captured.text();
    CHECK(output.statistics().prompt_tokens == 2);
    CHECK(output.statistics().new_tokens == 5);
    CHECK(output.statistics().decode_tokens == 2);
  }
  CHECK(while_growing == "[1]\nTheThe");
  CHECK(text == "[1]\nTheThe\n\n[2]\n\n\n[3]\nTheThe\n");
}

TEST_CASE("each sequence of a batch has its own prompt in the JSON object") {
  std::string text;
  {
    Captured captured(stdout);
    Output output(tokenizer(), 4095, {{11, 12}, {321}}, Output::Form::kJson);
    const OnRowToken on_token = output.begin_texts(2);
    on_token(0, {5});
    on_token(1, {6});
    output.finish(std::vector<Generation>(2), {});
    output.close(0);
    text = captured.text();
  }
  const auto json = nlohmann::ordered_json::parse(text);
  CHECK(json["sequences"][0]["prompt_token_ids"] == std::vector<int>{11, 12});
  CHECK(json["sequences"][0]["token_ids"] == std::vector<int>{5});
  CHECK(json["sequences"][1]["prompt_token_ids"] == std::vector<int>{321});
}

TEST_CASE("the line of statistics has weights, activations and cache, and a cache's cost beyond its size") {
  Statistics statistics;
  statistics.weight_bytes = 24 << 20;
  statistics.activation_bytes = 1 << 19;
  statistics.cache = {3 << 20, 3 << 20, 0};
  CHECK(ends_with(to_string(statistics), "; weights 24.0 MiB, activations 0.5 MiB, cache 3.0 MiB"));
  statistics.cache = {3 << 20, 9 << 20, 6 << 20};
  CHECK(ends_with(to_string(statistics), "cache 3.0 MiB (9.0 MiB allocated, 6.0 MiB copied)"));
}

TEST_CASE("one token is a token, and several are tokens") {
  Statistics statistics;
  for (const auto& [prompt, fresh, words] :
       {std::tuple(1, 2, "1 prompt token, prefill 0.0 ms (0 together); 2 new tokens; "),
        {3, 1, "3 prompt tokens, prefill 0.0 ms (0 together); 1 new token; "},
        {0, 0, "0 prompt tokens; "}}) {
    statistics.prompt_tokens = prompt;
    statistics.new_tokens = fresh;
    CHECK(begins_with(to_string(statistics), words));
  }
}

TEST_CASE("the time per token is the mean over the tokens after the first of each sequence") {
  Statistics statistics;
  statistics.decode_ms = 30.0;
  statistics.row_ms = 60.0;  // of two that grew together
  statistics.decode_tokens = 6;
  CHECK(statistics.ms_per_token() == doctest::Approx(10.0));
  CHECK(statistics.tokens_per_second() == doctest::Approx(200.0));
  statistics.throughput = 150.0;
  CHECK(statistics.tokens_per_second() == 150.0);
  CHECK(contains(to_string(statistics), "10.00 ms per token (TPOT), 150.0 tokens/s"));
}

TEST_CASE("a full disk is an error") {
  if (!std::filesystem::exists("/dev/full")) return;
  for (const Output::Form form : {Output::Form::kText, Output::Form::kJson}) {
    std::string message;
    {
      Captured captured(stdout, "/dev/full");
      try {
        Output output(tokenizer(), 4095, {{321}}, form);
        output.begin()({321});
        output.close(0);
      } catch (const Error& error) {
        message = error.what();
      }
    }
    CHECK(begins_with(message, "standard output cannot be written"));
  }
}

}  // namespace
}  // namespace staircase
