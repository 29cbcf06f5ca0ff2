// The tokenizer in a GGUF file is that of the model's folder, and what is not supported is named.
#include "common/text/gguf_tokenizer.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/text/tokenizer.h"
#include "tests/error_message.h"
#include "tests/gguf_writer.h"

using namespace staircase;

namespace {

const std::filesystem::path kReference = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "tests/reference";

/// A tokenizer of bytes, without what `left_out` names.
GgufWriter byte_level(const std::string& pre = "gpt-2", const std::string& left_out = "",
                      const std::string& architecture = "llama") {
  GgufWriter writer;
  writer.text("general.architecture", architecture);
  if (left_out != "model") writer.text("tokenizer.ggml.model", "gpt2");
  if (left_out != "pre") writer.text("tokenizer.ggml.pre", pre);
  if (left_out != "tokens") {
    writer.texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<|end|>", "<t>", "[PAD5]", "unused", "Ġ"});
  }
  if (left_out != "merges") writer.texts("tokenizer.ggml.merges", {"a b"});
  return writer;
}

TokenizerDescription description_of(const GgufWriter& writer) {
  const std::string bytes = writer.bytes();
  return describe_gguf_tokenizer({parse_gguf(std::as_bytes(std::span(bytes)), "model.gguf"), "model.gguf"});
}

std::string error_of(const GgufWriter& writer) {
  return error_message([&] { description_of(writer); });
}

GgufWriter with_types(const std::vector<std::int32_t>& types) {
  GgufWriter writer = byte_level();
  writer.numbers("tokenizer.ggml.token_type", 5, types);
  return writer;
}

GgufWriter sentencepiece() {
  GgufWriter writer;
  writer.text("general.architecture", "llama")
      .text("tokenizer.ggml.model", "llama")
      .texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "a", "b", "ab", "abb", "bb", "<0x41>"})
      .numbers<float>("tokenizer.ggml.scores", 6, {0, 0, 0, -9, -9, -2, -3, -1, 0})
      .numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 3, 1, 1, 1, 1, 1, 6})
      .number("tokenizer.ggml.bos_token_id", 1)
      .number("tokenizer.ggml.eos_token_id", 2)
      .number("tokenizer.ggml.unknown_token_id", 0);
  return writer;
}

}  // namespace

TEST_CASE("a file of llama.cpp's converter encodes texts as the model's folder does") {
  const Tokenizer tokenizer = Tokenizer::load(kReference / "gguf-families/smollm2.gguf");
  const Tokenizer folder = Tokenizer::load(kReference.parent_path().parent_path() / "models/tales-6m");
  CHECK(tokenizer.vocab_size() == folder.vocab_size());
  CHECK(tokenizer.same_tokens(folder));
  std::ifstream in(kReference / "tokenizer_tales.json");
  const nlohmann::json reference = nlohmann::json::parse(in);
  for (const nlohmann::json& one : reference["cases"]) {
    CHECK(tokenizer.encode_with_special_tokens(one["text"].get<std::string>()) ==
          one["ids"].get<std::vector<int>>());
  }
}

TEST_CASE("control tokens are special, user-defined ones are not, and fillers and unused ones are not text") {
  const TokenizerDescription described = description_of(with_types({1, 1, 1, 3, 4, 4, 5, 1}));
  REQUIRE(described.added.size() == 2);
  CHECK(described.added[0].content == "<|end|>");
  CHECK(described.added[0].special);
  CHECK(described.added[1].content == "<t>");
  CHECK(!described.added[1].special);
  CHECK(described.pieces == std::vector<std::string>{"a", "b", "ab", "", "", "", "", "Ġ"});
  REQUIRE(described.merges.size() == 1);
  CHECK(described.merges[0].token == 2);
}

TEST_CASE("the tokens that the metadata names as the end are markers, even if merges make them") {
  const auto added = [](const std::string& key) {
    GgufWriter writer;
    writer.text("general.architecture", "llama")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "<", "s>"})
        .numbers<float>("tokenizer.ggml.scores", 6, {0, 0, 0, 0})
        .number("tokenizer.ggml.bos_token_id", 0)
        .number(key, 1);
    return description_of(writer).added.size();
  };
  for (const char* key : {"eos", "eot", "eom"})
    CHECK(added(fmt::format("tokenizer.ggml.{}_token_id", key)) == 2);
  CHECK(added("tokenizer.ggml.padding_token_id") == 1);
}

TEST_CASE("one name determines how a text is split: pattern, merges, normal form and begin") {
  const auto with_begin = [](const std::string& pre) {
    GgufWriter writer = byte_level(pre);
    return description_of(writer.number("tokenizer.ggml.bos_token_id", 1));
  };
  CHECK(with_begin("gpt-2").cuts.size() == 1);
  CHECK(!with_begin("gpt-2").begin);
  CHECK(with_begin("gpt-2").normalizations.empty());
  CHECK(with_begin("smollm").cuts.size() == 2);
  CHECK(with_begin("llama-bpe").ignore_merges);
  CHECK(with_begin("llama-bpe").begin == 1);
  CHECK(with_begin("qwen2").normalizations.size() == 1);
  CHECK(!with_begin("qwen2").begin);
  CHECK(with_begin("olmo").normalizations.size() == 1);
  GgufWriter without = byte_level("llama-bpe");
  without.number("tokenizer.ggml.bos_token_id", 1).truth("tokenizer.ggml.add_bos_token", false);
  CHECK(!description_of(without).begin);
  GgufWriter wanted = byte_level("gpt-2");
  wanted.number("tokenizer.ggml.bos_token_id", 1).truth("tokenizer.ggml.add_bos_token", true);
  CHECK(description_of(wanted).begin == 1);
}

