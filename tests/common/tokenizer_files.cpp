// The files that say what a tokenizer is: the ids of Hugging Face's tokenizers and transformers for each
// shape that models have, and one sentence for what is broken or not built.
#include "common/text/tokenizer_files.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "common/text/nfc.h"
#include "common/text/normalizer.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/spelling.h"
#include "common/text/tokenizer.h"
#include "common/text/tokenizer_json.h"
#include "tests/error_message.h"
#include "tests/temporary_folder.h"

using namespace staircase;
using nlohmann::json;

namespace {

const std::filesystem::path kSource = STAIRCASE_SOURCE_TREE;
const std::filesystem::path kTokenizers = kSource / "tests" / "reference" / "tokenizers";
using Ids = std::vector<int>;

std::string slurp(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

json shape(const std::string& name) {
  return json::parse(slurp(kTokenizers / (name + ".json")));
}

Tokenizer made_of(const json& file) {
  return Tokenizer(read_tokenizer_json(file.dump(), "some/tokenizer.json"), "some");
}

std::string error_of(const json& file) {
  return error_message([&] { made_of(file); });
}

/// The message for the file of `name` with `value` at `place`.
std::string error_with(const std::string& name, const char* place, const json& value) {
  json file = shape(name);
  file[json::json_pointer(place)] = value;
  return error_of(file);
}

/// A folder with the embedded models' vocabulary, to which a test adds files.
struct TalesFolder : TemporaryFolder {
  TalesFolder() {
    for (const std::string file : {"vocab.json", "merges.txt"}) {
      std::filesystem::copy_file(kSource / "models" / "tales-1m" / file, path() / file);
    }
  }

  Tokenizer load() const { return Tokenizer::load(path()); }
  std::string error() const {
    return error_message([&] { load(); });
  }
  std::string error_with(const std::string& file, const json& content) {
    write(file, content.dump());
    return error();
  }
};

const json& expected() {
  static const json file = json::parse(slurp(kTokenizers / "expected.json"));
  return file;
}

}  // namespace

TEST_CASE("each shape of tokenizer.json gives the ids of Hugging Face's tokenizers") {
  CHECK(expected().at("shapes").size() >= 13);
  for (const auto& [name_, cases] : expected().at("shapes").items()) {
    const auto& name = name_;  // clang 14 captures no structured binding
    CAPTURE(name);
    const json file = shape(name);
    if (!has_nfc() && file.dump().find("\"NFC\"") != std::string::npos) continue;
    const Tokenizer tokenizer = made_of(file);
    CHECK(cases.size() > 80);
    for (const json& one : cases) {
      const std::string text = one.at("text");
      CAPTURE(text);
      const Ids ids = one.at("ids");
      CHECK(tokenizer.encode(text) == ids);
      CHECK(tokenizer.encode_with_special_tokens(text) == one.value("special_ids", ids));
      CHECK(tokenizer.decode_whole(ids) == one.value("decoded", text));
    }
  }
}

TEST_CASE("additional settings of a folder have their effect in transformers") {
  for (const json& folder : expected().at("folders")) {
    CAPTURE(folder.at("name").get<std::string>());
    TemporaryFolder files;
    if (folder.at("base") == "tales") {
      for (const std::string file : {"vocab.json", "merges.txt"}) {
        files.write(file, slurp(kSource / "models" / "tales-1m" / file));
      }
    } else {
      files.write("tokenizer.json", slurp(kTokenizers / (folder.at("base").get<std::string>() + ".json")));
    }
    files.write("tokenizer_config.json", folder.at("tokenizer_config.json").dump());
    const Tokenizer tokenizer = Tokenizer::load(files.path());
    for (const json& one : folder.at("cases")) {
      const std::string text = one.at("text");
      CAPTURE(text);
      CHECK(tokenizer.encode_prompt(text) == one.at("ids").get<Ids>());
      // A begin-of-text token that the text has is not put in front again, which transformers does.
      Ids special = one.at("special_ids");
      if (text.starts_with("<|begin|>") && special.size() > 1 && special[0] == special[1])
        special.erase(special.begin());
      CHECK(tokenizer.with_begin(tokenizer.encode_with_special_tokens(text)) == special);
    }
  }
}

TEST_CASE("tokenizer.json wins over vocab.json") {
  TalesFolder folder;
  CHECK(folder.load().vocab_size() == 4096);
  folder.write("tokenizer.json", slurp(kTokenizers / "gpt2.json"));
  CHECK(folder.load().vocab_size() == 460);
}

TEST_CASE("a special token in a prompt is text, and a person's </s> ends nothing") {
  const Tokenizer tokenizer = made_of(shape("llama-2"));
  const Ids as_text = tokenizer.encode_prompt("Hi</s>");
  CHECK(as_text.front() == 1);
  CHECK(std::count(as_text.begin(), as_text.end(), 2) == 0);
  CHECK(tokenizer.decode_whole(Ids(as_text.begin() + 1, as_text.end())) == "Hi</s>");
  CHECK(tokenizer.encode_with_special_tokens("Hi</s>").back() == 2);
}

TEST_CASE("between two special tokens there is nothing, whatever is put in front of texts") {
  for (const char* name : {"metaspace-always", "llama-2", "gpt2"}) {
    json file = shape(name);
    if (name == std::string("gpt2")) file["pre_tokenizer"]["add_prefix_space"] = true;
    const Tokenizer tokenizer = made_of(file);
    REQUIRE(!tokenizer.special_tokens().empty());
    for (const int token : tokenizer.special_tokens()) {
      const std::string text(tokenizer.bytes(token));
      CAPTURE(text);
      CHECK(tokenizer.encode_with_special_tokens(text + text) == Ids{token, token});
    }
  }
}

TEST_CASE(
    "a special token of letters that a person types is text, also where whole words are tokens without "
    "merges") {
  json file = shape("llama-3");
  REQUIRE(file["model"]["ignore_merges"] == true);
  const int id = made_of(file).vocab_size();
  file["model"]["vocab"]["USER"] = id;
  CHECK(made_of(file).encode("USER") == Ids{id});
  file["added_tokens"].push_back({{"id", id}, {"content", "USER"}, {"special", true}});
  const Tokenizer tokenizer = made_of(file);
  CHECK(tokenizer.encode("USER").size() > 1);
  CHECK(tokenizer.encode_with_special_tokens("USER") == Ids{id});
}

TEST_CASE("two vocabularies are the same if one has empty tokens more, and not if it has others") {
  TalesFolder folder;
  const Tokenizer tales = folder.load();
  Tokenizer longer = folder.load();
  longer.extend(4100);
  CHECK(tales.same_tokens(longer));
  CHECK(longer.same_tokens(tales));
  folder.write("added_tokens.json", R"({"<|user|>": 4096})");
  const Tokenizer other = folder.load();
  CHECK_FALSE(tales.same_tokens(other));
  CHECK_FALSE(other.same_tokens(tales));
  CHECK_FALSE(longer.same_tokens(other));
}

TEST_CASE(
    "an added token is found as by Hugging Face's tokenizers: as a word, at the front, in a normal form") {
  const auto add = [](json& file, const std::string& content, const json& more) {
    json token{{"id", made_of(file).vocab_size()}, {"content", content}};
    token.update(more);
    file["added_tokens"].push_back(token);
  };
  // A word within another is text, and no shorter token is found in it.
  json words = shape("gpt2");
  add(words, "QZW", {{"normalized", false}, {"single_word", true}});
  add(words, "ZW", {{"normalized", false}});
  CHECK(made_of(words).encode("xQZWx") == Ids{88, 49, 58, 55, 88});
  CHECK(made_of(words).encode("xZWx") == Ids{88, 461, 88});
  CHECK(made_of(words).encode(" QZW ZW") == Ids{221, 460, 221, 461});
  CHECK(made_of(words).encode("QZWZW") == Ids{49, 58, 55, 461});
  // Spaces between two tokens belong to the first of them that takes them.
  const Tokenizer spaces = made_of(shape("flags"));
  CHECK(spaces.encode_with_special_tokens("<|right|>  <|left|>") == Ids{401, 400});
  CHECK(spaces.encode_with_special_tokens("<|user|> \t<|user|>  ABC ") == Ids{402, 402, 407});
  // Only the first text gets a space, also if the token is found after normalization.
  json first = shape("metaspace-always");
  first["pre_tokenizer"]["prepend_scheme"] = "first";
  add(first, "<x>", {{"normalized", true}});
  CHECK(made_of(first).encode("a<x>a") == Ids{381, 589, 318});
  CHECK(made_of(first).encode("<x>a") == Ids{589, 318});
  CHECK(made_of(first).encode("a<x>a<x>a") == Ids{381, 589, 318, 589, 318});
  // By default a special token is found before normalization, which would put a mark in front of it.
  json special = shape("llama-2");
  add(special, "<x>", {{"special", true}});
  CHECK(made_of(special).encode_with_special_tokens("a<x>") == Ids{381, 589});
  // One that is not special is found in any text of a chat.
  for (const bool own : {false, true})
    CHECK(made_of(words).encode_with_special_tokens("xZWx", std::vector<bool>(4, own)) == Ids{88, 461, 88});
}

TEST_CASE("a setting that is not read is refused in each part of each shape") {
  for (const auto& [name_, cases] : expected().at("shapes").items()) {
    const auto& name = name_;  // clang 14 captures no structured binding
    const json file = shape(name);
    for (const char* section : {"normalizer", "pre_tokenizer"}) {
      if (!file.at(section).is_object()) continue;
      std::set<std::string> parts;
      const json settings = file.at(section).flatten();
      for (const auto& [setting, value] : settings.items())
        parts.insert(json::json_pointer(setting).parent_pointer().to_string());
      for (const std::string& part : parts) {
        const std::string place = fmt::format("/{}{}", section, part);
        CAPTURE(name);
        CAPTURE(place);
        json wrong = file;
        wrong[json::json_pointer(place)]["surplus"] = 1;
        CHECK(says(error_of(wrong), "surplus is 1", "not supported"));
      }
    }
  }
}

TEST_CASE("what a file leaves out has Hugging Face's default, and more than is read is refused") {
  json file = shape("gpt2");
  const json last{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto digits = [&](const json& part) {
    const json parts = json::array({part, last});
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", parts}};
    return read_tokenizer_json(file.dump(), "f").cuts.front().pattern;
  };
  CHECK(digits({{"type", "Digits"}}) == R"(\p{N}+)");
  CHECK(digits({{"type", "Digits"}, {"individual_digits", false}}) == R"(\p{N}+)");
  CHECK(digits({{"type", "Digits"}, {"individual_digits", true}}) == R"(\p{N})");
  json merges = shape("llama-3");
  merges["model"]["merges"].push_back(json::array({"a", "b", "c"}));
  CHECK(says(error_of(merges), "not two tokens"));
  json stop = shape("metaspace-always");
  stop["decoder"]["decoders"][3]["stop"] = 1;
  CHECK(says(error_of(stop), "stop is 1", "only 0"));
  json begin = shape("gpt2");
  begin["post_processor"] = json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<x>": {"id": "<x>", "ids": [1], "tokens": ["a"]}}})");
  CHECK(made_of(begin).encode_prompt("").front() == 1);
  json& single = begin["post_processor"]["single"];
  json twice = begin;
  twice["post_processor"]["single"] = {single[0], single[0], single[1]};
  CHECK(
      says(error_of(twice), "single[1].SpecialToken.id", "and only one token is supported before the text"));
  begin["post_processor"]["special_tokens"]["<x>"]["ids"] = {1, 2};
  CHECK(says(error_of(begin), "ids", "not a list of one id"));
  for (const auto& [scheme, drops] :
       {std::pair{"never", false}, std::pair{"first", true}, std::pair{"always", true}}) {
    json decoded = shape("metaspace-always");
    decoded["decoder"] = json::parse(R"({"type": "Sequence", "decoders": [{"type": "ByteFallback"},
      {"type": "Metaspace", "replacement": "\u2581"}]})");
    decoded["decoder"]["decoders"][1]["prepend_scheme"] = scheme;
    CHECK(read_tokenizer_json(decoded.dump(), "f").drops_first_space == drops);
  }
}

