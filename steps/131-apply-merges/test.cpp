#include <doctest/doctest.h>

#include <random>

#include "common/base/file.h"
#include "plain_encoder.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const Tokenizer& tales_vocabulary() {
  static const Tokenizer loaded = Tokenizer::load(find_model("tales-6m"));
  return loaded;
}

}  // namespace

TEST_CASE("a word is merged in the order in which the merges were learnt") {
  const PlainEncoder encoder(tales_vocabulary());
  // Ids of vocab.json.
  CHECK(encoder.encode("the") == tales_vocabulary().encode("the"));
  CHECK(encoder.encode("The Fox and the grapes") == std::vector<int>{321, 1912, 267, 259, 2059, 79, 295});
  CHECK(encoder.encode("").empty());
}

TEST_CASE("each text becomes the ids that transformers gives") {
  const PlainEncoder encoder(tales_vocabulary());
  int compared = 0;
  for (const auto& one : reference("tokenizer_tales.json")["cases"]) {
    const std::string text = one["text"];
    if (text.find("<|endoftext|>") != std::string::npos) continue;  // transformers reads it as a marker
    CAPTURE(text);
    CHECK(encoder.encode(text) == one["ids"].get<std::vector<int>>());
    ++compared;
  }
  CHECK(compared > 10);
}

TEST_CASE("whole tales and random bytes become the ids of the library") {
  const PlainEncoder encoder(tales_vocabulary());
  const std::string tales = read_file(STAIRCASE_SOURCE_TREE "/tests/reference/unseen.txt");
  CHECK(encoder.encode(tales) == tales_vocabulary().encode(tales));
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (int length = static_cast<int>(random() % 40); length > 0; --length)
      text += random() % 3 == 0 ? static_cast<char>(random() % 256) : " ethaoin's\n1"[random() % 12];
    CAPTURE(text);
    REQUIRE(encoder.encode(text) == tales_vocabulary().encode(text));
  }
}

TEST_CASE("the text of a marker is cut like any other text") {
  const PlainEncoder encoder(tales_vocabulary());
  const std::vector<int> ids = encoder.encode("<|endoftext|>");
  CHECK(ids == tales_vocabulary().encode("<|endoftext|>"));
  CHECK(ids.size() > 1);
}

TEST_CASE("a vocabulary without all bytes is refused") {
  TokenizerDescription description;
  description.pieces = {"a", "b", "ab"};
  description.merges = {{0, 1, 2, 0}};
  const Tokenizer few(description, "few.json");
  CHECK(says(error_message([&] { PlainEncoder{few}; }), "this step needs a vocabulary of bytes"));
}

TEST_CASE("the program continues a prompt with the ids that it has made") {
  for (const char* const prompt : {"The Fox and the grapes", "fox Fox  fox", "Donaudampfschiff: 3,50 €"}) {
    CAPTURE(prompt);
    const ProgramRun run = run_program(
        STAIRCASE_STEP_PROGRAM, std::string("--show-tokens --max-new-tokens 1 --prompt '") + prompt + "'");
    CHECK(run.status == 0);
    for (const int id : tales_vocabulary().encode(prompt))
      CHECK(run.err.find(fmt::format("{:>6}  ", id)) != std::string::npos);
    CHECK(run.err.find(fmt::format("\n{} prompt tokens", tales_vocabulary().encode(prompt).size())) !=
          std::string::npos);
  }
}
