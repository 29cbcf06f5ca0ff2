#include "common/text/gguf_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "common/base/error.h"
#include "common/base/json_file.h"
#include "common/base/message.h"
#include "common/text/added_tokens.h"
#include "common/text/normalizer.h"
#include "common/text/pre_types.h"
#include "common/text/vocabulary_reader.h"

namespace staircase {

namespace {

enum TokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

class Describer {
 public:
  Describer(const GgufVocabulary& vocabulary, const std::string& file)
      : vocabulary_(vocabulary), file_(file) {}

  TokenizerDescription describe() {
    if (vocabulary_.tokens.size() > kMostTokens) {
      refuse("tokens", fmt::format("{} tokens", vocabulary_.tokens.size()),
             fmt::format("at most {}", kMostTokens));
    }
    read_tokens();
    if (vocabulary_.model == "gpt2") {
      read_byte_level();
    } else if (vocabulary_.model == "llama") {
      read_sentence_pieces();
    } else {
      refuse("model", quote(vocabulary_.model), "only \"gpt2\" and \"llama\" are supported");
    }
    find_markers();
    read_borders();
    return std::move(description_);
  }

 private:
  [[noreturn]] void refuse(const char* key, const std::string& value, const std::string& wanted) const {
    throw Error("{}: tokenizer.ggml.{} is {}, and {}", file_, key, value, wanted);
  }

  /// Whether the token has no meaning and only rounds up the number of tokens.
  bool is_filler(std::size_t token) const {
    return vocabulary_.tokens[token] == fmt::format("[PAD{}]", token);
  }

  int type_of(std::size_t token) const {
    if (is_filler(token)) return kUnused;  // some files type them as user-defined
    return vocabulary_.token_type.empty() ? kNormal : vocabulary_.token_type[token];
  }

  /// Whether the token marks the beginning or the end of a text.
  bool is_border(int id) const {
    return vocabulary_.bos_token_id == id || std::ranges::count(vocabulary_.end_ids, id) > 0;
  }

  void read_tokens() {
    const std::size_t size = vocabulary_.tokens.size();
    if (!vocabulary_.token_type.empty() && vocabulary_.token_type.size() != size) {
      refuse("token_type", fmt::format("{} numbers", vocabulary_.token_type.size()),
             fmt::format("there are {} tokens", size));
    }
    description_.pieces.resize(size);
    for (std::size_t token = 0; token < size; ++token) {
      const std::string& text = vocabulary_.tokens[token];
      const int type = type_of(token), id = static_cast<int>(token);
      if (type == kNormal || type == kByte) {
        description_.pieces[token] = text;
        if (type == kNormal) normal_.emplace(text, id);
      } else if (type == kUnused || text.empty()) {
        continue;  // no text is encoded to this token, and it decodes to the empty text
      } else {
        // Merges may also produce a token that is found before merging.
        if (type == kUserDefined && vocabulary_.model == "gpt2") normal_.emplace(text, id);
        description_.added.push_back(
            {.id = id, .content = text, .special = type != kUserDefined || is_border(id)});
      }
    }
  }

  void read_byte_level() {
    std::string pre = vocabulary_.pre;
    if (pre.empty()) {
      pre = "default";
      warn("{} names no tokenizer.ggml.pre; some texts may be split into different tokens than in training",
           file_);
    }
    const std::optional<PreType> type = pre_tokenizer_of(pre);
    if (!type) refuse("pre", quote(pre), "this pre-tokenizer is not supported");
    description_.cuts = type->cuts;
    description_.ignore_merges = type->ignore_merges;
    adds_begin_ = type->adds_begin;
    // No key states normal form C, but these architectures were trained with it.
    const bool nfc = type->nfc || vocabulary_.architecture == "gptneox" || vocabulary_.architecture == "olmo";
    if (nfc) description_.normalizations = {{Normalization::Kind::kNfc}};
    if (vocabulary_.add_space_prefix.value_or(false)) description_.space_before = SpaceBefore::kEach;

    MergeReader merges(normal_, description_.merges);
    for (std::size_t i = 0; i < vocabulary_.merges.size(); ++i) {
      const std::string& both = vocabulary_.merges[i];
      const auto place = [&] { return fmt::format("{}: tokenizer.ggml.merges[{}]", file_, i); };
      const std::size_t space = both.find(' ', 1);
      if (space == both.npos)
        throw Error("{} is {}, without a space between two tokens", place(), quote(both));
      merges.add(both.substr(0, space), both.substr(space + 1), place);
    }
  }

