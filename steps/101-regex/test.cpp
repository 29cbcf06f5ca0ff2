#include <doctest/doctest.h>

#include <random>
#include <regex>
#include <tuple>

#include "generate.h"
#include "regex.h"
#include "tests/error_message.h"
#include "tests/processors.h"
#include "tests/run_program.h"

using namespace staircase;

namespace {

bool matches(const Regex& regex, std::string_view text) {
  return regex.accepts(regex.after(regex.start(), text));
}

bool may_become_a_match(const Regex& regex, std::string_view text) {
  return !regex.after(regex.start(), text).empty();
}

std::vector<int> offered(const Regex& regex, std::span<const int> text) {
  std::vector<float> logits(tales_tokenizer().vocab_size(), 1.0f);
  keep_allowed(logits, text, regex, tales_tokenizer(), tales().config().end_tokens);
  std::vector<int> kept;
  for (int token = 0; token < std::ssize(logits); ++token)
    if (is_kept(logits[token])) kept.push_back(token);
  return kept;
}

/// The most likely tokens that the pattern allows after a prompt, and how many tokens it allows each time.
struct Greedy {
  std::vector<int> ids, offered;
};

Greedy greedy(const std::vector<int>& prompt, const std::string& pattern, int count) {
  Greedy result;
  RowOptions options{{.stopping = {.max_new_tokens = count}}};
  options.edit_raw_logits = [&, regex = Regex(pattern)](std::span<float> logits, std::span<const int> text) {
    keep_allowed(logits, text, regex, tales_tokenizer(), tales().config().end_tokens);
    result.offered.push_back(static_cast<int>(std::ranges::count_if(logits, is_kept)));
  };
  StaticKvCache cache(tales(), 1);
  generate(tales(), tales_tokenizer(), {prompt}, 1, options, 1, cache,
           [&](int, const Token& token) { result.ids.push_back(token.id); });
  return result;
}

ProgramRun run(const std::string& options) {
  return run_program(STAIRCASE_STEP_PROGRAM,
                     "--model tales-6m --device cpu --json --prompt 'The King' " + options);
}

}  // namespace

TEST_CASE("greedy texts of 50 patterns are those of Hugging Face transformers with the same tokens offered") {
  const auto& file = reference("regex.json");
  REQUIRE(file["cases"].size() == 50);
  for (const auto& one : file["cases"]) {
    const std::string pattern = one["pattern"];
    CAPTURE(pattern);
    const Greedy ours = greedy(one["prompt_ids"], pattern, file["max_new_tokens"]);
    const std::vector<int> ids = one["ids"];
    CHECK(first_difference(ours.ids, ids, one["gaps"]) == "");
    // In that reference, a set that excludes characters also has single bytes; ours has only valid UTF-8.
    const bool has_others = pattern.find("[^") != pattern.npos || pattern.find("\\S") != pattern.npos ||
                            std::regex_search(pattern, std::regex(R"((^|[^\\])\.)"));
    if (ours.ids == ids && !has_others) CHECK(ours.offered == one["allowed"].get<std::vector<int>>());
  }
}