TEST_CASE("an older Metaspace says with add_prefix_space whether a space is put in front, by default yes") {
  for (const json& prefix : {json(nullptr), json(true), json(false)}) {
    json old = shape("metaspace-always");
    old["pre_tokenizer"] = {{"type", "Metaspace"},
                            {"replacement", "\u2581"},
                            {"str_rep", "\u2581"},
                            {"add_prefix_space", prefix}};
    json now = shape("metaspace-always");
    now["pre_tokenizer"]["prepend_scheme"] = prefix == false ? "never" : "always";
    CHECK(made_of(old).encode("a b") == made_of(now).encode("a b"));
  }
}

TEST_CASE("how a batch of texts is cut and filled up changes no single text") {
  json file = shape("gpt2");
  file["version"] = "1.0";
  file["truncation"] = {
      {"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  file["padding"] = {{"strategy", {{"Fixed", 9}}}, {"direction", "Right"}, {"pad_id", 0}};
  CHECK(made_of(file).encode("a b c d") == made_of(shape("gpt2")).encode("a b c d"));
}

TEST_CASE("a piece ends after each space, as in Gemma's files") {
  json file = shape("metaspace-always");
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}};
  file["normalizer"] = nullptr;
  const PreTokenizer cut(read_tokenizer_json(file.dump(), "f").cuts);
  using Pieces = std::vector<std::string_view>;
  // Those of tokenizers 0.23.
  CHECK(cut.split(" a  b c") == Pieces{" ", "a ", " ", "b ", "c"});
  CHECK(cut.split("   ") == Pieces{" ", " ", " "});
  CHECK(cut.split("a \nb c ") == Pieces{"a ", "\nb ", "c "});
  CHECK(cut.split("x\xE2\x96\x81y") == Pieces{"x\xE2\x96\x81y"});
  for (const json& pattern : {json{{"String", "_"}}, json{{"Regex", " "}}}) {
    json other = file;
    other["pre_tokenizer"]["pattern"] = pattern;
    CHECK(says(error_of(other), "pre_tokenizer.behavior is \"MergedWithPrevious\"", "of a space"));
  }
  file["pre_tokenizer"]["invert"] = true;
  CHECK(says(error_of(file), "pre_tokenizer.behavior is \"MergedWithPrevious\"", "of a space"));
}

