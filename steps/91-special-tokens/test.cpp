#include <doctest/doctest.h>

#include "common/base/file.h"
#include "common/text/tokenizer_json.h"
#include "special_tokens.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

using Ids = std::vector<int>;

constexpr int kEnd = 4095;  // <|endoftext|> of the tales

/// The tokenizer with the markers of SmolLM2, of a small vocabulary.
const Tokenizer& smollm2() {
  const std::string file = STAIRCASE_SOURCE_TREE "/tests/reference/tokenizers/smollm2.json";
  static const Tokenizer tokenizer(read_tokenizer_json(read_file(file), file), file);
  return tokenizer;
}

/// What the program turns `<|endoftext|>` between two words into.
nlohmann::json sequence(const std::string& options) {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM,
                                     "--json --max-new-tokens 1 --prompt 'One<|endoftext|>day' " + options);
  REQUIRE(run.status == 0);
  return run.json()["sequences"][0];
}

}  // namespace

TEST_CASE("a marker is one token, and the text around it is encoded separately") {
  const Tokenizer& tokenizer = tales_tokenizer();
  Ids want = tokenizer.encode("The end.");
  want.push_back(kEnd);
  const Ids rest = tokenizer.encode(" Once");
  want.insert(want.end(), rest.begin(), rest.end());
  CHECK(encode_with_markers(tokenizer, "The end.<|endoftext|> Once") == want);
}

TEST_CASE("texts with markers at both ends, adjacent, alone and nowhere become tokens") {
  const Tokenizer& tokenizer = tales_tokenizer();
  CHECK(encode_with_markers(tokenizer, "<|endoftext|>") == Ids{kEnd});
  CHECK(encode_with_markers(tokenizer, "<|endoftext|><|endoftext|>") == Ids{kEnd, kEnd});
  CHECK(encode_with_markers(tokenizer, "") == Ids());
  CHECK(encode_with_markers(tokenizer, "A fox") == tokenizer.encode("A fox"));
  CHECK(encode_with_markers(tokenizer, "<|endoftext|") == tokenizer.encode("<|endoftext|"));
  CHECK(encode_with_markers(tokenizer, "<<|endoftext|>").back() == kEnd);
}

TEST_CASE("the tokens are those of the library, whose tests compare it with transformers") {
  for (const std::string text :
       {"<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", "a <|im_start|> b <|im_end|>",
        "<|im_end|>\n<|im_end|>", "<|im_start", "no marker", "<|endoftext|>\n\n<|im_start|>"}) {
    CAPTURE(text);
    CHECK(encode_with_markers(smollm2(), text) == smollm2().encode_with_special_tokens(text));
  }
}

TEST_CASE("the first marker of a text is found, and the longest of two that begin alike") {
  const Marker first = next_marker(smollm2(), "a <|im_end|> and <|im_start|>", 0);
  CHECK(first.begin == 2);
  CHECK(first.text == "<|im_end|>");
  CHECK(smollm2().bytes(first.token) == "<|im_end|>");
  CHECK(next_marker(smollm2(), "a <|im_end|> and <|im_start|>", 3).text == "<|im_start|>");
  CHECK(next_marker(smollm2(), "a <|im_end|>", 3).begin == std::string_view::npos);
  TokenizerDescription two;
  two.pieces = {"a"};
  two.added = {{.id = 1, .content = "<x>", .special = true},
               {.id = 2, .content = "<x><y>", .special = true},
               {.id = 3, .content = "<y>"}};
  CHECK(next_marker({two, "two"}, "a<x><y>", 0).token == 2);
  CHECK(encode_with_markers({two, "two"}, "<x>a<x><y>a") == Ids{1, 0, 2, 0});
}

TEST_CASE("a begin-of-text token comes once, even if the prompt has it") {
  const std::string llama = STAIRCASE_SOURCE_TREE "/tests/reference/tokenizers/llama-3.json";
  const Tokenizer tokenizer(read_tokenizer_json(read_file(llama), llama), llama);
  const Ids want = tokenizer.encode_prompt("Once");
  REQUIRE(want.size() > tokenizer.encode("Once").size());
  const std::string begin(tokenizer.bytes(want[0]));
  CHECK(encode_with_markers(tokenizer, "Once") == want);
  CHECK(encode_with_markers(tokenizer, begin + "Once") == want);
}

TEST_CASE("a marker that changes the text beside it is refused in a prompt, and all others are read") {
  const auto prompt = [](const std::string& name, const std::string& text) {
    const std::string file = STAIRCASE_SOURCE_TREE "/tests/reference/tokenizers/" + name + ".json";
    const Tokenizer tokenizer(read_tokenizer_json(read_file(file), file), file);
    try {
      const Ids got = marked_prompt(tokenizer, text);
      CHECK(got == encode_with_markers(tokenizer, text));
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what()).substr(0, 34);
    }
  };
  const std::string refused = "--special-tokens: a marker in this";
  CHECK(prompt("flags", "a <|left|>b") == refused);
  CHECK(prompt("flags", "a<|right|> b") == refused);
  CHECK(prompt("flags", "a <|user|> b") == refused);
  CHECK(prompt("flags", "a<|left|> b<|right|>c <|endoftext|> d word") == "");
  CHECK(prompt("metaspace-first", "a</s>b") == refused);
  CHECK(prompt("metaspace-first", "</s>") == "");
  CHECK(prompt("metaspace-always", "a</s>b") == "");
  CHECK(prompt("metaspace-never", "a</s>b") == "");
  CHECK(prompt("llama-2", "a</s>b") == "");
}

TEST_CASE("in a prompt the same text is text, unless --special-tokens is given") {
  const nlohmann::json text = sequence(""), marker = sequence("--special-tokens");
  const Ids as_text = text["prompt_token_ids"], as_marker = marker["prompt_token_ids"];
  CHECK(as_text == tales_tokenizer().encode("One<|endoftext|>day"));
  CHECK(std::ranges::count(as_text, kEnd) == 0);
  CHECK(as_marker == encode_with_markers(tales_tokenizer(), "One<|endoftext|>day"));
  CHECK(std::ranges::count(as_marker, kEnd) == 1);
}