TEST_CASE("texts of GPT-NeoX and OLMo are brought into a normal form, which no key of theirs states") {
  for (const std::string architecture : {"gptneox", "olmo"})
    CHECK(description_of(byte_level("gpt-2", "", architecture)).normalizations.size() == 1);
  for (const std::string architecture : {"gpt2", "llama", "qwen3"})
    CHECK(description_of(byte_level("gpt-2", "", architecture)).normalizations.empty());
}

TEST_CASE("scores become merges, the best first, between normal pieces only") {
  const TokenizerDescription described = description_of(sentencepiece());
  CHECK(described.alphabet == TokenizerDescription::Alphabet::kCharacters);
  std::vector<std::vector<int>> merges;
  for (const auto& [left, right, token, rank] : described.merges) merges.push_back({left, right, token});
  CHECK(merges == std::vector<std::vector<int>>{{4, 4, 7}, {3, 4, 5}, {3, 7, 6}, {5, 4, 6}});
  CHECK(described.merges[0].rank < described.merges[1].rank);
  CHECK(described.merges[2].rank == described.merges[3].rank);
  CHECK(described.begin == 1);
  REQUIRE(described.normalizations.size() == 2);
  CHECK(described.normalizations[0].kind == Normalization::Kind::kPrepend);
  GgufWriter without = sentencepiece();
  CHECK(description_of(without.truth("tokenizer.ggml.add_space_prefix", false)).normalizations.size() == 1);
}

TEST_CASE("a tokenizer that is missing, of another kind or incomplete is an error") {
  CHECK(says(error_of(byte_level("gpt-2", "model")), "model.gguf", "no tokenizer.ggml.model"));
  CHECK(says(error_of(byte_level("gpt-2", "tokens")), "no tokenizer.ggml.tokens"));
  CHECK(says(error_of(byte_level("gpt-2", "merges")), "no tokenizer.ggml.merges"));
  GgufWriter scores;
  CHECK(says(error_of(scores.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", {"a"})),
             "no tokenizer.ggml.scores: it holds no tokenizer"));
  CHECK(says(error_of(byte_level("tekken")), "tokenizer.ggml.pre is \"tekken\"", "not supported"));
  GgufWriter bert;
  CHECK(says(error_of(bert.text("tokenizer.ggml.model", "bert").texts("tokenizer.ggml.tokens", {"a"})),
             "tokenizer.ggml.model is \"bert\"", "gpt2"));
  CHECK(says(error_of(with_types({1, 1})), "token_type is 2 numbers", "8 tokens"));
  CHECK(says(error_of(with_types({1, 1, 1, 3, 9, 1, 1, 1})), "token_type holds 9", "1 to 6"));
  GgufWriter merges = byte_level("gpt-2", "merges");
  CHECK(says(error_of(merges.texts("tokenizer.ggml.merges", {"a b", "ab"})), "merges[1] is \"ab\""));
  GgufWriter unknown = byte_level("gpt-2", "merges");
  CHECK(says(error_of(unknown.texts("tokenizer.ggml.merges", {"a c"})), "merges[0]", "\"c\""));
  GgufWriter begin = byte_level("llama-bpe");
  CHECK(says(error_of(begin.number("tokenizer.ggml.bos_token_id", 8)), "bos_token_id is 8", "8 tokens"));
  GgufWriter large = byte_level("llama-bpe");
  large.pair("tokenizer.ggml.bos_token_id", 10, raw<std::uint64_t>((std::uint64_t{1} << 32) + 2));
  CHECK(says(error_of(large), "bos_token_id is 2147483647", "8 tokens"));
}

TEST_CASE("the type of a token is 1 to 6, and the largest number as an id is none") {
  for (const std::int32_t type : {1, 2, 3, 4, 5, 6})
    CHECK(error_of(with_types({1, 1, 1, 1, 1, 1, 1, type})) == "");
  for (const std::int32_t type : {-1, 0, 7})
    CHECK(says(error_of(with_types({1, 1, 1, 1, 1, 1, 1, type})), "model.gguf",
               fmt::format("holds {}, not 1 to 6", type)));
  const auto begin_of = [](std::uint32_t id) {
    GgufWriter writer = byte_level();
    writer.number("tokenizer.ggml.bos_token_id", id).truth("tokenizer.ggml.add_bos_token", true);
    return error_of(writer);
  };
  CHECK(begin_of(7) == "");
  CHECK(says(begin_of(8), "bos_token_id is 8", "8 tokens"));
  CHECK(says(begin_of(0xFFFF'FFFF), "add_bos_token", "no bos_token_id"));
}

TEST_CASE("the template of a conversation is the one without a name, or the default one") {
  const auto template_of = [](const GgufWriter& writer) {
    const std::string bytes = writer.bytes();
    return gguf_chat_template({parse_gguf(std::as_bytes(std::span(bytes)), "model.gguf"), "model.gguf"});
  };
  CHECK(!template_of(GgufWriter()));
  CHECK(template_of(GgufWriter().text("tokenizer.chat_template", "one")) == "one");
  CHECK(template_of(GgufWriter()
                        .text("tokenizer.chat_template.default", "two")
                        .text("tokenizer.chat_template.tool_use", "three")) == "two");
}
