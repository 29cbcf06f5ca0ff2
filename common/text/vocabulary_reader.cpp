#include "common/text/vocabulary_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/error.h"
#include "common/base/json_file.h"
#include "common/text/byte_alphabet.h"
#include "common/text/pre_tokenizer.h"

namespace staircase {

namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

WrittenTokens read_vocabulary(std::string_view vocab_json, const std::string& path) {
  const nlohmann::json object = parse_json_object(vocab_json, path);
  WrittenTokens tokens;
  tokens.reserve(object.size());
  std::vector<const std::string*> owner(object.size());  // by id; as many ids as tokens, so none is missing
  for (const auto& [written, id] : object.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= object.size()) {
      throw Error("{}: the token {} has the id {}, not an integer from 0 to {}", path, quote(written),
                  shown(id), object.size() - 1);
    }
    const auto [entry, is_new] = tokens.emplace(written, id.get<int>());
    const std::string*& first = owner[id.get<std::size_t>()];
    if (first) {
      throw Error("{}: the tokens {} and {} both have the id {}", path, quote(*first), quote(written),
                  entry->second);
    }
    first = &entry->first;
  }
  return tokens;
}

/// Reads one merge per line, "left right", in the order in which they were learnt. The first line may name a
/// version.
void read_merges(std::string_view text, const std::string& path, MergeReader& merges) {
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 && line.starts_with("#version")) continue;
    if (line.empty() && text.empty()) break;

    const std::size_t space = line.find(' ');
    if (space == 0 || space >= line.size() - 1 || line.find(' ', space + 1) != line.npos) {
      throw Error("{}, line {}: {} is not two tokens with one space between them", path, number, quote(line));
    }
    merges.add(std::string(line.substr(0, space)), std::string(line.substr(space + 1)),
               [&] { return fmt::format("{}, line {}", path, number); });
  }
}

/// Throws Error unless each of the 256 bytes has a token, as in every file of GPT-2's kind.
void check_bytes(const WrittenTokens& tokens, const std::string& path) {
  const ByteAlphabet alphabet;
  std::vector<bool> known(256);
  for (const auto& [written, token] : tokens) {
    const auto bytes = alphabet.read(written);
    if (!bytes) throw Error("{}: the token {} has a character that stands for no byte", path, quote(written));
    if (bytes->size() == 1) known[static_cast<unsigned char>(bytes->front())] = true;
  }
  const auto missing = std::find(known.begin(), known.end(), false) - known.begin();
  if (missing < 256) {
    throw Error("{} has no token for the byte 0x{:02x}; a byte-level vocabulary has all 256", path, missing);
  }
}

}  // namespace

void MergeReader::add(const std::string& left, const std::string& right, const Place& place) {
  const auto token = [&](const std::string& written) {
    const auto found = tokens_.find(written);
    if (found != tokens_.end()) return found->second;
    throw Error("{}: the token {} is not in the vocabulary", place(), quote(written));
  };
  const TokenizerDescription::Merge merge{token(left), token(right), token(left + right), rank_++};
  const std::uint64_t pair =
      std::uint64_t{static_cast<std::uint32_t>(merge.left)} << 32 | static_cast<std::uint32_t>(merge.right);
  const auto [known, is_new] = place_of_.emplace(pair, merges_.size());
  if (is_new) {
    merges_.push_back(merge);
  } else {
    merges_[known->second] = merge;
  }
}

TokenizerDescription read_vocab_and_merges(std::string_view vocab_json, std::string_view merges_txt,
                                           const std::string& vocab_path, const std::string& merges_path) {
  const WrittenTokens tokens = read_vocabulary(vocab_json, vocab_path);
  check_bytes(tokens, vocab_path);
  TokenizerDescription description;
  description.pieces.resize(tokens.size());
  for (const auto& [written, token] : tokens) description.pieces[static_cast<std::size_t>(token)] = written;
  const auto end = tokens.find(std::string(kEndOfText));
  if (end != tokens.end())
    description.added.push_back({.id = end->second, .content = end->first, .special = true});
  description.cuts = {gpt2_cut()};
  MergeReader merges(tokens, description.merges);
  read_merges(merges_txt, merges_path, merges);
  return description;
}

}  // namespace staircase
