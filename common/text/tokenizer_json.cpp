// The file defines how a text becomes tokens as a chain of parts, each with a type: normalizer,
// pre_tokenizer, model, post_processor, decoder. The tests of https://github.com/huggingface/tokenizers
// define their meaning.
#include "common/text/tokenizer_json.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/error.h"
#include "common/text/added_token_reader.h"
#include "common/text/json_value.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/vocabulary_reader.h"

namespace staircase {

namespace {

using Alphabet = TokenizerDescription::Alphabet;

/// Reads a pattern: a plain text to find, or a regular expression.
Cut read_pattern(const JsonValue& pattern) {
  pattern.allow({"String", "Regex"});
  const bool literal = pattern["Regex"].is_null();
  return {.pattern = pattern[literal ? "String" : "Regex"].text(), .literal = literal};
}

void read_normalizer(const JsonValue& part, TokenizerDescription& description) {
  if (part.is_null()) return;
  const std::string& type = part["type"].text();
  if (type == "Sequence") {
    part.allow({"type", "normalizers"});
    for (const JsonValue& one : part["normalizers"].elements()) read_normalizer(one, description);
  } else if (type == "NFC") {
    part.allow({"type"});
    description.normalizations.push_back({Normalization::Kind::kNfc});
  } else if (type == "Prepend") {
    part.allow({"type", "prepend"});
    description.normalizations.push_back({Normalization::Kind::kPrepend, "", part["prepend"].text()});
  } else if (type == "Replace") {
    part.allow({"type", "pattern", "content"});
    const Cut from = read_pattern(part["pattern"]);
    if (!from.literal || from.pattern.empty()) part["pattern"].refuse("and only a String can be replaced");
    description.normalizations.push_back(
        {Normalization::Kind::kReplace, from.pattern, part["content"].text()});
  } else {
    part["type"].refuse("and only NFC, Prepend and Replace are supported");
  }
}

/// Reads a Split. It splits a text at each match, and the match becomes a piece; or it keeps only the
/// matches.
Cut read_split(const JsonValue& part) {
  part.allow({"type", "pattern", "behavior", "invert"});
  Cut cut = read_pattern(part["pattern"]);
  if (cut.pattern.empty()) part["pattern"].refuse("which is empty");
  const std::string& behavior = part["behavior"].text();
  const bool inverted = part["invert"].boolean(false);
  cut.drops_the_rest = behavior == "Removed" && inverted;
  // Gemma's form: a piece ends after each space.
  if (behavior == "MergedWithPrevious" && !inverted && cut.literal && cut.pattern == " ")
    return {.pattern = "[^ ]*+ |[^ ]++"};
  if (behavior != "Isolated" && !cut.drops_the_rest) {
    part["behavior"].refuse(
        "and only Isolated, Removed where it is inverted, and MergedWithPrevious of a space are supported");
  }
  return cut;
}

void read_byte_level(const JsonValue& part, TokenizerDescription& description) {
  part.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  description.alphabet = Alphabet::kBytes;
  if (part["add_prefix_space"].boolean(true)) {
    if (!description.cuts.empty())
      part["add_prefix_space"].refuse("which is not supported after another cut");
    description.space_before = SpaceBefore::kEach;
  }
  if (part["use_regex"].boolean(true)) description.cuts.push_back(gpt2_cut());
}

void read_metaspace(const JsonValue& part, TokenizerDescription& description) {
  part.allow({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  if (part["replacement"].text() != kSpaceMark) part["replacement"].refuse("and only U+2581 is supported");
  description.marks_spaces = true;
  const JsonValue scheme = part["prepend_scheme"];
  const std::string where =
      scheme.is_null() ? part["add_prefix_space"].boolean(true) ? "always" : "never" : scheme.text();
  if (where == "always") {
    description.space_before = SpaceBefore::kEach;
  } else if (where == "first") {
    description.space_before = SpaceBefore::kFirst;
  } else if (where != "never") {
    scheme.refuse("not always, first or never");
  }
  if (part["split"].boolean(true)) description.cuts.push_back({R"(\x{2581}[^\x{2581}]*|[^\x{2581}]+)"});
}

/// The parts of a Sequence, or the single part.
std::vector<JsonValue> parts_of(const JsonValue& part, const char* key) {
  if (part.is_null()) return {};
  if (part["type"].text() != "Sequence") return {part};
  part.allow({"type", key});
  return part[key].elements();
}

void read_pre_tokenizer(const JsonValue& pre_tokenizer, TokenizerDescription& description) {
  description.alphabet = Alphabet::kCharacters;
  const std::vector<JsonValue> parts = parts_of(pre_tokenizer, "pretokenizers");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const JsonValue& part = parts[i];
    const std::string& type = part["type"].text();
    if (type == "ByteLevel") {
      if (i + 1 < parts.size()) part["type"].refuse("and nothing is supported after it");
      read_byte_level(part, description);
    } else if (type == "Split") {
      description.cuts.push_back(read_split(part));
    } else if (type == "Digits") {
      part.allow({"type", "individual_digits"});
      description.cuts.push_back({part["individual_digits"].boolean(false) ? R"(\p{N})" : R"(\p{N}+)"});
    } else if (type == "Metaspace") {
      if (parts.size() > 1) part["type"].refuse("and it is supported only alone");
      read_metaspace(part, description);
    } else {
      part["type"].refuse("and only ByteLevel, Split, Digits and Metaspace are supported");
    }
  }
}

WrittenTokens read_vocabulary(const JsonValue& vocab, TokenizerDescription& description) {
  WrittenTokens tokens;
  tokens.reserve(vocab.object().size());
  std::vector<bool> taken;
  for (const auto& [written, value] : vocab.object().items()) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kMostTokens) {
      throw Error("{}: the token {} has the id {}, not an integer from 0 to {}", vocab.file(), quote(written),
                  shown(value), kMostTokens - 1);
    }
    const int id = value.get<int>();
    const auto place = static_cast<std::size_t>(id);
    if (place >= taken.size()) {
      taken.resize(place + 1);
      description.pieces.resize(place + 1);
    }
    if (taken[place]) {
      throw Error("{}: the tokens {} and {} both have the id {}", vocab.file(),
                  quote(description.pieces[place]), quote(written), id);
    }
    taken[place] = true;
    description.pieces[place] = written;
    tokens.emplace(written, id);
  }
  return tokens;
}

/// Reads the merges. Each is a list of two tokens, or a text with a space between them.
void read_merges(const JsonValue& merges, const WrittenTokens& tokens, TokenizerDescription& description) {
  MergeReader reader(tokens, description.merges);
  if (!merges.json().is_array()) merges.refuse("not a list");
  for (std::size_t i = 0; i < merges.json().size(); ++i) {
    const nlohmann::json& merge = merges.json()[i];
    const auto place = [&] { return fmt::format("{}: {}[{}]", merges.file(), merges.path(), i); };
    if (merge.is_string()) {
      const std::string& both = merge.get_ref<const std::string&>();
      const std::size_t space = both.find(' ');
      if (space == both.npos)
        throw Error("{} is {}, without a space between two tokens", place(), quote(both));
      reader.add(both.substr(0, space), both.substr(space + 1), place);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      reader.add(merge[0].get<std::string>(), merge[1].get<std::string>(), place);
    } else {
      throw Error("{} is {}, not two tokens", place(), shown(merge));
    }
  }
}

void read_model(const JsonValue& model, TokenizerDescription& description) {
  if (model.is_null()) model.refuse("not an object");
  model.allow({"type", "vocab", "merges", "dropout", "unk_token", "continuing_subword_prefix",
               "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges"});
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model[key].is_null() && !model[key].text().empty())
      model[key].refuse("and only an empty one is supported");
  }
  if (!model["dropout"].is_null() && model["dropout"].json() != 0)
    model["dropout"].refuse("and only null is supported");
  const WrittenTokens tokens = read_vocabulary(model["vocab"], description);
  read_merges(model["merges"], tokens, description);
  description.ignore_merges = model["ignore_merges"].boolean(false);
  description.fuse_unknown = model["fuse_unk"].boolean(false);
  if (const JsonValue unknown = model["unk_token"]; !unknown.is_null()) {
    const auto found = tokens.find(unknown.text());
    if (found == tokens.end()) unknown.refuse("which is not in the vocabulary");
    description.unknown = found->second;
  }
  const bool byte_fallback = model["byte_fallback"].boolean(false);
  if (byte_fallback != (description.alphabet == Alphabet::kCharacters)) {
    model["byte_fallback"].refuse(byte_fallback ? "which is not supported beside ByteLevel"
                                                : "and without it only ByteLevel is supported");
  }
}

