#include "common/program/requests.h"

#include <doctest/doctest.h>

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

Values read(std::string_view text) {
  Values values;
  RequestLine line(text);
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

TEST_CASE("a line sets what it has a key for, and nothing else") {
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
  CHECK(set.count == -2147483647 - 1);
  CHECK(set.seed == 4294967295u);
  CHECK(set.share == -1000.0f);
  CHECK(set.top_k == -3);
  CHECK(set.most == 1.0f);
  CHECK(set.words == std::vector<std::string>{"x", ""});
  CHECK(set.animal == Animal::kFox);

  const Values none = read(R"({"prompt": "", "top_k": null, "most": null, "words": "one"})");
  CHECK(!none.top_k);
  CHECK(!none.most);
  CHECK(none.words == std::vector<std::string>{"one"});
}

TEST_CASE("a line that is no request is an error of one sentence that names the fault") {
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
  refused(R"({"prompt": null})", "prompt is null, but it must be a text");
  refused("{\"prompt\": \"\xff\"}", "not valid JSON");
  const auto with = [&](const std::string& rest, const std::string& part) {
    refused(R"({"prompt": "a", )" + rest + "}", part);
  };
  with(R"("tokens": 5)", "the key \"tokens\", which is none of prompt, arrival, flag, count");
  with(R"("Count": 5)", "the key \"Count\"");
  for (const char* wrong :
       {"-1", "-1e-9", "86400.5", "1e308", "1760000000", "null", "\"0\"", "[0]", "true"}) {
    with(std::string(R"("arrival": )") + wrong, "arrival is ");
  }
  with(R"("arrival": NaN)", "not valid JSON");
  with(R"("share": Infinity)", "not valid JSON");
  with(R"("share": 1e999)", "not valid JSON");
  for (const char* wrong : {"1e39", "-1e300", "\"1\"", "null", "false", "{}"}) {
    with(std::string(R"("share": )") + wrong, "share is ");
  }
  for (const char* wrong : {"2147483648", "-2147483649", "1.0", "1e3", "18446744073709551615", "1e30",
                            "-99999999999999999999999", "\"7\"", "null", "true", "[7]"}) {
    with(std::string(R"("count": )") + wrong, "count is ");
    if (std::string(wrong) != "null") with(std::string(R"("top_k": )") + wrong, "top_k is ");
  }
  for (const char* wrong : {"-1", "4294967296", "0.5"}) with(std::string(R"("seed": )") + wrong, "seed is ");
  for (const char* wrong : {"0", "\"true\"", "null"}) with(std::string(R"("flag": )") + wrong, "flag is ");
  for (const char* wrong : {"0", "[1]", "[\"a\", null]", "{\"a\": \"b\"}", "null"}) {
    with(std::string(R"("words": )") + wrong, "words is ");
  }
  for (const char* wrong : {"0", "\"Fox\"", "\"\"", "null", "[\"fox\"]"}) {
    with(std::string(R"("animal": )") + wrong, "but it must be one of fox, crow");
  }
}

TEST_CASE("a value outside of its range is refused with the key, the value and the range") {
  const auto said = [](const std::string& rest) {
    return error_message([&] { read(R"({"prompt": "a", )" + rest + "}"); });
  };
  CHECK(said(R"("top_k": 31)") == "top_k is 31, but it must be between -3 and 30");
  CHECK(said(R"("share": -2e30)") == "share is -2e+30, but it must be a number of -1e+30 or more");
  CHECK(said(R"("top_k": null)") == "");
  std::vector<std::string> words;
  RequestLine line(R"({"prompt": "a", "words": ["b", ""]})");
  CHECK(error_message([&] { line.add("--words", &words, "help", at_least(1)); }) ==
        "words is empty, but it must have at least one character");
}

TEST_CASE("an option that is about the whole program cannot be one of a request") {
  RequestLine line(R"({"prompt": "a"})");
  std::string file;
  std::vector<int> lengths;
  std::optional<int> number;
  CHECK_THROWS_AS(line.add("--file", Path{&file}, "help"), std::logic_error);
  CHECK_THROWS_AS(line.add("--lengths", &lengths, "help"), std::logic_error);
  CHECK_THROWS_AS(line.add("--number", NumberOrAuto{&number}, "help"), std::logic_error);
}

}  // namespace
}  // namespace staircase
