#include "common/program/requests.h"

#include <doctest/doctest.h>

#include "common/model/model_folder.h"
#include "common/program/inputs.h"
#include "tests/captured.h"
#include "tests/error_message.h"

namespace staircase {
namespace {

enum class Animal { kFox, kCrow };

/// Every kind of option that a request can have.
struct Values {
  bool flag = false;
  int count = 7;
  unsigned seed = 8;
  float share = 0.5f;
  std::optional<int> top_k = 9;
  std::optional<float> most = 0.25f;
  std::vector<std::string> words{"kept"};
  Animal animal = Animal::kCrow;
  double arrival = -1.0;
  std::string prompt;
};

RequestLine line_of(std::string_view text) {
  static const Tokenizer tokenizer = Tokenizer::load(find_model("tales-1m"));
  return {text, tokenizer, {.vocab_size = 4096, .n_positions = 512, .eos_token_id = 4095}};
}

Values read(std::string_view text) {
  Values values;
  RequestLine line = line_of(text);
  values.arrival = line.arrival();
  line.add("--flag", &values.flag, "help");
  line.add("--count", &values.count, "help");
  line.add("--seed", &values.seed, "help");
  line.add("--share", &values.share, "help", at_least(-1e30));
  line.add("--top-k", &values.top_k, "help", between(-3, 30));
  line.add("--most", &values.most, "help");
  line.add("--words", &values.words, "help");
  line.add("--animal", one_of(&values.animal, {{"fox", Animal::kFox}, {"crow", Animal::kCrow}}), "help");
  line.end();
  values.prompt = line.prompt();
  return values;
}

TEST_CASE("a line keeps the rules between its options, and those of the model") {
  const auto refusal = [](std::string_view text) {
    return error_message([&] {
      int apples = 1, pears = 1;
      RequestLine line = line_of(text);
      line.add("--apples", &apples, "help");
      line.add("--pears", &pears, "help");
      line.refuse_if([&] { return apples > pears; }, "too few pears");
      line.model_rule([&](const ModelConfig& config) {
        if (pears > config.n_positions) throw UsageError("more than {} pears", config.n_positions);
      });
      line.end();
    });
  };
  CHECK(refusal(R"({"prompt": ""})") == "");
  CHECK(refusal(R"({"prompt": "", "apples": 2})") == "too few pears");
  CHECK(refusal(R"({"prompt": "", "apples": 2, "pears": 2})") == "");
  CHECK(refusal(R"({"prompt": "", "pears": 512})") == "");
  CHECK(refusal(R"({"prompt": "", "pears": 513})") == "more than 512 pears");
}

TEST_CASE("a line sets the options that it has keys for, and no others") {
  const Values kept = read(R"({"prompt": "a\u0000 \"b\" ü"})");
  CHECK(kept.prompt == std::string("a\0 \"b\" ü", 9));
  CHECK(kept.arrival == 0.0);
  CHECK(!kept.flag);
  CHECK(kept.count == 7);
  CHECK(kept.seed == 8);
  CHECK(kept.share == 0.5f);
  CHECK(kept.top_k == 9);
  CHECK(kept.most == 0.25f);
  CHECK(kept.words == std::vector<std::string>{"kept"});
  CHECK(kept.animal == Animal::kCrow);

  const Values set = read(R"( {"words": ["x", ""], "most": 1, "top_k": -3, "share": -1e3, "seed": 4294967295,
                              "count": -2147483648, "flag": true, "animal": "fox", "arrival": 1.5, "prompt": ""} )");
  CHECK(set.prompt == "");
  CHECK(set.arrival == 1.5);
  CHECK(set.flag);
  CHECK(!read(R"({"prompt": "", "flag": false})").flag);
  CHECK(set.count == -2147483647 - 1);
  CHECK(set.seed == 4294967295u);
  CHECK(set.share == -1000.0f);
  CHECK(set.top_k == -3);
  CHECK(set.most == 1.0f);
  CHECK(set.words == std::vector<std::string>{"x", ""});
  CHECK(set.animal == Animal::kFox);