  /// Two neighbours merge if their text is a token. The token with the highest score comes first; among equal
  /// scores, the one with the lowest id.
  void read_sentence_pieces() {
    description_.alphabet = TokenizerDescription::Alphabet::kCharacters;
    adds_begin_ = true;
    if (vocabulary_.add_space_prefix.value_or(true)) {
      description_.normalizations.push_back({Normalization::Kind::kPrepend, "", std::string(kSpaceMark)});
      description_.drops_first_space = true;
    }
    description_.normalizations.push_back({Normalization::Kind::kReplace, " ", std::string(kSpaceMark)});
    const std::vector<float>& scores = vocabulary_.scores;
    if (scores.size() != vocabulary_.tokens.size()) {
      refuse("scores", fmt::format("{} numbers", scores.size()),
             fmt::format("there are {} tokens", vocabulary_.tokens.size()));
    }
    if (std::any_of(scores.begin(), scores.end(), [](float score) { return std::isnan(score); })) {
      refuse("scores", "nan for a token", "a score must be a number");
    }
    std::size_t longest = 0;
    for (const auto& [text, token] : normal_) longest = std::max(longest, text.size());
    lengths_.resize(longest + 1);
    for (const auto& [text, token] : normal_) lengths_[text.size()] = true;
    std::vector<int> by_score(scores.size());
    std::iota(by_score.begin(), by_score.end(), 0);
    std::stable_sort(by_score.begin(), by_score.end(), [&](int a, int b) {
      return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    for (std::size_t rank = 0; rank < by_score.size(); ++rank)
      add_merges_to(by_score[rank], static_cast<int>(rank));
  }

  void add_merges_to(int token, int rank) {
    const std::string& whole = vocabulary_.tokens[static_cast<std::size_t>(token)];
    const auto itself = normal_.find(whole);
    if (itself == normal_.end() || itself->second != token) return;
    for (std::size_t length = 1; length < whole.size(); ++length) {
      if (!lengths_[length] || !lengths_[whole.size() - length]) continue;  // skips most splits quickly
      const auto left = normal_.find(whole.substr(0, length)), right = normal_.find(whole.substr(length));
      if (left == normal_.end() || right == normal_.end()) continue;
      description_.merges.push_back({left->second, right->second, token, rank});
    }
  }

  /// Some files type markers as normal or unused, or state no types. A token with the form of a marker counts
  /// as a marker if no merge produces it, or if it marks the beginning or the end of a text.
  void find_markers() {
    const std::size_t size = vocabulary_.tokens.size();
    std::vector<bool> merged(size), found(size);
    for (const auto& merge : description_.merges) merged[static_cast<std::size_t>(merge.token)] = true;
    for (std::size_t token = 0; token < size; ++token) {
      const std::string& text = vocabulary_.tokens[token];
      const int type = type_of(token), id = static_cast<int>(token);
      const bool added = type == kUnknown || type == kControl || type == kUserDefined;
      if (added || is_filler(token) || text.starts_with("<0x") || !looks_like_marker(text)) continue;
      if (merged[token] && !is_border(id)) continue;
      found[token] = true;
      description_.pieces[token].clear();
      AddedToken& marker = description_.added.emplace_back(AddedToken{.id = id, .content = text});
      marker.special = is_marker(marker);
    }
    std::erase_if(description_.merges,
                  [&](const auto& merge) { return found[static_cast<std::size_t>(merge.token)]; });
  }

  int check_id(int id, const char* key) const {
    if (id >= 0 && static_cast<std::size_t>(id) < vocabulary_.tokens.size()) return id;
    refuse(key, std::to_string(id), fmt::format("there are {} tokens", vocabulary_.tokens.size()));
  }

  void read_borders() {
    if (vocabulary_.add_eos_token.value_or(false))
      refuse("add_eos_token", "true", "a text that ends cannot be continued");
    if (!vocabulary_.add_bos_token.value_or(adds_begin_)) return;
    if (!vocabulary_.bos_token_id) refuse("add_bos_token", "true", "no bos_token_id is named");
    description_.begin = check_id(*vocabulary_.bos_token_id, "bos_token_id");
  }

  const GgufVocabulary& vocabulary_;
  const std::string& file_;
  TokenizerDescription description_;
  WrittenTokens normal_;
  std::vector<bool> lengths_;  // by number of bytes: whether a normal token of SentencePiece has this length
  bool adds_begin_ = false;
};

}  // namespace

TokenizerDescription describe(const GgufVocabulary& vocabulary, const std::string& file) {
  return Describer(vocabulary, file).describe();
}

}  // namespace staircase
