#include "common/text/added_tokens.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/text/pre_tokenizer.h"
#include "common/text/utf8.h"

namespace staircase {

namespace {

constexpr int kNone = -1;

std::uint64_t key(int node, char byte) {
  return static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}

/// A set of characters, by its escape in patterns.
class CharacterClass {
 public:
  explicit CharacterClass(const char* escape)
      : matches_({Cut{.pattern = escape, .literal = false, .drops_the_rest = true}}) {}

  bool has(std::string_view character) const {
    return !character.empty() && first_utf8_run(character).valid && !matches_.split(character).empty();
  }

 private:
  PreTokenizer matches_;
};

bool is_space(std::string_view character) {
  static const CharacterClass spaces("\\s");
  return spaces.has(character);
}

bool is_of_word(std::string_view character) {
  // The definition of Rust's regex crate, which Hugging Face's tokenizers uses here, though not in patterns.
  static const CharacterClass of_words(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])");
  return of_words.has(character);
}

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

std::string_view first_character(std::string_view text) {
  std::size_t length = text.empty() ? 0 : 1;
  while (length < text.size() && continues_character(text[length])) ++length;
  return text.substr(0, length);
}

std::string_view last_character(std::string_view text) {
  std::size_t begin = text.empty() ? 0 : text.size() - 1;
  while (begin > 0 && continues_character(text[begin])) --begin;
  return text.substr(begin);
}

/// The number of bytes of white space at the beginning of a text, and at its end.
std::size_t spaces_at_begin(std::string_view text) {
  const std::size_t size = text.size();
  while (is_space(first_character(text))) text.remove_prefix(first_character(text).size());
  return size - text.size();
}

std::size_t spaces_at_end(std::string_view text) {
  const std::size_t size = text.size();
  while (is_space(last_character(text))) text.remove_suffix(last_character(text).size());
  return size - text.size();
}

}  // namespace

bool looks_like_marker(std::string_view content) {
  return content.size() > 2 && ((content.front() == '<' && content.back() == '>') ||
                                (content.front() == '[' && content.back() == ']'));
}

bool is_marker(const AddedToken& token) {
  constexpr std::string_view kInAnswers[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
  const bool in_answers = std::ranges::find(kInAnswers, token.content) != std::end(kInAnswers);
  return token.special || (looks_like_marker(token.content) && !in_answers);
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), token_at_{kNone} {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    int node = 0;
    for (const char byte : tokens_[i].content) {
      const auto [child, is_new] = children_.try_emplace(key(node, byte), static_cast<int>(token_at_.size()));
      if (is_new) token_at_.push_back(kNone);
      node = child->second;
    }
    token_at_[static_cast<std::size_t>(node)] = static_cast<int>(i);
    begins_[static_cast<unsigned char>(tokens_[i].content.front())] = true;
  }
}

int AddedTokens::longest_at(std::string_view text, std::size_t at, const std::vector<bool>* own) const {
  int longest = kNone;
  bool all_own = true;
  for (int node = 0; at < text.size(); ++at) {
    all_own = all_own && (!own || (*own)[at]);
    const auto child = children_.find(key(node, text[at]));
    if (child == children_.end()) break;
    node = child->second;
    const int token = token_at_[static_cast<std::size_t>(node)];
    if (token != kNone && (all_own || !is_marker(tokens_[static_cast<std::size_t>(token)]))) longest = token;
  }
  return longest;
}

std::optional<AddedTokens::Found> AddedTokens::next(std::string_view text, std::size_t begin,
                                                    const std::vector<bool>* own) const {
  for (std::size_t at = begin; at < text.size(); ++at) {
    if (!begins_[static_cast<unsigned char>(text[at])]) continue;
    const int index = longest_at(text, at, own);
    if (index == kNone) continue;
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    const std::string_view before = text.substr(0, at), after = text.substr(at + token.content.size());
    if (token.single_word && (is_of_word(last_character(before)) || is_of_word(first_character(after)))) {
      at += token.content.size() - 1;  // ignores shorter tokens that begin here
      continue;
    }
    const std::size_t left = token.lstrip ? std::max(before.size() - spaces_at_end(before), begin) : at;
    const std::size_t right = at + token.content.size() + (token.rstrip ? spaces_at_begin(after) : 0);
    return Found{left, right, token.id};
  }
  return {};
}

}  // namespace staircase
