#include <doctest/doctest.h>

#include "common/text/tokenizer.h"
#include "prompt_tokens.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

/// What the program prints on standard error with `options`, up to the statistics.
std::string shown(const std::string& options) {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --show-tokens " + options);
  REQUIRE(run.status == 0);
  const std::size_t begin = run.err.find('\n') + 1;  // after the estimate of memory
  return run.err.substr(begin, run.err.find(" prompt token", begin) - begin);
}

}  // namespace

TEST_CASE("a token is a line: its id in six columns, two spaces and its text in quotes") {
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  Captured err(stderr);
  show_tokens(tokenizer, {32, 1423, 4095});
  CHECK(err.text() == "    32  \"A\"\n  1423  \" fox\"\n  4095  \"<|endoftext|>\"\n");
}

TEST_CASE("each token of the prompt has a line with its id and its text in quotes") {
  CHECK(shown("--prompt 'A fox'") == "    32  \"A\"\n  1423  \" fox\"\n2");
}

TEST_CASE("the ids are those that transformers gives, and the texts are the prompt") {
  for (const auto& one : reference("tokenizer_tales.json")["cases"]) {
    const std::string text = one["text"];
    if (text.empty() || text.find_first_of("\n'\\\"") != std::string::npos) continue;
    if (std::ranges::any_of(text, [](char letter) { return letter < ' ' || letter > '~'; })) continue;
    if (text.find("<|endoftext|>") != std::string::npos) continue;  // transformers reads it as a marker
    CAPTURE(text);
    std::string ids, texts;
    std::istringstream lines(shown(fmt::format("--prompt '{}'", text)));
    for (std::string line; std::getline(lines, line) && line.size() > 8;) {
      ids += std::to_string(std::stoi(line)) + " ";
      texts += line.substr(9, line.size() - 10);
    }
    std::string want;
    for (const int id : one["ids"]) want += std::to_string(id) + " ";
    CHECK(ids == want);
    CHECK(texts == text);
  }
}

TEST_CASE("half a character, a line break and a quotation mark do not break the line") {
  const std::string lines = shown("--prompt '\xf0\x9f\xa6\x8a\n\"'");
  CHECK(contains(lines, "\uFFFD"));
  CHECK(contains(lines, "\"\\n\""));
  CHECK(contains(lines, "\"\\\"\""));
}

TEST_CASE("nothing is printed without the option") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --max-new-tokens 1");
  CHECK(run.err.find('"') == std::string::npos);
}
