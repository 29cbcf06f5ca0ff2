// Byte-pair encoding: the most frequent pair of neighbouring tokens becomes one token, again and again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/message.h"
#include "common/text/pre_tokenizer.h"

namespace staircase {

/// Two tokens that become one, and how often they are neighbours in the text.
struct Merge {
  int left, right;
  std::int64_t count;
  bool operator==(const Merge&) const = default;
};

/// A word of the text, cut into tokens, and how often it occurs.
struct Word {
  std::vector<int> tokens;
  std::int64_t count;
};

/// The different words of a text, as GPT-2's pattern finds them. Each byte is a token, whose id is its value.
inline std::vector<Word> words_of(std::string_view text) {
  std::map<std::string_view, std::int64_t> counts;
  for (const std::string_view word : PreTokenizer({gpt2_cut()}).split(text)) ++counts[word];
  std::vector<Word> words;
  for (const auto& [word, count] : counts) {
    words.push_back({{}, count});
    for (const char byte : word) words.back().tokens.push_back(static_cast<unsigned char>(byte));
  }
  return words;
}

/// The most frequent pair of neighbours in the words, and of several the one with the smallest ids; nothing
/// if no pair occurs twice.
inline std::optional<Merge> most_frequent_pair(const std::vector<Word>& words) {
  std::map<std::pair<int, int>, std::int64_t> counts;
  for (const auto& [tokens, count] : words)
    for (std::size_t i = 1; i < tokens.size(); ++i) counts[{tokens[i - 1], tokens[i]}] += count;
  std::optional<Merge> best;
  for (const auto& [pair, count] : counts)
    if (count > (best ? best->count : 1)) best = {pair.first, pair.second, count};
  return best;
}

/// Replaces each pair of left and right by the token `id`, from the first token to the last.
inline void merge_pair(std::vector<int>& tokens, int left, int right, int id) {
  std::vector<int> merged;
  for (const int token : tokens) {
    const bool is_pair = token == right && !merged.empty() && merged.back() == left;
    if (is_pair) merged.pop_back();
    merged.push_back(is_pair ? id : token);
  }
  tokens = std::move(merged);
}

/// Learns at most `count` merges from the words, in order: merge i makes the token 256 + i. Also merges the
/// words themselves.
inline std::vector<Merge> learn_merges(std::vector<Word>& words, int count) {
  std::vector<Merge> merges;
  while (std::ssize(merges) < count) {
    const std::optional<Merge> best = most_frequent_pair(words);
    if (!best) break;
    for (Word& word : words) merge_pair(word.tokens, best->left, best->right, 256 + std::ssize(merges));
    merges.push_back(*best);
  }
  return merges;
}

/// Prints a line for each merge on standard error: the new id, how often it was found, and the two texts.
inline void show_merges(std::string_view text, int count) {
  std::vector<Word> words = words_of(text);
  std::vector<std::string> texts;  // of each token
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const auto& [left, right, found] : learn_merges(words, count)) {
    say(fmt::format("{:>6} {:>7} times  {} {}", texts.size(), found, in_json(texts[left]),
                    in_json(texts[right])));
    texts.push_back(texts[left] + texts[right]);
  }
  std::int64_t tokens = 0;
  for (const Word& word : words) tokens += word.count * std::ssize(word.tokens);
  say(fmt::format("{} bytes are {} tokens", text.size(), tokens));
}

}  // namespace staircase
