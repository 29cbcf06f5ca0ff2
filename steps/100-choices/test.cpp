#include <doctest/doctest.h>

#include <fstream>

#include "choices.h"
#include "generate.h"
#include "tests/error_message.h"
#include "tests/processors.h"
#include "tests/run_program.h"

using namespace staircase;

namespace {

std::string written(std::span<const int> tokens) {
  std::string text;
  for (const int token : tokens) text += tales_tokenizer().bytes(token);
  return text;
}

/// The ids that keep_allowed keeps after `text`, with the end-of-text token last.
std::vector<int> offered(const std::vector<std::string>& choices, std::span<const int> text) {
  std::vector<float> logits(tales_tokenizer().vocab_size(), 1.0f);
  keep_allowed(logits, text, Choices(choices), tales_tokenizer(), tales().config().end_tokens);
  std::vector<int> kept;
  for (int token = 0; token < std::ssize(logits); ++token)
    if (is_kept(logits[token])) kept.push_back(token);
  return kept;
}

/// By definition: each token after which the text begins a choice, and the end if the text is a choice.
std::vector<int> naive(const std::vector<std::string>& choices, std::span<const int> text) {
  const int end = tales().config().eos_token_id;
  std::vector<int> kept;
  for (int token = 0; token < tales_tokenizer().vocab_size(); ++token) {
    const std::string longer = written(text) + std::string(tales_tokenizer().bytes(token));
    const bool goes_on =
        token != end && longer.size() > written(text).size() &&
        std::ranges::any_of(choices, [&](const auto& one) { return one.starts_with(longer); });
    if (goes_on || (token == end && std::ranges::count(choices, written(text)) > 0)) kept.push_back(token);
  }
  return kept;
}

/// The masks after all texts of offered tokens equal the definition's; returns how many texts there are.
int check_all_masks(const std::vector<std::string>& choices, const std::vector<int>& text = {}) {
  const std::vector<int> tokens = offered(choices, text);
  CHECK(tokens == naive(choices, text));
  int count = 1;
  for (const int token : tokens) {
    if (token == tales().config().eos_token_id) continue;
    std::vector<int> longer = text;
    longer.push_back(token);
    count += check_all_masks(choices, longer);
  }
  return count;
}

ProgramRun run(const std::string& options) {
  return run_program(STAIRCASE_STEP_PROGRAM,
                     "--model tales-6m --device cpu --json --prompt 'The animal was a' " + options);
}

}  // namespace

TEST_CASE("after every text, the tokens offered are those with which it begins a choice") {
  CHECK(check_all_masks({" fox"}) > 4);
  CHECK(check_all_masks({" fox", " lion", " foxes", "f"}) > 10);
  CHECK(check_all_masks({"no", "not", "nothing", "no"}) > 5);
  CHECK(check_all_masks({"é!", "è"}) == 5);  // "", half of both, é, é!, è
  CHECK(check_all_masks({"", "a"}) == 2);
  CHECK(check_all_masks({"\n"}) == 2);
}

TEST_CASE("a text ends where it is a choice, and may go on if a longer one begins so") {
  const int end = tales().config().eos_token_id;
  const std::vector<int> no = tales_tokenizer().encode("no");
  CHECK(std::ranges::count(offered({"no", "not"}, no), end) == 1);
  CHECK(offered({"no", "not"}, no).size() > 1);
  CHECK(offered({"no"}, no) == std::vector{end});
  CHECK(std::ranges::count(offered({"not"}, no), end) == 0);
  CHECK(offered({""}, {}) == std::vector{end});
}

TEST_CASE("a marker's name is no text, and a token without bytes leads nowhere") {
  const int end = tales().config().eos_token_id;
  CHECK(tales_tokenizer().bytes(end) == "<|endoftext|>");
  const std::vector<int> first = offered({"<|endoftext|>"}, {});
  CHECK(std::ranges::count(first, end) == 0);
  CHECK_FALSE(first.empty());

  // With one more marker, and ids that only the model has.
  const TemporaryFolder folder;
  for (const std::string file : {"vocab.json", "merges.txt"})
    std::filesystem::copy(find_model("tales-6m") / file, folder.path());
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder":
                   {"4096": {"content": "<|note|>", "special": true}}})");
  Tokenizer tokenizer = Tokenizer::load(folder.path());
  tokenizer.extend(4100);
  REQUIRE(tokenizer.bytes(4096) == "<|note|>");
  REQUIRE(tokenizer.bytes(4099).empty());
  std::vector<float> logits(4100);
  keep_allowed(logits, {}, Choices({"<|note|>", ""}), tokenizer, {end});
  CHECK(is_kept(logits[tokenizer.encode("<")[0]]));
  CHECK(is_kept(logits[end]));
  for (int token = 4096; token < 4100; ++token) CHECK_FALSE(is_kept(logits[token]));
}

