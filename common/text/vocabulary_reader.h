// Reads vocabularies and merges in the form of vocab.json, merges.txt and tokenizer.json.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// More tokens than any vocabulary has. This limits the memory that a broken file can make us reserve.
constexpr int kMostTokens = 1 << 20;

using WrittenTokens = std::unordered_map<std::string, int>;  // as written in the files

/// Adds merges one by one, in the order in which they were learnt. If a merge is listed twice, the later
/// place counts, as in Hugging Face's tokenizers.
class MergeReader {
 public:
  MergeReader(const WrittenTokens& tokens, std::vector<TokenizerDescription::Merge>& merges)
      : tokens_(tokens), merges_(merges) {}

  /// Returns the place of a merge, for messages only.
  using Place = std::function<std::string()>;

  void add(const std::string& left, const std::string& right, const Place& place);

 private:
  const WrittenTokens& tokens_;
  std::vector<TokenizerDescription::Merge>& merges_;
  std::unordered_map<std::uint64_t, std::size_t> place_of_;  // the place of a pair in merges_
  int rank_ = 0;
};

/// Reads GPT-2's vocab.json and merges.txt. The paths are for error messages.
TokenizerDescription read_vocab_and_merges(std::string_view vocab_json, std::string_view merges_txt,
                                           const std::string& vocab_path, const std::string& merges_path);

}  // namespace staircase
