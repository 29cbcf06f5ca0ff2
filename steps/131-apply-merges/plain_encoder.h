// Turns a text into ids: applies the vocabulary's merges in the order in which they were learnt.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/text/tokenizer.h"
#include "merges.h"

namespace staircase {

/// Encodes texts for vocabularies in which an earlier merge has a smaller id, as in those of GPT-2 and
/// Llama 3.
class PlainEncoder {
 public:
  /// Throws Error if one of the 256 bytes is not a token.
  explicit PlainEncoder(const Tokenizer& tokenizer) {
    for (int id = 0; id < tokenizer.vocab_size(); ++id)
      ids_.try_emplace(std::string(tokenizer.bytes(id)), id);
    for (int byte = 0; byte < 256; ++byte)
      if (!ids_.contains(std::string(1, static_cast<char>(byte))))
        throw Error("this step needs a vocabulary of bytes, and this one has no token for the byte {}", byte);
  }

  std::vector<int> encode(std::string_view text) const {
    std::vector<int> ids;
    for (const std::string_view word : PreTokenizer({gpt2_cut()}).split(text))
      for (const std::string& token : merged(word)) ids.push_back(ids_.at(token));
    return ids;
  }

 private:
  /// The tokens of a word: of all pairs of neighbours that form a token, the one with the smallest id is
  /// merged first, and of several the leftmost.
  std::vector<std::string> merged(std::string_view word) const {
    std::vector<std::string> tokens;
    for (const char byte : word) tokens.emplace_back(1, byte);
    while (true) {
      std::optional<std::pair<int, std::size_t>> first;  // the id, and where the pair begins
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
        const auto known = ids_.find(tokens[i] + tokens[i + 1]);
        if (known != ids_.end() && (!first || known->second < first->first)) first = {known->second, i};
      }
      if (!first) return tokens;
      const auto left = tokens.begin() + std::ptrdiff_t(first->second);
      *left += *(left + 1);
      tokens.erase(left + 1);
    }
  }

  std::unordered_map<std::string, int> ids_;  // by the bytes of the token
};

/// The ids of a prompt, with the begin-of-text token in front if the model's texts have one.
inline std::vector<int> plain_prompt(const std::string& text, const Tokenizer& tokenizer,
                                     const std::filesystem::path& /*model*/) {
  return tokenizer.with_begin(PlainEncoder(tokenizer).encode(text));
}

}  // namespace staircase