/// The id of a special token in a template.
int id_of(const JsonValue& processor, const std::string& name) {
  const std::vector<JsonValue> ids = processor["special_tokens"][name]["ids"].elements();
  if (ids.size() != 1) processor["special_tokens"][name]["ids"].refuse("not a list of one id");
  return ids.front().index(kMostTokens);
}

/// Reads the tokens that the file puts around a text. One token may precede the text; a token after it would
/// end the text before the model continues it.
void read_post_processor(const JsonValue& post_processor, TokenizerDescription& description) {
  for (const JsonValue& part : parts_of(post_processor, "processors")) {
    const std::string& type = part["type"].text();
    if (type == "ByteLevel") continue;  // changes only the reported positions of tokens in the text
    if (type != "TemplateProcessing")
      part["type"].refuse("and only ByteLevel and TemplateProcessing are supported");
    part.allow({"type", "single", "pair", "special_tokens"});
    bool text_seen = false;
    for (const JsonValue& item : part["single"].elements()) {
      if (item["SpecialToken"].is_null()) {
        text_seen = true;
      } else if (text_seen || description.begin) {
        item["SpecialToken"]["id"].refuse(text_seen ? "and no token is supported after the text"
                                                    : "and only one token is supported before the text");
      } else {
        description.begin = id_of(part, item["SpecialToken"]["id"].text());
      }
    }
  }
}

