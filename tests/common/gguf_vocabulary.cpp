// The tokenizers of GGUF files: merges from scores, what types of tokens mean, the names of pre-tokenizers,
// and one sentence for every fault.
#include "common/text/gguf_vocabulary.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/text/pre_tokenizer.h"
#include "common/text/pre_types.h"
#include "common/text/tokenizer.h"
#include "tests/captured.h"
#include "tests/error_message.h"

using namespace staircase;

namespace {

using Ids = std::vector<int>;

/// SentencePiece's: three special tokens, the bytes, and `pieces` from 259 on with the given scores.
GgufVocabulary sentence_pieces(const std::vector<std::pair<std::string, float>>& pieces) {
  GgufVocabulary vocabulary{.architecture = "llama", .model = "llama", .bos_token_id = 1};
  const auto add = [&](const std::string& text, float score, int type) {
    vocabulary.tokens.push_back(text);
    vocabulary.scores.push_back(score);
    vocabulary.token_type.push_back(type);
  };
  add("<unk>", 0, 2);
  add("<s>", 0, 3);
  add("</s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), 0, 6);
  for (const auto& [text, score] : pieces) add(text, score, 1);
  return vocabulary;
}

Tokenizer made_of(const GgufVocabulary& vocabulary) {
  return Tokenizer(describe(vocabulary, "m.gguf"), "m.gguf");
}

std::string error_of(const GgufVocabulary& vocabulary) {
  return error_message([&] { made_of(vocabulary); });
}

}  // namespace

TEST_CASE("pieces of a text merge in the order of their scores, and of equal ones the lower id comes first") {
  GgufVocabulary vocabulary = sentence_pieces(
      {{"\u2581", -9}, {"a", -9}, {"b", -9}, {"c", -9}, {"ab", -2}, {"bc", -1}, {"\u2581a", -3}});
  vocabulary.add_space_prefix = false;
  CHECK(made_of(vocabulary).encode("abc") == Ids{260, 264});
  vocabulary.scores[264] = -2;
  CHECK(made_of(vocabulary).encode("abc") == Ids{263, 262});
  vocabulary.add_space_prefix = true;
  CHECK(made_of(vocabulary).encode("a") == Ids{265});
  CHECK(made_of(vocabulary).encode(" a") == Ids{259, 265});  // another space comes in front
  CHECK(made_of(vocabulary).encode_with_special_tokens("a</s>a") == Ids{265, 2, 265});
  CHECK(made_of(vocabulary).decode_whole(Ids{265, 2, 265}) == "a</s> a");
}

TEST_CASE("of two tokens with one text the first is merged to, and a marker without text is none") {
  GgufVocabulary vocabulary = sentence_pieces({{"a", -9}, {"b", -9}, {"ab", -2}, {"ab", -1}, {"", 0}});
  vocabulary.add_space_prefix = false;
  vocabulary.token_type[263] = 3;
  CHECK(made_of(vocabulary).encode("ab") == Ids{261});
  CHECK(made_of(vocabulary).special_tokens() == Ids{0, 1, 2});
}

TEST_CASE("a token of a merge may begin with a space") {
  GgufVocabulary vocabulary{
      .architecture = "llama", .model = "gpt2", .pre = "gpt-2", .tokens = {" b", "c", " bc"}};
  vocabulary.merges = {" b c"};
  const TokenizerDescription described = describe(vocabulary, "m.gguf");
  REQUIRE(described.merges.size() == 1);
  CHECK(described.merges[0].left == 0);
  CHECK(described.merges[0].right == 1);
  CHECK(described.merges[0].token == 2);
}

TEST_CASE("only normal tokens are merged to") {
  GgufVocabulary vocabulary = sentence_pieces({{"a", -9}, {"b", -9}, {"ab", -2}});
  vocabulary.add_space_prefix = false;
  CHECK(made_of(vocabulary).encode("ab") == Ids{261});
  for (const int type : {3, 5, 6}) {
    vocabulary.token_type[261] = type;
    CHECK(made_of(vocabulary).encode("ab") == Ids{259, 260});
  }
}

TEST_CASE("a token of 400 kB is read without trying all its parts") {
  // Nothing here measures: with quadratic work this test would not come to an end.
  GgufVocabulary vocabulary = sentence_pieces({{"a", -1}, {std::string(400'000, 'a'), -2}, {"aa", -3}});
  vocabulary.add_space_prefix = false;
  CHECK(made_of(vocabulary).encode("aaa") == Ids{261, 259});
}

TEST_CASE("merges of bytes may make a user-defined token") {
  const GgufVocabulary vocabulary{.architecture = "llama",
                                  .model = "gpt2",
                                  .pre = "gpt-2",
                                  .tokens = {"a", "b", "ab", "abb"},
                                  .token_type = {1, 1, 4, 1},
                                  .merges = {"a b", "ab b"}};
  const TokenizerDescription described = describe(vocabulary, "m.gguf");
  CHECK(described.merges.size() == 2);
  CHECK(described.merges[0].token == 2);
  CHECK(made_of(vocabulary).encode("bab") == Ids{1, 2});
}

TEST_CASE("a user-defined token is found in any text, and a filler marked as one is not") {
  GgufVocabulary vocabulary = sentence_pieces({{"<tool>", 0}, {"[PAD260]", 0}});
  vocabulary.add_space_prefix = false;
  vocabulary.token_type[259] = vocabulary.token_type[260] = 4;
  const Tokenizer tokenizer = made_of(vocabulary);
  CHECK(tokenizer.encode("<tool>") == Ids{259});
  CHECK(tokenizer.encode("[PAD260]").size() == 8);
  CHECK(tokenizer.bytes(260) == "");
}

TEST_CASE(
    "a marker is one token where a template writes it, even if a file types it as normal or not at all") {
  GgufVocabulary pieces = sentence_pieces({{"a", -1},
                                           {"b", -1},
                                           {"<|im_end|>", 0},
                                           {"ab", -1},
                                           {"</", -2},
                                           {"<", -9},
                                           {"/", -9},
                                           {"s", -9},
                                           {">", -9},
                                           {"s>", -3},
                                           {"[a]", -4},
                                           {"[", -9},
                                           {"]", -9},
                                           {"[a", -5}});
  pieces.add_space_prefix = false;
  GgufVocabulary bytes{.architecture = "llama",
                       .model = "gpt2",
                       .pre = "gpt-2",
                       .tokens = {"a", "<|im_end|>", "b", "ab", "[", "]", "[[", "[[]"},
                       .merges = {"a b", "[ [", "[[ ]"}};
  for (const int type : {0, 1, 3, 4, 5}) {
    CAPTURE(type);
    if (type > 0) bytes.token_type = {1, type, 1, 1, 1, 1, 1, 1};
    pieces.token_type[261] = type;
    GgufVocabulary untyped = pieces;
    if (type == 0) untyped.token_type.clear();
    CHECK(made_of(bytes).encode_with_special_tokens("a<|im_end|>ab") == Ids{0, 1, 3});
    CHECK(made_of(bytes).bytes(1) == "<|im_end|>");
    CHECK(made_of(untyped).encode_with_special_tokens("a<|im_end|>ab\n") == Ids{259, 261, 262, 13});
    CHECK(made_of(untyped).bytes(261) == "<|im_end|>");
    CHECK(made_of(untyped).bytes(13) == "\n");
  }
  // What merges make is a text's token, but not if a text begins or ends with it.
  CHECK(made_of(bytes).encode("[[]") == Ids{7});
  bytes.end_ids = {7};
  CHECK(made_of(bytes).encode("[[]") == Ids{6, 5});
  CHECK(made_of(bytes).encode_with_special_tokens("[[]") == Ids{7});
  bytes.end_ids = {3};  // and what has not the form of a marker stays a text
  CHECK(made_of(bytes).encode("ab[[]") == Ids{3, 7});
  CHECK(made_of(pieces).encode("[a]") == Ids{269});
  pieces.token_type.clear();  // "</s>" is named below
  CHECK(made_of(pieces).encode("</s>") == Ids{2});
  pieces.end_ids = {2};
  CHECK(made_of(pieces).encode("</s>") == Ids{263, 268});
  CHECK(made_of(pieces).encode_with_special_tokens("</s>") == Ids{2});
  // A token for user-defined texts is found in any text, but not if it ends one.
  bytes.end_ids = {1};
  bytes.token_type[1] = 4;
  CHECK(made_of(bytes).encode("a<|im_end|>") == Ids{0});
  bytes.end_ids.clear();
  CHECK(made_of(bytes).encode("a<|im_end|>") == Ids{0, 1});
  bytes.bos_token_id = 1;
  CHECK(made_of(bytes).encode("a<|im_end|>") == Ids{0});
}

TEST_CASE("a text begins with a begin-of-text token by default in SentencePiece's and Llama 3's files only") {
  GgufVocabulary vocabulary = sentence_pieces({{"a", 0}});
  CHECK(made_of(vocabulary).encode_prompt("").size() == 1);
  vocabulary.add_bos_token = false;
  CHECK(made_of(vocabulary).encode_prompt("").empty());
  CHECK(pre_tokenizer_of("llama-bpe")->adds_begin);
  CHECK(pre_tokenizer_of("llama-bpe")->ignore_merges);
  for (const char* name : {"gpt-2", "smollm", "qwen2", "olmo", "default"})
    CHECK_FALSE(pre_tokenizer_of(name)->adds_begin);
  for (const char* name : {"qwen2", "olmo"}) CHECK(pre_tokenizer_of(name)->nfc);
  // Names of one pattern.
  for (const auto& names :
       std::vector<std::vector<const char*>>{{"gpt-2", "phi-2", "jais"},
                                             {"olmo", "mpt"},
                                             {"smollm", "starcoder", "refact", "command-r"},
                                             {"qwen2", "deepseek-r1-qwen"},
                                             {"llama-bpe", "llama3", "llama-v3"}}) {
    for (const char* name : names) {
      CAPTURE(name);
      const auto one = pre_tokenizer_of(name), first = pre_tokenizer_of(names[0]);
      REQUIRE(one);
      REQUIRE(one->cuts.size() == first->cuts.size());
      for (std::size_t i = 0; i < one->cuts.size(); ++i)
        CHECK(one->cuts[i].pattern == first->cuts[i].pattern);
      CHECK(one->nfc == first->nfc);
      CHECK(one->ignore_merges == first->ignore_merges);
      CHECK(one->adds_begin == first->adds_begin);
    }
  }
  CHECK_FALSE(pre_tokenizer_of("gemma"));
}

TEST_CASE("a user-defined token is text as well, and a control token is special") {
  GgufVocabulary vocabulary = sentence_pieces({{"=tool=", 0}, {"<turn>", 0}});
  vocabulary.add_space_prefix = false;
  vocabulary.token_type[259] = 4;
  vocabulary.token_type[260] = 3;
  const Tokenizer tokenizer = made_of(vocabulary);
  CHECK(tokenizer.special_tokens() == Ids{0, 1, 2, 260});
  CHECK(tokenizer.encode("<turn>").size() == 6);
  CHECK(tokenizer.encode_with_special_tokens("=tool=<turn>") == Ids{259, 260});
}

TEST_CASE("texts are composed where the pre-tokenizer or the architecture was trained so") {
  const auto composes = [](const std::string& architecture, const std::string& pre) {
    GgufVocabulary vocabulary{.architecture = architecture, .model = "gpt2", .pre = pre, .tokens = {"a"}};
    return !describe(vocabulary, "m.gguf").normalizations.empty();
  };
  for (const char* architecture : {"gptneox", "olmo"}) CHECK(composes(architecture, "gpt-2"));
  for (const char* architecture : {"gpt2", "llama", "qwen2", "qwen3"})
    CHECK_FALSE(composes(architecture, "gpt-2"));
  for (const char* pre : {"qwen2", "olmo"}) CHECK(composes("llama", pre));
}

TEST_CASE("a byte-level file may put a space in front of each text") {
  GgufVocabulary vocabulary{
      .architecture = "llama", .model = "gpt2", .pre = "gpt-2", .tokens = {"a", "\u0120", "\u0120a"}};
  vocabulary.merges = {"\u0120 a"};
  CHECK(made_of(vocabulary).encode("a") == Ids{0});
  vocabulary.add_space_prefix = true;
  CHECK(made_of(vocabulary).encode("a") == Ids{2});
  vocabulary.add_space_prefix = false;
  CHECK(made_of(vocabulary).encode("a") == Ids{0});
}

TEST_CASE("a file that names no pre-tokenizer has llama.cpp's default, with a warning") {
  const GgufVocabulary vocabulary{.architecture = "llama", .model = "gpt2", .tokens = {"a"}};
  Captured captured(stderr);
  const TokenizerDescription described = describe(vocabulary, "m.gguf");
  CHECK(captured.text() ==
        "warning: m.gguf names no tokenizer.ggml.pre; some texts may be split into different tokens than in "
        "training\n");
  const PreTokenizer cut(described.cuts);
  using Pieces = std::vector<std::string_view>;
  CHECK(cut.split("It's 12345678 |a|$b") ==
        Pieces{"It", "'", "s", " ", "123", "456", "78", " ", "|", "a", "|$", "b"});
}

TEST_CASE("a broken tokenizer of a GGUF file is one sentence with the file, the key and the value") {
  const GgufVocabulary good = sentence_pieces({{"a", 0}});
  REQUIRE(error_of(good) == "");
  const auto error = [&](auto change) {
    GgufVocabulary vocabulary = good;
    change(vocabulary);
    return error_of(vocabulary);
  };
  using Vocabulary = GgufVocabulary&;
  CHECK(says(error([](Vocabulary v) { v.model = "bert"; }), "m.gguf", "tokenizer.ggml.model is \"bert\""));
  CHECK(says(error([](Vocabulary v) { v.scores.pop_back(); }), "m.gguf", "scores is 259 numbers",
             "260 tokens"));
  CHECK(says(error([](Vocabulary v) { v.scores[5] = NAN; }), "m.gguf", "scores is nan"));
  CHECK(says(error([](Vocabulary v) { v.token_type.pop_back(); }), "m.gguf", "token_type is 259 numbers"));
  CHECK(says(error([](Vocabulary v) { v.bos_token_id = -1; }), "m.gguf", "bos_token_id is -1"));
  CHECK(says(error([](Vocabulary v) { v.bos_token_id.reset(); }), "m.gguf", "add_bos_token",
             "no bos_token_id"));
  CHECK(says(error([](Vocabulary v) { v.add_eos_token = true; }), "m.gguf", "add_eos_token is true"));
  CHECK(says(error([](Vocabulary v) {
               v.tokens[70] = "x";
               v.token_type[70] = 5;
             }),
             "m.gguf", "<0x43>"));
  const auto bytes = [&](auto change) {
    return error([&](Vocabulary v) {
      v.model = "gpt2";
      v.pre = "gpt-2";
      change(v);
    });
  };
  CHECK(bytes([](Vocabulary) {}) == "");
  CHECK(says(bytes([](Vocabulary v) { v.pre = "gemma"; }), "m.gguf", "tokenizer.ggml.pre is \"gemma\""));
  CHECK(says(bytes([](Vocabulary v) { v.merges = {"ab"}; }), "m.gguf", "merges[0] is \"ab\""));
  CHECK(says(bytes([](Vocabulary v) { v.merges = {"a b"}; }), "m.gguf", "merges[0]",
             "\"b\" is not in the vocabulary"));
  CHECK(says(bytes([](Vocabulary v) { v.merges = {""}; }), "m.gguf", "merges[0] is \"\""));
}
