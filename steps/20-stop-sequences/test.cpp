#include <doctest/doctest.h>

#include "speculative.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  return tokenizer;
}

struct Shown {
  std::string text;
  Generation generation;
};

std::string shown(const Token& token) {
  return token.text.value_or(std::string(tokenizer().bytes(token.id)));
}

std::vector<Shown> continued(const std::vector<std::vector<int>>& prompts, const GenerateOptions& options) {
  std::vector<Shown> results(prompts.size());
  StaticKvCache cache(tales(), static_cast<int>(prompts.size()));
  const auto texts = generate(tales(), prompts, options, &cache,
                              [&](int row, const Token& token) { results[row].text += shown(token); });
  for (std::size_t row = 0; row < texts.size(); ++row) results[row].generation = texts[row];
  return results;
}

/// What is to be seen of a text that comes in pieces: all of it up to the first stop sequence that is
/// complete.
std::string expected(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  std::string text;
  for (const std::string& piece : pieces) {
    text += piece;
    std::size_t cut = text.npos;
    for (const std::string& stop : stops) cut = std::min(cut, text.find(stop));
    if (cut != text.npos) return text.substr(0, cut);
  }
  return text;
}

const std::vector<int> kPrompt{321, 1682};

}  // namespace

TEST_CASE("no part of a stop sequence is ever shown, wherever the tokens begin and end") {
  // Texts of a and b, in tokens of one letter, with every kind of overlap.
  const int a = tokenizer().encode("a")[0], b = tokenizer().encode("b")[0], ab = tokenizer().encode("ab")[0];
  REQUIRE(tokenizer().bytes(a) == "a");
  std::mt19937 generator(1);
  for (int round = 0; round < 3000; ++round) {
    StopOptions options{{}, &tokenizer()};
    for (unsigned i = 0; i <= generator() % 3; ++i) {
      std::string stop;
      for (unsigned length = 1 + generator() % 5; length > 0; --length)
        stop += generator() % 2 == 0 ? 'a' : 'b';
      options.sequences.push_back(stop);
    }
    StopFilter filter(options);
    std::vector<std::string> pieces;
    std::string text;
    for (int i = 0; i < 12 && !filter.found(); ++i) {
      const int token = std::vector<int>{a, b, ab}[generator() % 3];
      pieces.emplace_back(tokenizer().bytes(token));
      text += *filter.push(token);
      const std::string want = expected(pieces, options.sequences);
      CHECK(want.starts_with(text));
    }
    const std::string want = expected(pieces, options.sequences);
    text += filter.rest();
    CHECK(text == want);
  }
}

TEST_CASE("a stop sequence ends the text before its first character, across the borders of tokens") {
  const GenerateOptions plain{.max_new_tokens = 30};
  const std::string text = continued({kPrompt}, plain)[0].text;
  REQUIRE(text.size() > 40);
  for (const std::size_t first : {std::size_t{1}, std::size_t{10}, text.size() - 9}) {
    for (const std::size_t length : {1u, 3u, 8u}) {
      GenerateOptions options = plain;
      options.stop = {{"never", text.substr(first, length)}, &tokenizer()};
      const Shown got = continued({kPrompt}, options)[0];
      CHECK(got.generation.finish_reason == FinishReason::kStop);
      CHECK(got.text == text.substr(0, text.find(options.stop.sequences[1])));
    }
  }
}

TEST_CASE("a stop sequence that never comes changes nothing") {
  for (const int count : {1, 2, 17, 64}) {
    GenerateOptions options{.max_new_tokens = count};
    const Shown plain = continued({kPrompt}, options)[0];
    // Its beginning is everywhere: what was held back must come out at the end.
    options.stop = {{"e Q", " zz", plain.text.substr(plain.text.size() - 1) + "Q"}, &tokenizer()};
    const Shown got = continued({kPrompt}, options)[0];
    CHECK(got.text == plain.text);
    CHECK(got.generation.tokens == plain.generation.tokens);
    CHECK(got.generation.finish_reason == plain.generation.finish_reason);
  }
}

TEST_CASE("each row of a batch stops for itself") {
  GenerateOptions options{.max_new_tokens = 30};
  const std::vector<std::vector<int>> prompts{kPrompt, {1294, 259}, {4095}};
  const std::vector<Shown> plain = continued(prompts, options);
  options.stop = {{plain[1].text.substr(12, 4)}, &tokenizer()};
  const std::vector<Shown> got = continued(prompts, options);
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    CHECK(got[row].text == plain[row].text.substr(0, plain[row].text.find(options.stop.sequences[0])));
  }
  CHECK(got[1].generation.finish_reason == FinishReason::kStop);
}

TEST_CASE("the end of text cannot come before the least number of tokens") {
  // "ending" of the reference stops early.
  const auto& run = reference("batch.json")["cases"].back();
  const std::vector<int> prompt = run["prompt_ids"], ids = run["ids"];
  REQUIRE(run["finish"] == "eos");
  const int length = static_cast<int>(ids.size());
  for (const int least : {0, length, length + 5}) {
    const Generation got =
        continued({prompt}, {.max_new_tokens = length + 20, .min_new_tokens = least})[0].generation;
    const std::vector<int> tokens = behind(prompt.size(), got.tokens);
    const auto end = std::find(tokens.begin(), tokens.end(), tales().config().eos_token_id);
    CHECK(end - tokens.begin() >= least);
    if (least == 0) CHECK(tokens == ids);
  }
}