TEST_CASE("an automaton knows after each byte what the list of all texts knows") {
  constexpr int kLongest = 5;
  using Texts = std::set<std::string>;
  /// A pattern with its texts of at most kLongest bytes, from the definition; `longest` of all of its texts.
  struct Listed {
    std::string pattern;
    Texts texts;
    int longest;
  };
  const auto followed = [](const Texts& fronts, const Texts& ends) {
    Texts both;
    for (const std::string& front : fronts) {
      for (const std::string& end : ends)
        if (std::ssize(front) + std::ssize(end) <= kLongest) both.insert(front + end);
    }
    return both;
  };
  std::mt19937 random(1);
  const std::function<Listed(int)> any = [&](int depth) -> Listed {
    static const std::vector<Listed> ends{
        {"a", {"a"}, 1}, {"b", {"b"}, 1}, {"", {""}, 0}, {"[ab]", {"a", "b"}, 1}, {"[bc]", {"b", "c"}, 1}};
    static const std::vector<std::tuple<std::string, int, int>> counts{
        {"*", 0, 99},    {"+", 1, 99},    {"?", 0, 1},    {"{2}", 2, 2},
        {"{1,2}", 1, 2}, {"{0,3}", 0, 3}, {"{2,}", 2, 99}};
    if (depth == 0) return ends[random() % ends.size()];
    auto [pattern, texts, longest] = any(depth - 1);
    if (const auto kind = random() % 5; kind < 4) {
      const Listed other = any(depth - 1);
      if (kind < 2)
        return {"(" + pattern + ")(" + other.pattern + ")", followed(texts, other.texts),
                longest + other.longest};
      texts.insert(other.texts.begin(), other.texts.end());
      return {"(" + pattern + "|" + other.pattern + ")", texts, std::max(longest, other.longest)};
    }
    const auto& [sign, least, most] = counts[random() % counts.size()];
    Texts sum, power{""};
    for (int times = 0; times <= std::min(most, 9); power = followed(power, texts), ++times)
      if (times >= least) sum.insert(power.begin(), power.end());
    return {"(" + pattern + ")" + sign, sum, longest * most};
  };
  std::vector<std::string> all{""};
  for (std::size_t i = 0; std::ssize(all[i]) < kLongest; ++i)
    for (const char c : {'a', 'b', 'c'}) all.push_back(all[i] + c);
  int whole = 0;
  for (int i = 0; i < 200; ++i) {
    const Listed listed = any(3);
    CAPTURE(listed.pattern);
    const Regex regex(listed.pattern);
    Texts fronts;
    for (const std::string& text : listed.texts)
      for (std::size_t size = 0; size <= text.size(); ++size) fronts.insert(text.substr(0, size));
    whole += listed.longest <= kLongest;
    for (const std::string& text : all) {
      if (matches(regex, text) != listed.texts.contains(text)) FAIL_CHECK(text);
      const bool is_alive = may_become_a_match(regex, text);
      // Longer texts are not listed, so their beginnings may be missing.
      if (fronts.contains(text) ? !is_alive : is_alive && listed.longest <= kLongest) FAIL_CHECK(text);
    }
  }
  CHECK(whole > 50);
}

TEST_CASE("characters are read byte by byte, and half a character may become a whole one") {
  const Regex regex("[à-ö]+…|日本");
  for (const std::string text : {"é…", "àö…", "日本"}) {
    CHECK(matches(regex, text));
    for (std::size_t size = 0; size < text.size(); ++size) {
      CHECK(may_become_a_match(regex, text.substr(0, size)));
      CHECK_FALSE(matches(regex, text.substr(0, size)));
    }
  }
  CHECK_FALSE(may_become_a_match(regex, "÷"));  // U+00F7, next to ö: the same first byte
  CHECK_FALSE(may_become_a_match(regex, "日日"));
  CHECK_FALSE(may_become_a_match(regex, "\xA9"));
}

TEST_CASE("the tokens offered are those with which a text of the pattern begins, in every state") {
  // All texts of the pattern are listed, so whether one begins with some bytes needs no automaton.
  const int end = tales().config().eos_token_id;
  std::set<std::string> times;
  for (int hour = 0; hour < 24; ++hour)
    for (int minute = 0; minute < 60; ++minute) times.insert(fmt::format(" {}:{:02} o'clock", hour, minute));
  const Regex regex(" ([0-9]|1[0-9]|2[0-3]):[0-5][0-9] o'clock");
  const auto begins_one = [&](const std::string& text) {
    const auto next = times.lower_bound(text);
    return next != times.end() && next->starts_with(text);
  };
  std::set<std::string> seen;
  const std::function<void(const std::vector<int>&, const std::string&)> check =
      [&](const std::vector<int>& text, const std::string& written) {
        if (!seen.insert(written).second) return;
        const std::vector<int> kept = offered(regex, text);
        std::vector<int> wanted;
        for (int token = 0; token < tales_tokenizer().vocab_size(); ++token) {
          const bool fits = token == end ? times.contains(written)
                                         : begins_one(written + std::string(tales_tokenizer().bytes(token)));
          if (fits) wanted.push_back(token);
        }
        CHECK(kept == wanted);
        for (const int token : kept) {
          if (token == end || seen.size() > 300) continue;
          std::vector<int> longer = text;
          longer.push_back(token);
          check(longer, written + std::string(tales_tokenizer().bytes(token)));
        }
      };
  check({}, "");
  CHECK(seen.size() > 300);
}