  CHECK(read(R"({"prompt": "", "words": "one"})").words == std::vector<std::string>{"one"});
  CHECK(read(R"({"prompt": "", "arrival": 86400})").arrival == 86400.0);
  CHECK(read(R"({"prompt": "", "arrival": 0})").arrival == 0.0);
}

TEST_CASE("a line that is not a request is an error of one sentence that names the fault") {
  const auto refused = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    const std::string message = error_message([&] { read(text); });
    CAPTURE(message);
    CHECK(says(message, part));
  };
  refused("", "not valid JSON");
  refused("{", "not valid JSON");
  refused("[]", "the line holds an array, not a JSON object");
  refused("\"prompt\"", "not a JSON object");
  refused("{} {}", "not valid JSON");
  refused("{}", "the line has no prompt");
  refused(R"({"prompt": "a", "prompt": "b"})", "the key \"prompt\" twice");
  refused(R"({"prompt": 3})", "prompt is 3, but it must be a text");
  refused(R"({"prompt": null})", "the line has no prompt");
  refused("{\"prompt\": \"\xff\"}", "not valid JSON");
  const auto with = [&](const std::string& rest, const std::string& part) {
    refused(R"({"prompt": "a", )" + rest + "}", part);
  };
  with(R"("tokens": 5)", "unknown key \"tokens\"; known keys: prompt, arrival, flag, count");
  with(R"("Count": 5)", "unknown key \"Count\"");
  for (const char* wrong : {"-1", "-1e-9", "86400.001", "1e308", "1760000000", "\"0\"", "[0]", "true"}) {
    with(std::string(R"("arrival": )") + wrong, "arrival is ");
  }
  with(R"("arrival": NaN)", "not valid JSON");
  with(R"("share": Infinity)", "not valid JSON");
  with(R"("share": 1e999)", "not valid JSON");
  for (const char* wrong : {"1e39", "-1e300", "\"1\"", "false", "{}"}) {
    with(std::string(R"("share": )") + wrong, "share is ");
  }
  for (const char* wrong : {"2147483648", "-2147483649", "1.5", "1e10", "18446744073709551615", "1e30",
                            "1e300", "-99999999999999999999999", "\"7\"", "true", "[7]"}) {
    with(std::string(R"("count": )") + wrong, "count is ");
    with(std::string(R"("top_k": )") + wrong, "top_k is ");
  }
  for (const char* wrong : {"-1", "4294967296", "0.5", "1e300", "-1e300", "9007199254740993.0"}) {
    with(std::string(R"("seed": )") + wrong, "seed is ");
  }
  for (const char* wrong : {"0", "\"true\""}) with(std::string(R"("flag": )") + wrong, "flag is ");
  for (const char* wrong : {"0", "[1]", "[\"a\", null]", "{\"a\": \"b\"}"}) {
    with(std::string(R"("words": )") + wrong, "words is ");
  }
  for (const char* wrong : {"0", "\"Fox\"", "\"\"", "[\"fox\"]"}) {
    with(std::string(R"("animal": )") + wrong, "but it must be one of fox, crow");
  }
}

TEST_CASE("a value outside its range is refused with the key, the value and the range") {
  const auto said = [](const std::string& rest) {
    return error_message([&] { read(R"({"prompt": "a", )" + rest + "}"); });
  };
  CHECK(said(R"("top_k": 31)") == "top_k is 31, but it must be between -3 and 30");
  CHECK(said(R"("share": -2e30)") == "share is -2e+30, but it must be a number of -1e+30 or more");
  // What the type cannot hold is not in the range either, and a range without an end ends with the type.
  CHECK(said(R"("top_k": 1e300)") == "top_k is 1e+300, but it must be a whole number between -3 and 30");
  CHECK(said(R"("top_k": "x")") == "top_k is \"x\", but it must be a whole number between -3 and 30");
  CHECK(said(R"("seed": 4294967296)") ==
        "seed is 4294967296, but it must be a whole number between 0 and 4294967295");
  CHECK(said(R"("share": 1e39)") == "share is 1e+39, but it must be a number between -1e+30 and 3.4e+38");
  CHECK(said(R"("share": true)") == "share is true, but it must be a number of -1e+30 or more");
  std::vector<std::string> words;
  RequestLine line = line_of(R"({"prompt": "a", "words": ["b", ""]})");
  CHECK(error_message([&] { line.add("--words", &words, "help", at_least(1)); }) ==
        "words is empty, but it must have at least one character");
}

