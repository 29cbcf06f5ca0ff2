#include "common/decoding/sorted_tokens.h"

#include <algorithm>
#include <map>

#include "common/text/code_points.h"

namespace staircase {

namespace {

std::vector<FlatTrie::Token> usable(const Tokenizer& tokenizer, const EndTokens& ends,
                                    const std::vector<int>& written) {
  std::vector<bool> is_text(static_cast<std::size_t>(tokenizer.vocab_size()), true);
  for (const int marker : tokenizer.special_tokens()) is_text[static_cast<std::size_t>(marker)] = false;
  for (const int marker : written) is_text[static_cast<std::size_t>(marker)] = true;
  for (const int end : ends)
    if (end < tokenizer.vocab_size()) is_text[static_cast<std::size_t>(end)] = false;
  std::vector<FlatTrie::Token> tokens;
  for (int token = 0; token < tokenizer.vocab_size(); ++token) {
    const std::string_view bytes = tokenizer.bytes(token);
    if (is_text[static_cast<std::size_t>(token)] && !bytes.empty()) tokens.emplace_back(bytes, token);
  }
  return tokens;
}

std::vector<FlatTrie::Token> those(std::vector<FlatTrie::Token> tokens, bool plain) {
  std::erase_if(tokens, [&](const FlatTrie::Token& t) { return SortedTokens::is_plain(t.first) != plain; });
  return tokens;
}

}  // namespace

FlatTrie::FlatTrie(std::vector<Token> tokens) {
  std::ranges::sort(tokens);
  std::vector<std::size_t> open;  // the nodes of the latest token's bytes
  // For each node, the characters of all continuations. A node within a character counts them as broken.
  std::vector<CharacterSet> sets;
  std::vector<bool> ends_character;
  const auto close = [&](std::size_t depth) {
    for (; open.size() > depth; open.pop_back()) {
      Node& node = nodes_[open.back()];
      node.end = static_cast<std::uint32_t>(nodes_.size());
      if (open.size() > 1) {
        Node& above = nodes_[open[open.size() - 2]];
        above.below = std::max(above.below, node.below + 1);
      }
    }
  };
  std::string_view before;
  for (const auto& [bytes, id] : tokens) {
    close(static_cast<std::size_t>(std::ranges::mismatch(before, bytes).in1 - before.begin()));
    while (open.size() < bytes.size()) {
      const std::size_t depth = open.size();
      open.push_back(nodes_.size());
      nodes_.push_back({bytes[depth], static_cast<std::uint32_t>(depth),
                        static_cast<std::uint32_t>(ids_.size()), 0, 0, 0});
      sets.emplace_back().add_broken();
      ends_character.push_back(false);
    }
    ids_.push_back(static_cast<std::uint32_t>(id));
    depth_ = std::max(depth_, bytes.size());
    before = bytes;
    add_characters(bytes, open, sets, ends_character);
  }
  close(0);
  nodes_.push_back({0, 0, static_cast<std::uint32_t>(ids_.size()), 0, 0, 0});
  std::map<CharacterSet, std::uint32_t> numbers;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const auto [known, is_new] = numbers.try_emplace(sets[i], static_cast<std::uint32_t>(sets_.size()));
    if (is_new) sets_.push_back(sets[i]);
    nodes_[i].set = known->second;
  }
}

/// At each of a token's nodes that ends a character, adds the token's characters after that node.
void FlatTrie::add_characters(std::string_view bytes, const std::vector<std::size_t>& nodes,
                              std::vector<CharacterSet>& sets, std::vector<bool>& ends_character) {
  std::vector<std::pair<std::size_t, std::uint32_t>> ends;  // the characters with the bytes up to their end
  std::string_view rest = bytes;
  CharacterSet after;
  while (!rest.empty()) {
    const auto character = take_code_point(rest);
    if (!character) {
      after.add_broken();
      break;
    }
    ends.emplace_back(bytes.size() - rest.size(), *character);
  }
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const std::size_t node = nodes[end->first - 1];
    if (!ends_character[node]) sets[node] = {};
    ends_character[node] = true;
    sets[node].add(after);
    after.add(end->second);
  }
  characters_.add(after);
}

bool SortedTokens::is_plain(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto character = take_code_point(bytes);
    if (!character || *character < 0x20 || *character == '"' || *character == '\\') return false;
  }
  return true;
}

SortedTokens::SortedTokens(const Tokenizer& tokenizer, EndTokens ends, const std::vector<int>& written)
    : tokenizer(&tokenizer),
      ends(std::move(ends)),
      plain(those(usable(tokenizer, this->ends, written), true)),
      others(those(usable(tokenizer, this->ends, written), false)),
      plain_bits((static_cast<std::size_t>(tokenizer.vocab_size()) + 63) / 64) {
  for (const std::uint32_t token : plain.ids()) plain_bits[token / 64] |= std::uint64_t(1) << token % 64;
}

}  // namespace staircase