TEST_CASE("ByteLevel splits by GPT-2's pattern unless the file says no, and is the last part") {
  const std::string text = "It's 12 cats";
  json file = shape("gpt2");
  const Ids split = made_of(file).encode(text);
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  CHECK(made_of(file).encode(text) == split);
  CHECK(read_tokenizer_json(file.dump(), "f").cuts.size() == 1);
  json parts = json::array({file["pre_tokenizer"], {{"type", "Digits"}}});
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", parts}};
  CHECK(says(error_of(file), "pretokenizers[0].type is \"ByteLevel\"", "nothing is supported after it"));
  std::swap(parts[0], parts[1]);
  file["pre_tokenizer"]["pretokenizers"] = parts;
  CHECK(error_of(file) == "");
  file["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true;
  CHECK(says(error_of(file), "pretokenizers[1].add_prefix_space is true", "not supported after another cut"));
  // tokenizers would put a space before each piece: "x\ny" of Llama 3 would be Ġx, Ġ, Ċ, Ġy.
  json llama = shape("llama-3");
  llama["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true;
  CHECK(says(error_of(llama), "pretokenizers[1].add_prefix_space is true", "after another cut"));
  llama["pre_tokenizer"]["pretokenizers"][1].erase("add_prefix_space");  // it has no default there
  CHECK(says(error_of(llama), "add_prefix_space"));
}

TEST_CASE(
    "a class that vocab.json and merges.txt have alone may be any of the GPT-2 kind, with or without Fast") {
  for (const std::string name : {"GPT2Tokenizer", "PreTrainedTokenizer", "TokenizersBackend"}) {
    for (const std::string& spelled : {name, name + "Fast"}) {
      TalesFolder folder;
      CHECK(folder.error_with("tokenizer_config.json", {{"tokenizer_class", spelled}}) == "");
    }
  }
}

TEST_CASE("added_tokens.json adds tokens, and ids that nothing names are the empty text") {
  TalesFolder folder;
  folder.write("added_tokens.json", R"({"<|user|>": 4096, "<|bot|>": 4099})");
  const Tokenizer tokenizer = folder.load();
  CHECK(tokenizer.vocab_size() == 4100);
  CHECK(tokenizer.encode_with_special_tokens("<|user|>Once<|bot|>") == Ids{4096, 2054, 4099});
  CHECK(tokenizer.decode(Ids{4096, 4097, 4098, 4099}) == "<|user|><|bot|>");
}

TEST_CASE(
    "an added token that ends the model's texts is text in a prompt, although its file does not flag it") {
  TalesFolder folder;
  folder.write("added_tokens.json", R"({"<|user|>": 4096, "END": 4097})");
  const Ids ends = {4097};
  const Tokenizer tokenizer = Tokenizer::load(folder.path(), ends);
  CHECK(tokenizer.encode("<|user|>") == Ids{4096});
  CHECK(tokenizer.encode("END").size() > 1);
  CHECK(tokenizer.encode_with_special_tokens("END") == ends);
}

TEST_CASE("a token that added_tokens.json adds can be the end, and is special then") {
  TalesFolder folder;
  folder.write("added_tokens.json", R"({"<|user|>": 4096, "<|im_end|>": 4097})");
  folder.write("special_tokens_map.json", R"({"eos_token": "<|im_end|>", "pad_token": "<|nowhere|>"})");
  CHECK(folder.load().encode("<|user|>") == Ids{4096});
  CHECK(folder.load().encode("<|im_end|>").size() > 1);
  CHECK(folder.load().encode_with_special_tokens("<|im_end|>") == Ids{4097});
}

TEST_CASE(
    "each key that names tokens makes them special, as texts or objects; a dictionary of them is passed "
    "over") {
  for (const char* key : {"bos_token", "eos_token", "additional_special_tokens", "extra_special_tokens"}) {
    const bool is_list = std::string(key).ends_with("tokens");
    for (const json& token : {json("<|user|>"), json{{"content", "<|user|>"}}}) {
      CAPTURE(key);
      TalesFolder folder;
      folder.write("added_tokens.json", R"({"<|user|>": 4096, "<|bot|>": 4097})");
      folder.write("tokenizer_config.json",
                   json{{key, is_list ? json{"<|endoftext|>", token} : token}}.dump());
      const Tokenizer tokenizer = folder.load();
      CHECK(tokenizer.encode("<|user|>").size() > 1);
      CHECK(tokenizer.encode_with_special_tokens("<|user|>") == Ids{4096});
      CHECK(tokenizer.encode("<|bot|>") == Ids{4097});
    }
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    TalesFolder folder;
    folder.write("added_tokens.json", R"({"<|user|>": 4096})");
    CHECK(folder.error_with("tokenizer_config.json", {{key, {{"image_token", "<|user|>"}}}}) == "");
    CHECK(folder.load().encode("<|user|>") == Ids{4096});
  }
}

TEST_CASE("a space in front is that of tokenizer_config.json after GPT-2's pattern, and elsewhere no other") {
  struct Shape {
    std::string name;
    bool has_space, may_change;
  };
  for (const Shape& one :
       {Shape{"gpt2", false, true}, Shape{"pythia", false, true}, Shape{"prefix-space", true, true},
        Shape{"llama-2", true, false}, Shape{"smollm2", false, false}, Shape{"metaspace-always", true, false},
        Shape{"metaspace-first", true, false}, Shape{"metaspace-never", false, false}}) {
    if (!has_nfc() && shape(one.name).dump().find("\"NFC\"") != std::string::npos) continue;
    for (const json& wanted : {json(nullptr), json(false), json(true)}) {
      CAPTURE(one.name);
      CAPTURE(wanted.dump());
      TemporaryFolder folder;
      folder.write("tokenizer.json", slurp(kTokenizers / (one.name + ".json")));
      folder.write("tokenizer_config.json", json{{"add_prefix_space", wanted}}.dump());
      if (!one.may_change && wanted == !one.has_space) {
        CHECK(says(error_message([&] { Tokenizer::load(folder.path()); }), "tokenizer_config.json",
                   "add_prefix_space is " + wanted.dump(), "and tokenizer.json differs"));
        continue;
      }
      const Tokenizer tokenizer = Tokenizer::load(folder.path());
      std::string bytes;
      for (const int id : tokenizer.encode("a")) bytes += tokenizer.bytes(id);
      CHECK(bytes == ((wanted.is_null() ? one.has_space : wanted == true) ? " a" : "a"));
    }
  }
}

TEST_CASE("spaces and punctuation stay unchanged if a file requests their clean-up") {
  TalesFolder folder;
  folder.write("tokenizer_config.json", R"({"clean_up_tokenization_spaces": true})");
  const Tokenizer tokenizer = folder.load();
  CHECK(tokenizer.decode(tokenizer.encode("x != y , z .")) == "x != y , z .");
}

TEST_CASE("the token of each byte below 128 is that character, from 0 on") {
  const Tokenizer tokenizer = made_of(shape("llama-2"));
  const int first = 3;  // <0x00>
  for (int byte = 0; byte < 128; ++byte) {
    CAPTURE(byte);
    // After another one: a space at the beginning of a text is dropped.
    CHECK(tokenizer.decode_whole(Ids{first + 'a', first + byte}) ==
          std::string{'a', static_cast<char>(byte)});
  }
}

TEST_CASE("a broken run of byte tokens streams as U+FFFD, and a whole one as its character") {
  const Tokenizer tokenizer = made_of(shape("llama-2"));
  const int first = 3;  // <0x00>
  StreamDecoder decoder(tokenizer);
  CHECK(decoder.push(first + 0xE4) == "");
  CHECK(decoder.push(first + 0xB8) == "");
  CHECK(decoder.push(first + 0xAD) == "\u4E2D");
  CHECK(decoder.push(first + 0xE4) == "");
  CHECK(decoder.push(first + 'a') ==
        "\uFFFD"
        "a");
  CHECK(decoder.push(first + 0xF0) == "");
  CHECK(decoder.finish() == "\uFFFD");
}

TEST_CASE("invalid UTF-8 is not lost if the vocabulary has its bytes") {
  for (const char* name : {"gpt2", "llama-3", "llama-2", "metaspace-first"}) {
    CAPTURE(name);
    const Tokenizer tokenizer = made_of(shape(name));
    for (const std::string text : {"a\xFFz", "\xC3", "\xE2\x82 x", "\xF0\x9F\x98", "x\xED\xA0\x80"}) {
      std::string bytes;
      for (const int id : tokenizer.encode(text)) bytes += tokenizer.bytes(id);
      CHECK((bytes == text || bytes == " " + text));
    }
  }
}

TEST_CASE("bytes that a vocabulary lacks are its unknown token, one for each or one for all side by side") {
  TokenizerDescription description;
  description.pieces = {"a", "?"};
  const auto spelled = [&] {
    Ids ids;
    byte_level(description)->spell("aXYaX", ids);
    return ids;
  };
  CHECK(spelled() == Ids{0, 0});
  description.unknown = 1;
  CHECK(spelled() == Ids{0, 1, 1, 0, 1});
  description.fuse_unknown = true;
  CHECK(spelled() == Ids{0, 1, 0, 1});
}

TEST_CASE("ten megabytes of spaces are split by a pattern that looks back over all of them") {
  const Tokenizer tokenizer = made_of(shape("llama-3"));
  std::string bytes;
  const std::string text = std::string(10'000'000, ' ') + "x";
  for (const int id : tokenizer.encode(text)) bytes += tokenizer.bytes(id);
  CHECK(bytes == text);
}

TEST_CASE("a long text of any shape is encoded in near-linear time") {
  // Nothing here measures: with quadratic work this test would not come to an end.
  constexpr std::size_t kSize = 300'000;
  std::string marks = "a", spaces, tags, letters;
  while (marks.size() < kSize) marks += "\u0301\u0316";
  while (tags.size() < kSize) tags += "<|endoftext";
  while (letters.size() < kSize) letters += static_cast<char>('a' + letters.size() * letters.size() % 26);
  for (const char* name : {"pythia", "qwen2", "flags", "llama-2", "metaspace-always"}) {
    CAPTURE(name);
    if (!has_nfc() && shape(name).dump().find("\"NFC\"") != std::string::npos) continue;
    const Tokenizer tokenizer = made_of(shape(name));
    for (const std::string& text : {marks, std::string(kSize, ' '), tags, letters}) {
      CHECK(!tokenizer.encode_with_special_tokens(text).empty());
    }
  }
}

TEST_CASE("a tokenizer of another type is refused with the file, the key and the value") {
  const std::string file = "some/tokenizer.json";
  for (const char* type : {"WordPiece", "Unigram", "WordLevel"}) {
    CHECK(says(error_with("gpt2", "/model/type", type), file, "model.type", type, "only BPE is supported"));
  }
  for (const char* type : {"NFKC", "NFD", "Lowercase", "StripAccents", "Precompiled", "Strip"}) {
    CHECK(says(error_with("gpt2", "/normalizer", {{"type", type}}), file, "normalizer.type", type));
  }
  for (const char* type : {"Punctuation", "Whitespace", "BertPreTokenizer", "UnicodeScripts"}) {
    CHECK(says(error_with("gpt2", "/pre_tokenizer", {{"type", type}}), file, "pre_tokenizer.type", type));
  }
  for (const char* type : {"RobertaProcessing", "BertProcessing"}) {
    CHECK(says(error_with("gpt2", "/post_processor", {{"type", type}}), file, "post_processor.type", type));
  }
  for (const std::string type : {"WordPiece", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
    CHECK(says(error_with("gpt2", "/decoder", {{"type", type}}), file,
               "decoder.type is \"" + type + "\", and only ByteLevel is supported"));
  CHECK(says(error_with("gpt2", "/model/dropout", 0.1), file, "model.dropout is 0.1"));
  CHECK(says(error_with("gpt2", "/model/end_of_word_suffix", "</w>"), file, "end_of_word_suffix", "</w>"));
  CHECK(says(error_with("gpt2", "/model/continuing_subword_prefix", "##"), file,
             "model.continuing_subword_prefix is \"##\", and only an empty one is supported"));
  CHECK(error_with("gpt2", "/model/dropout", 0.0) == "");
  CHECK(says(error_with("gpt2", "/decoder", nullptr), file, "decoder is null, not ByteLevel"));
  CHECK(says(error_with("llama-2", "/decoder", nullptr), "without ByteFallback nothing is supported"));
  for (const auto& [part, type] : {std::pair{0, "ByteFallback"}, std::pair{1, "Fuse"}})
    CHECK(says(error_with("llama-2", fmt::format("/decoder/decoders/{}/type", part).c_str(), type),
               "and without ByteFallback and U+2581 nothing is supported"));
  CHECK(says(error_with("llama-2", "/decoder/decoders/2/type", "WordPiece"), "decoder.decoders[2].type",
             "only Replace, ByteFallback, Fuse, Strip and Metaspace"));
  CHECK(says(error_with("llama-2", "/decoder/decoders/0/pattern/String", "_"), "decoder.decoders[0].pattern",
             "and only U+2581 is supported"));
  for (const char* place : {"/decoder/decoders/0/content", "/decoder/decoders/3/content"})
    CHECK(says(error_with("llama-2", place, "_"), "content is \"_\", and only a space is supported"));
  for (const char* pattern : {"Regex", "String"})
    CHECK(says(error_with("llama-2", "/normalizer/normalizers/1/pattern", {{pattern, ""}}),
               "normalizer.normalizers[1].pattern", "and only a String can be replaced"));
  CHECK(says(error_with("metaspace-always", "/pre_tokenizer/replacement", "_"),
             "pre_tokenizer.replacement is \"_\", and only U+2581 is supported"));
  CHECK(says(error_with("metaspace-always", "/pre_tokenizer/prepend_scheme", "last"),
             "pre_tokenizer.prepend_scheme is \"last\", not always, first or never"));
  CHECK(says(error_with("gpt2", "/model/unheard_of", true), file, "model.unheard_of is true"));
  CHECK(says(error_with("gpt2", "/unheard_of", 3), file, "unheard_of is 3"));
  CHECK(says(error_with("gpt2", "/model/byte_fallback", true), file, "model.byte_fallback is true"));
  CHECK(says(error_with("llama-2", "/model/byte_fallback", false), file, "model.byte_fallback is false"));
  CHECK(says(error_with("llama-3", "/pre_tokenizer/pretokenizers/0/behavior", "MergedWithPrevious"), file,
             "pre_tokenizer.pretokenizers[0].behavior", "MergedWithPrevious"));
  CHECK(says(error_with("llama-3", "/pre_tokenizer/pretokenizers/0/behavior", "Removed"), "Removed"));
  CHECK(
      says(error_with("llama-3", "/pre_tokenizer/pretokenizers/1/type", "Metaspace"), "Metaspace", "alone"));
  CHECK(says(error_with("llama-3", "/post_processor/single/1", {{"SpecialToken", {{"id", "<|begin|>"}}}}),
             file, "post_processor.single[1].SpecialToken.id"));
}

TEST_CASE("a pattern that PCRE2 refuses, or interprets differently, is an error with the pattern") {
  const auto error = [](const char* pattern) {
    return error_with("llama-3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", pattern);
  };
  CHECK(error(R"(\p{L}+|\s+(?!\S)|[^\s\w-]|(?:a|b)?+)") == "");
  for (const char* pattern : {"(", "[a", "a{3,1}", "\\p{Nothing}", "(?<=a*)b"}) {
    CAPTURE(pattern);
    CHECK(says(error(pattern), "the pattern", "at byte"));
  }
  for (const char* pattern : {"a\\", "\\h", "\\R", "\\K", "\\1", "\\v", "[\\S]", "[a[b]]", "[a&&b]", "^a",
                              "a$", "(*UTF)a", "(?m)a", "(?C1)a", "(?R)", "[]a]", "[^]a]"}) {
    CAPTURE(pattern);
    CHECK(says(error(pattern), "the pattern", "is refused"));
  }
  CHECK(says(error(""), "pattern", "empty"));
}

TEST_CASE("a broken tokenizer.json is an error with the file and the place") {
  const std::string file = "some/tokenizer.json";
  CHECK(says(error_message([] { read_tokenizer_json("{\"model\": ", "some/tokenizer.json"); }), file,
             "not valid JSON"));
  CHECK(says(error_of(json::array()), file, "an array"));
  CHECK(says(error_of(json::object()), file, "model is null"));
  CHECK(says(error_with("gpt2", "/model", 7), file, "model is 7, not an object"));
  CHECK(says(error_with("gpt2", "/model/vocab", json::array()), file, "model.vocab is an array"));
  CHECK(says(error_with("gpt2", "/model/vocab/a", 5), file, "both have the id 5"));
  for (const json& id : {json(-1), json("x"), json(1.5), json(1 << 20), json(1e300), json(nullptr)}) {
    CHECK(says(error_with("gpt2", "/model/vocab/a", id), file, "the token \"a\" has the id " + id.dump(),
               "not an integer from 0 to 1048575"));
    CHECK(says(error_with("gpt2", "/added_tokens/0/id", id), file, "added_tokens[0].id is " + id.dump(),
               "not an integer from 0 to 1048575"));
  }
  CHECK(says(error_with("gpt2", "/model/merges", "a b"), file, "model.merges is \"a b\", not a list"));
  CHECK(
      says(error_with("gpt2", "/model/merges/3", "ab"), file, "model.merges[3] is \"ab\", without a space"));
  CHECK(says(error_with("gpt2", "/model/merges/3", "nothing here"), file, "model.merges[3]",
             "not in the vocabulary"));
  CHECK(
      says(error_with("qwen2", "/model/merges/3", json::array({"a"})), file, "model.merges[3] is an array"));
  CHECK(says(error_with("qwen2", "/model/merges/3", json::array({"a", 3})), file,
             "model.merges[3] is an array"));
  CHECK(error_with("qwen2", "/model/merges/3", shape("qwen2")["model"]["merges"][2]) == "");
  CHECK(says(error_with("gpt2", "/model/unk_token", "nothing"), file, "model.unk_token",
             "not in the vocabulary"));
  CHECK(says(error_with("gpt2", "/added_tokens/0/id", 5), file,
             "\"<|endoftext|>\" has the id 5, which is that of"));
  CHECK(says(error_with("gpt2", "/added_tokens/0/content", ""), file, "added_tokens[0].content", "empty"));
  CHECK(
      says(error_with("gpt2", "/added_tokens/0/special", "yes"), file, "added_tokens[0].special is \"yes\""));
  CHECK(says(error_with("gpt2", "/added_tokens", 3), file, "added_tokens is 3, not a list"));
  for (const char* byte : {"<0x00>", "<0x41>", "<0xFF>"}) {
    json file_without = shape("llama-2");
    file_without["model"]["vocab"].erase(byte);
    CHECK(says(error_of(file_without), byte, "all 256"));
  }
}

TEST_CASE("a fault in a folder's other files is an error with file, key and value") {
  TalesFolder folder;
  const char* config = "tokenizer_config.json";
  CHECK(says(folder.error_with(config, {{"eos_token", "<|nowhere|>"}}), config,
             "eos_token is \"<|nowhere|>\""));
  CHECK(says(folder.error_with(config, {{"add_bos_token", true}}), config, "add_bos_token is true",
             "no bos_token"));
  CHECK(says(folder.error_with(config, {{"add_bos_token", 1}}), config, "add_bos_token is 1"));
  CHECK(says(folder.error_with(config, {{"add_eos_token", true}}), config, "add_eos_token is true"));
  for (const std::string key : {"x", "", "-1", "5x", "1048576", "99999999999"}) {
    CHECK(says(folder.error_with(config, {{"added_tokens_decoder", {{key, {}}}}}), config,
               "added_tokens_decoder has the key \"" + key + "\", not an integer from 0 to 1048575"));
  }
  CHECK(says(folder.error_with(config, {{"added_tokens_decoder", {{"5", {{"content", "new"}}}}}}), config,
             "\"new\" has the id 5, which is that of \"&\""));
  CHECK(
      says(folder.error_with(config, {{"tokenizer_class", "WhisperTokenizer"}}), config, "WhisperTokenizer"));
  CHECK(says(folder.error_with(config, json::array()), config, "an array"));
  std::filesystem::remove(folder.path() / config);
  CHECK(says(folder.error_with("added_tokens.json", {{"a", -1}}), "added_tokens.json", "a is -1"));
  CHECK(says(folder.error_with("added_tokens.json", {{"new", 4095}}), "added_tokens.json",
             "\"<|endoftext|>\""));
}

TEST_CASE("a folder with SentencePiece's own file alone gets a list of readable files") {
  TemporaryFolder folder;
  folder.write("tokenizer.model", "x");
  CHECK(says(error_message([&] { Tokenizer::load(folder.path()); }), "tokenizer.model", "tokenizer.json"));
}

TEST_CASE("vocab.json and merges.txt of Qwen's class are split by Qwen's pattern") {
  if (!has_nfc()) return;
  for (const char* name : {"Qwen2Tokenizer", "Qwen2TokenizerFast"}) {
    TalesFolder folder;
    folder.write("tokenizer_config.json", json{{"tokenizer_class", name}}.dump());
    CHECK(folder.load().encode("12").size() == 2);
    CHECK(folder.load().encode("e\u0301") == folder.load().encode("\u00E9"));
  }
}

TEST_CASE("an empty text stays empty, whatever is put in front of others") {
  const Normalizer normalizer(
      {{Normalization::Kind::kReplace, "x", ""}, {Normalization::Kind::kPrepend, "", "_"}});
  CHECK(normalizer.normalize("xax") == "_a");
  CHECK(normalizer.normalize("xx") == "");
  CHECK(normalizer.normalize("") == "");
}

TEST_CASE("normal form C has the marks of every letter in their order, and one character for what has one") {
  if (!has_nfc()) return;
  const std::string acute = "\u0301", grave = "\u0300", dot_below = "\u0323";
  CHECK(to_nfc("e" + acute) == "\u00E9");
  CHECK(to_nfc("a" + acute + dot_below) == "\u1EA1" + acute);  // what is below comes first
  CHECK(to_nfc("a" + acute + dot_below + " e" + acute + dot_below + " o" + acute + dot_below) ==
        "\u1EA1" + acute + " \u1EB9" + acute + " \u1ECD" + acute);
  CHECK(to_nfc("a" + acute + grave) == "\u00E1" + grave);  // of marks in one place none passes another
  CHECK(to_nfc("a" + grave + acute) == "\u00E0" + acute);
  CHECK(to_nfc("\u1100\u1161\u11A8") == "\uAC01");
  // U+11A7 is no final consonant, and composes with nothing.
  CHECK(to_nfc("\u1100\u1161\u11A7") == "\uAC00\u11A7");
  CHECK(to_nfc("\uAC00\u11A7\u11A7\u11A8" + acute) == "\uAC00\u11A7\u11A7\u11A8" + acute);
  CHECK(to_nfc("\u11A7" + acute + dot_below + "e" + acute) == "\u11A7" + dot_below + acute + "\u00E9");
  CHECK(to_nfc("\u0958") == "\u0915\u093C");  // one of the characters that are not put together again
}

TEST_CASE("a single word has no character of words next to it, as Rust's regular expressions define them") {
  TokenizerDescription description = read_tokenizer_json(slurp(kTokenizers / "flags.json"), "flags");
  const auto found = std::ranges::find(description.added, "word", &AddedToken::content);
  REQUIRE(found != description.added.end());
  REQUIRE(found->single_word);
  const Tokenizer tokenizer(description, "flags");
  const auto is_found = [&](const std::string& text) {
    return std::ranges::count(tokenizer.encode(text), found->id) == 1;
  };
  for (const std::string other :
       {"\u00BD", "\u00B2", "\u2460", " ", "-", "\u20AC",  // a half, superscript 2, 1 in a circle
        "\xFF", "\xC3", "\xE2\x82"}) {                     // bytes of no character
    CAPTURE(other);
    CHECK(is_found(other + "word"));
    CHECK(is_found("word" + other));
  }
  for (const std::string of_word : {"\u2163", "\u24B6", "\u24E9", "\u200C", "\u200D", "_", "\u00E9", "\u0301",
                                    "\u0663", "\u3007", "\u00AA", "\u203F"}) {
    CAPTURE(of_word);
    CHECK_FALSE(is_found(of_word + "word"));
    CHECK_FALSE(is_found("word" + of_word));
  }
}

TEST_CASE("a word of SentencePiece's vocabulary is one token whatever the merges are, if the file says so") {
  json file = shape("metaspace-first");
  file["model"]["ignore_merges"] = true;
  file["model"]["vocab"]["\u2581zebra"] = 589;
  CHECK(made_of(file).encode("zebra") == Ids{589});
  CHECK(made_of(file).encode_with_special_tokens("<s> zebra") == Ids{1, 589});
  CHECK(made_of(file).encode("zebra zebra") ==
        Ids{370, 341, 320, 317, 333, 316, 370, 341, 320, 317, 333, 316});
}