TEST_CASE("a key whose value is null counts as missing") {
  const Values values = read(R"({"prompt": "a", "arrival": null, "flag": null, "count": null, "seed": null,
                                 "share": null, "top_k": null, "most": null, "words": null, "animal": null,
                                 "no_key_at_all": null})");
  CHECK(values.arrival == 0.0);
  CHECK(!values.flag);
  CHECK(values.count == 7);
  CHECK(values.seed == 8);
  CHECK(values.share == 0.5f);
  CHECK(values.top_k == 9);
  CHECK(values.most == 0.25f);
  CHECK(values.words == std::vector<std::string>{"kept"});
  CHECK(values.animal == Animal::kCrow);

  int count = 7;
  RequestLine line = line_of(R"({"prompt": "a", "count": null})");
  line.add("--count", &count, "help");
  CHECK(line.options().empty());  // nor is it one of the line's own options
}

TEST_CASE("a number without a fraction is a whole number, however it is written") {
  const Values values = read(R"({"prompt": "a", "count": 2.0, "seed": 1e3, "top_k": -3.0, "share": 1})");
  CHECK(values.count == 2);
  CHECK(values.seed == 1000);
  CHECK(values.top_k == -3);
  CHECK(values.share == 1.0f);
}

TEST_CASE("a line has the tokens of its prompt: the end-of-text token for an empty one") {
  CHECK(line_of(R"({"prompt": "The wolf"})").tokens().size() == 2);
  CHECK(line_of(R"({"prompt": ""})").tokens() ==
        std::vector<int>{line_of(R"({"prompt": ""})").config().eos_token_id});
  CHECK(line_of(R"({"prompt": ""})").config().n_positions == 512);
}

TEST_CASE("a warning names a prompt that is longer than the context, and none that just fits") {
  const auto said = [](const Prompts& prompts) {
    const Captured lines(stderr);
    warn_of_long_prompts(prompts, 3);
    return lines.text();
  };
  CHECK(said({{1, 2, 3}}) == "");
  CHECK(said({{1, 2, 3, 4}}) ==
        "warning: the prompt has 4 tokens, and the model sees only the last 3 of them\n");
}

TEST_CASE("an option that is about the whole program cannot be one of a request") {
  RequestLine line = line_of(R"({"prompt": "a"})");
  std::string file;
  std::vector<int> lengths;
  std::optional<int> number;
  CHECK_THROWS_AS(line.add("--file", Path{&file}, "help"), std::logic_error);
  CHECK_THROWS_AS(line.add("--lengths", &lengths, "help"), std::logic_error);
  CHECK_THROWS_AS(line.add("--number", NumberOrAuto{&number}, "help"), std::logic_error);
}

TEST_CASE("a text fits with one token more than there are positions, and any prompt if nothing follows it") {
  const auto refusal = [](std::size_t prompt, int more) {
    return error_message([&] { check_fits(prompt, more, 64); });
  };
  CHECK(refusal(60, 5) == "");
  CHECK(refusal(60, 6) == "a prompt of 60 tokens and 6 new ones do not fit into 64 positions");
  CHECK(refusal(64, 1) == "");
  CHECK(says(refusal(65, 1), "65 tokens and 1 new"));
  CHECK(refusal(65, 0) == "");
  CHECK(refusal(1000, 0) == "");
}

TEST_CASE("the options of a line are kept as a person would type them") {
  Values values;
  RequestLine line =
      line_of(R"({"prompt": "a", "words": ["x", "y z"], "count": 5, "flag": true, "animal": "fox"})");
  line.add("--words", &values.words, "help");
  line.add("--count", &values.count, "help");
  line.add("--flag", &values.flag, "help");
  line.add("--animal", one_of(&values.animal, {{"fox", Animal::kFox}, {"crow", Animal::kCrow}}), "help");
  const OptionTexts wanted{{"--words", "x,y z"}, {"--count", "5"}, {"--flag", "true"}, {"--animal", "fox"}};
  CHECK(line.options() == wanted);
}

}  // namespace
}  // namespace staircase