TEST_CASE("the probabilities are the model's own, shared by what is offered") {
  const std::vector<float> raw = raw_logits("model");
  std::vector<float> logits = raw;
  keep_allowed(logits, {}, Regex("[ ,a-m]+"), tales_tokenizer(), tales().config().end_tokens);
  const std::vector<double> all = exact_softmax(raw), kept = exact_softmax(logits);
  double share = 0.0;
  for (std::size_t i = 0; i < all.size(); ++i) share += kept[i] > 0 ? all[i] : 0.0;
  CHECK(share > 0.001);
  CHECK(share < 0.99);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (kept[i] > 0) CHECK(kept[i] == doctest::Approx(all[i] / share).epsilon(1e-9));
  }
}

TEST_CASE("where a count has a limit, the automaton is in few states") {
  const Regex regex("[a-z]{1,300}[0-9]{0,300}");
  for (const int length : {0, 1, 100, 300}) {
    const std::string text(length, 'a');
    CHECK(regex.after(regex.start(), text).size() <= 6);
    CHECK(may_become_a_match(regex, text));
    CHECK(matches(regex, text) == (length > 0));
  }
  CHECK_FALSE(may_become_a_match(regex, std::string(301, 'a')));
  CHECK(matches(regex, std::string(300, 'a') + std::string(300, '0')));
}

TEST_CASE("a pattern of the largest size is read in bounded time") {
  const Regex regex("(a?){1500}");
  CHECK(matches(regex, std::string(100, 'a')));
  CHECK_FALSE(may_become_a_match(regex, "b"));
}

TEST_CASE("drawn texts match, in a batch and with every option") {
  const std::string pattern = " [A-Z][a-z]{2,8} (said|went) \"[a-z ]{1,12}\"";
  const std::string options =
      "--regex '" + pattern + "' --max-new-tokens 60 --num-return-sequences 12 --do-sample --seed 5";
  for (const std::string more : {" --temperature 2", " --top-p 0.8", " --top-k 3", " --no-use-cache",
                                 " --repetition-penalty 1.5 --presence-penalty 1 --logprobs 2"}) {
    CAPTURE(more);
    const ProgramRun ran = run(options + more);
    REQUIRE(ran.status == 0);
    const nlohmann::json result = ran.json();
    for (const auto& sequence : result["sequences"]) {
      const std::string text = sequence["text"];
      CHECK(sequence["finish_reason"] == "eos");
      CHECK_MESSAGE(std::regex_match(text, std::regex(pattern)), text);
    }
  }
}

TEST_CASE("nothing matches but the empty text, and the text ends at once") {
  const nlohmann::json sequence = run("--regex '()'").json()["sequences"][0];
  CHECK(sequence["text"] == "");
  CHECK(sequence["finish_reason"] == "eos");
}

TEST_CASE("a pattern that cannot be read is refused before any work") {
  const std::string options = "--model /nonexistent --regex ";
  for (const std::string wrong :
       {"'('", "'[z-a]'", "'a**'", "'^a'", "'\\b'", "'(?=a)'", "'(a{1000}){1000}'", "'(((((((((('"}) {
    CAPTURE(wrong);
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, options + wrong);
    CHECK(refused.status == 2);
    CHECK(begins_with(refused.err, "error: the regular expression cannot be read "));
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, options + "'(a|b)*'").status == 1);  // there is no such model
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, options + "''").err ==
        "error: --regex is empty, but it must have at least one character\n");
}

TEST_CASE("options that move the end of a text are refused") {
  for (const std::string other : {"--ignore-eos", "--min-new-tokens 1"}) {
    const ProgramRun refused = run("--regex a " + other);
    CHECK(refused.status == 2);
    CHECK(refused.err ==
          "error: --regex decides where a text ends, so leave out --ignore-eos and --min-new-tokens\n");
  }
}