/// Checks the decoder. The alphabet already determines how tokens become text, so the file must not require
/// anything else.
void read_decoder(const JsonValue& decoder, TokenizerDescription& description) {
  const bool bytes = description.alphabet == Alphabet::kBytes;
  if (decoder.is_null())
    decoder.refuse(bytes ? "not ByteLevel" : "and without ByteFallback nothing is supported");
  bool marks = false, falls_back = false;
  for (const JsonValue& part : parts_of(decoder, "decoders")) {
    const std::string& type = part["type"].text();
    if (bytes ? type == "ByteLevel" : type == "Fuse") {
      continue;
    } else if (!bytes && type == "ByteFallback") {
      falls_back = true;
    } else if (!bytes && type == "Metaspace") {
      marks = true;
      const JsonValue scheme = part["prepend_scheme"];
      description.drops_first_space =
          scheme.is_null() ? part["add_prefix_space"].boolean(true) : scheme.text() != "never";
    } else if (!bytes && type == "Replace") {
      marks = true;
      if (read_pattern(part["pattern"]).pattern != kSpaceMark)
        part["pattern"].refuse("and only U+2581 is supported");
      if (part["content"].text() != " ") part["content"].refuse("and only a space is supported");
    } else if (!bytes && type == "Strip") {
      if (part["content"].text() != " ") part["content"].refuse("and only a space is supported");
      if (part["stop"].index(2) != 0) part["stop"].refuse("and only 0 is supported");
      description.drops_first_space = part["start"].index(2) == 1;
    } else {
      part["type"].refuse(bytes ? "and only ByteLevel is supported"
                                : "and only Replace, ByteFallback, Fuse, Strip and Metaspace are supported");
    }
  }
  if (!bytes && !(marks && falls_back))
    decoder.refuse("and without ByteFallback and U+2581 nothing is supported");
}

}  // namespace

TokenizerDescription read_tokenizer_json(std::string_view content, const std::string& file) {
  const nlohmann::json parsed = parse_json_object(content, file);
  const JsonValue all(parsed, file);
  all.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
             "post_processor", "decoder", "model"});
  TokenizerDescription description;
  if (!all["model"].is_null() && !all["model"]["type"].is_null() && all["model"]["type"].text() != "BPE") {
    all["model"]["type"].refuse("and only BPE is supported");
  }
  read_normalizer(all["normalizer"], description);
  read_pre_tokenizer(all["pre_tokenizer"], description);
  read_model(all["model"], description);
  read_post_processor(all["post_processor"], description);
  read_decoder(all["decoder"], description);
  if (!all["added_tokens"].is_null()) {
    for (const JsonValue& token : all["added_tokens"].elements()) {
      add_token(read_added_token(token, token["id"].index(kMostTokens)), file, description);
    }
  }
  return description;
}

}  // namespace staircase
