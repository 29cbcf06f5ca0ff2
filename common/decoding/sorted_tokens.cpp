#include "common/decoding/sorted_tokens.h"

#include <algorithm>

#include "common/text/code_points.h"

namespace staircase {

namespace {

std::vector<FlatTrie::Token> usable(const Tokenizer& tokenizer, const EndTokens& ends) {
  std::vector<bool> is_text(static_cast<std::size_t>(tokenizer.vocab_size()), true);
  for (const int marker : tokenizer.special_tokens()) is_text[static_cast<std::size_t>(marker)] = false;
  for (const int end : ends)
    if (end < tokenizer.vocab_size()) is_text[static_cast<std::size_t>(end)] = false;
  std::vector<FlatTrie::Token> tokens;
  for (int token = 0; token < tokenizer.vocab_size(); ++token) {
    const std::string_view bytes = tokenizer.bytes(token);
    if (is_text[static_cast<std::size_t>(token)] && !bytes.empty()) tokens.emplace_back(bytes, token);
  }
  return tokens;
}

std::vector<FlatTrie::Token> without_plain(std::vector<FlatTrie::Token> tokens) {
  std::erase_if(tokens, [](const FlatTrie::Token& token) { return SortedTokens::is_plain(token.first); });
  return tokens;
}

}  // namespace

FlatTrie::FlatTrie(std::vector<Token> tokens) {
  std::ranges::sort(tokens);
  std::vector<std::size_t> open;  // the nodes of the latest token's bytes
  const auto close = [&](std::size_t depth) {
    for (; open.size() > depth; open.pop_back()) nodes_[open.back()].end = nodes_.size();
  };
  std::string_view before;
  for (const auto& [bytes, id] : tokens) {
    close(static_cast<std::size_t>(std::ranges::mismatch(before, bytes).in1 - before.begin()));
    while (open.size() < bytes.size()) {
      const std::size_t depth = open.size();
      open.push_back(nodes_.size());
      nodes_.push_back({bytes[depth], depth, ids_.size(), 0});
    }
    ids_.push_back(static_cast<std::size_t>(id));
    depth_ = std::max(depth_, bytes.size());
    before = bytes;
  }
  close(0);
  nodes_.push_back({0, 0, ids_.size(), 0});
}

bool SortedTokens::is_plain(std::string_view bytes) {
  if (bytes.size() > kMaxPlainBytes) return false;
  while (!bytes.empty()) {
    const auto character = take_code_point(bytes);
    if (!character || *character < 0x20 || *character == '"' || *character == '\\') return false;
  }
  return true;
}

SortedTokens::SortedTokens(const Tokenizer& tokenizer, EndTokens ends)
    : tokenizer(&tokenizer),
      ends(std::move(ends)),
      all(usable(tokenizer, this->ends)),
      others(without_plain(usable(tokenizer, this->ends))),
      plain((static_cast<std::size_t>(tokenizer.vocab_size()) + 63) / 64) {
  for (const auto& [bytes, token] : usable(tokenizer, this->ends))
    if (is_plain(bytes)) plain[static_cast<std::size_t>(token) / 64] |= std::uint64_t(1) << token % 64;
}

}  // namespace staircase