TEST_CASE("what is offered keeps its logit, so the choices share the model's own probabilities") {
  std::vector<float> logits = raw_logits("model");
  const std::vector<float> raw = logits;
  keep_allowed(logits, {}, Choices({" the fox", " a lion"}), tales_tokenizer(), tales().config().end_tokens);
  int kept = 0;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    CHECK((!is_kept(logits[i]) || logits[i] == raw[i]));
    kept += is_kept(logits[i]);
  }
  CHECK(kept == std::ssize(offered({" the fox", " a lion"}, {})));
}

TEST_CASE("a choice that no token continues is an error, not a text") {
  const auto masked = [](const std::vector<std::string>& choices, const std::string& before) {
    std::vector<float> logits(tales_tokenizer().vocab_size());
    return error_message([&] {
      keep_allowed(logits, tales_tokenizer().encode(before), Choices(choices), tales_tokenizer(),
                   tales().config().end_tokens);
    });
  };
  CHECK(masked({"yes"}, "no") == "no token continues \"no\" to an allowed text");
  CHECK(masked({}, "") == "no token continues \"\" to an allowed text");
  CHECK(masked({"yes"}, "ye").empty());
}

TEST_CASE("each text of a batch is a choice, however it is drawn") {
  const std::set<std::string> choices{" fox", " lion", " very old fox"};
  const std::string options = "--choice ' fox' --choice ' lion' --choice ' very old fox'";
  for (const std::string more :
       {"", " --do-sample --seed 3 --temperature 3 --num-return-sequences 30", " --do-sample --top-k 1",
        " --presence-penalty 2 --repetition-penalty 5", " --no-use-cache"}) {
    CAPTURE(more);
    const ProgramRun ran = run(options + more);
    REQUIRE(ran.status == 0);
    std::set<std::string> found;
    const nlohmann::json result = ran.json();
    for (const auto& sequence : result["sequences"]) {
      CHECK(sequence["finish_reason"] == "eos");
      CHECK(choices.contains(sequence["text"].get<std::string>()));
      found.insert(sequence["text"].get<std::string>());
    }
    if (contains(more, "--temperature")) CHECK(found.size() > 1);
  }
}

TEST_CASE("without a choice, the text is as before") {
  CHECK(run("--max-new-tokens 12").json()["sequences"][0]["token_ids"].size() == 12);
}

TEST_CASE("a text that reaches its length before its end is cut, and says so") {
  const nlohmann::json sequence = run("--choice ' very old fox' --max-new-tokens 2").json()["sequences"][0];
  CHECK(sequence["finish_reason"] == "length");
  CHECK(std::string(" very old fox").starts_with(sequence["text"].get<std::string>()));
}

TEST_CASE("options that move the end of a text are refused, and so is a model without an end") {
  for (const std::string other : {"--ignore-eos", "--min-new-tokens 1"}) {
    const ProgramRun refused = run("--choice a " + other);
    CHECK(refused.status == 2);
    CHECK(refused.err ==
          "error: --choice decides where a text ends, so leave out --ignore-eos and --min-new-tokens\n");
    CHECK(run(other + " --max-new-tokens 1").status == 0);
  }
  const TemporaryFolder folder;
  const std::filesystem::path model = folder.path() / "endless";
  std::filesystem::copy(find_model("tales-1m"), model);
  nlohmann::json config = nlohmann::json::parse(std::ifstream(model / "config.json"));
  config["eos_token_id"] = nullptr;
  std::ofstream(model / "config.json") << config;
  std::filesystem::remove(model / "generation_config.json");
  const std::string options = "--device cpu --max-new-tokens 2 --prompt A --model " + model.string();
  const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, options + " --choice a");
  CHECK(refused.status == 2);
  CHECK(contains(refused.err,
                 "error: --choice needs a model with an end-of-text token, and this one has none\n"));
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, options).status == 0);
}