TEST_CASE("a text that ends by itself shows what was held back, and not the end-of-text token") {
  const std::vector<int> prompt = reference("batch.json")["cases"].back()["prompt_ids"];
  GenerateOptions options{.max_new_tokens = 64};
  const Generation plain = continued({prompt}, options)[0].generation;
  REQUIRE(plain.finish_reason == FinishReason::kEos);
  std::string text;
  for (std::size_t i = prompt.size(); i + 1 < plain.tokens.size(); ++i)
    text += tokenizer().bytes(plain.tokens[i]);
  for (const std::string& stop : {std::string("never"), text.substr(text.size() - 3) + "Q"}) {
    options.stop = {{stop}, &tokenizer()};
    const Shown got = continued({prompt}, options)[0];
    CHECK(got.text == text);
    CHECK(got.generation.finish_reason == FinishReason::kEos);
  }
}

TEST_CASE("speculation keeps the least number of tokens, and so does the target when it goes on alone") {
  const auto& run = reference("batch.json")["cases"].back();
  const std::vector<int> prompt = run["prompt_ids"];
  const int length = static_cast<int>(run["ids"].size()), prompt_length = static_cast<int>(prompt.size());
  // Of all contexts of the draft, the last lasts to the end.
  for (const int context : {prompt_length, prompt_length + 2, prompt_length + length + 30}) {
    const TemporaryFolder folder;
    TinyModel(1, tales().config().vocab_size, context).write(folder.path());
    Gpt2 draft = tales().load_beside(folder.path());
    for (const int least : {0, length - 1, length, length + 5}) {
      const GenerateOptions options{.max_new_tokens = length + 20, .min_new_tokens = least};
      CAPTURE(context);
      CAPTURE(least);
      Speculation speculation;
      const Generation got = speculate(tales(), draft, prompt, options, speculation, [](const Token&) {});
      const Generation want = continued({prompt}, options)[0].generation;
      CHECK(got.tokens == want.tokens);
      CHECK(got.finish_reason == want.finish_reason);
    }
  }
}

TEST_CASE("speculation stops where plain decoding stops") {
  Gpt2 draft = tales().load_beside(find_model("tales-1m"));
  GenerateOptions options{.max_new_tokens = 40};
  const std::string text = continued({kPrompt}, options)[0].text;
  options.stop = {{text.substr(60, 5)}, &tokenizer()};
  options.min_new_tokens = 3;
  const Shown plain = continued({kPrompt}, options)[0];
  for (const int gamma : {1, 4, 9}) {
    options.num_speculative_tokens = gamma;
    Speculation speculation;
    Shown got;
    got.generation = speculate(tales(), draft, kPrompt, options, speculation,
                               [&](const Token& token) { got.text += shown(token); });
    CHECK(got.text == plain.text);
    CHECK(got.generation.tokens == plain.generation.tokens);
    CHECK(got.generation.finish_reason == FinishReason::kStop);
  }
}

TEST_CASE("speculation that goes on beyond the draft's end looks on for what it held back") {
  std::vector<int> prompt;
  const auto& run = reference("sliding.json");
  prompt = run["prompt_ids"].get<std::vector<int>>();
  const std::vector<int> ids = run["ids"];
  prompt.insert(prompt.end(), ids.begin(), ids.end());
  prompt.resize(508);
  GenerateOptions options{.max_new_tokens = 10, .ignore_eos = true};
  Gpt2 draft = tales().load_beside(find_model("tales-1m"));
  const auto speculated = [&] {
    Speculation speculation;
    std::string text;
    speculate(tales(), draft, prompt, options, speculation,
              [&](const Token& token) { text += shown(token); });
    return text;
  };
  const std::string text = speculated();
  for (std::size_t first = 0; first + 6 < text.size(); first += 3) {
    options.stop = {{text.substr(first, 6)}, &tokenizer()};
    CHECK(speculated() == text.substr(0, text.find(options.stop.sequences[0])));
  }
}

TEST_CASE("the program says why a text ended, and prints nothing of the stop sequence") {
  const ProgramRun all = run_program(STAIRCASE_STEP_PROGRAM, "--prompt The --max-new-tokens 30");
  const std::string text = all.out.substr(0, all.out.size() - 1);
  const std::string stop = text.substr(20, 6);
  const std::string arguments = "--prompt The --max-new-tokens 30 --stop Q --stop '" + stop + "'";
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, arguments).out == text.substr(0, text.find(stop)) + "\n");
  // The least number of tokens is no matter of stop sequences, and the help says so.
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, arguments + " --min-new-tokens 30").out ==
        text.substr(0, text.find(stop)) + "\n");
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--help").out.find("before the end-of-text token may come") !=
        std::string::npos);
  const auto json = nlohmann::json::parse(run_program(STAIRCASE_STEP_PROGRAM, arguments + " --json").out);
  CHECK(json["sequences"][0]["finish_reason"] == "stop");
  CHECK(json["sequences"][0]["text"] == text.substr(0, text.find(stop)));
  for (const char* wrong : {"--stop ''", "--stop", "--min-new-tokens -1", "--min-new-tokens 101"}) {
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, wrong).status == 2);
  }
}
