// Patterns, run by PCRE2.
#include "common/text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "common/base/quoted.h"
#include "common/text/pattern.h"
#include "common/text/utf8.h"

namespace staircase {

namespace {

std::string message(int fault) {
  char text[256];
  pcre2_get_error_message(fault, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

/// A search may read each character of a long run of spaces again for every step back. A limit that grows
/// with the text leaves enough steps for that, but stops a pattern that would never end.
std::uint32_t match_limit(std::size_t size) {
  constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::min<std::size_t>(10'000'000 + 16 * std::min(size, kMost), kMost));
}

}  // namespace

const Cut& gpt2_cut() {
  // From https://github.com/openai/gpt-2/blob/master/src/encoder.py. The look-ahead leaves the last of
  // several spaces for the next word.
  static const Cut cut{R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};
  return cut;
}

void PreTokenizer::Free::operator()(pcre2_real_code_8* pattern) const {
  pcre2_code_free(pattern);
}

PreTokenizer::PreTokenizer(const std::vector<Cut>& cuts) {
  for (const Cut& cut : cuts) {
    std::string pattern = cut.pattern;
    try {
      if (!cut.literal) pattern = to_pcre2(pattern);
    } catch (const Error& error) {
      throw Error("the pattern {} is refused: {}", quoted(cut.pattern), error.what());
    }
    int fault = 0;
    PCRE2_SIZE where = 0;
    const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | (cut.literal ? PCRE2_LITERAL : 0);
    Compiled compiled{nullptr, cut.drops_the_rest};
    compiled.pattern.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                         cut.literal ? PCRE2_UTF | PCRE2_LITERAL : options, &fault, &where,
                                         nullptr));
    if (!compiled.pattern) {
      // Needs its namespace: argument-dependent lookup would prefer std::quoted for a non-const std::string.
      throw Error("the pattern {} is refused: {} at byte {} of {}", quoted(cut.pattern), message(fault),
                  where, staircase::quoted(pattern));
    }
    // Without a JIT, the interpreter does the same work.
    pcre2_jit_compile(compiled.pattern.get(), PCRE2_JIT_COMPLETE);
    cuts_.push_back(std::move(compiled));
  }
}

/// The memory of a search, for one text.
struct PreTokenizer::Search {
  explicit Search(std::size_t size)
      : match(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free),
        context(pcre2_match_context_create(nullptr), &pcre2_match_context_free) {
    pcre2_set_match_limit(context.get(), match_limit(size));
  }

  /// The begin and end of the first non-empty match in `text` from `begin` on; the end of `text` twice if
  /// there is none.
  std::pair<std::size_t, std::size_t> next(const pcre2_real_code_8* pattern, std::string_view text,
                                           std::size_t begin) {
    const auto search = [&](std::uint32_t options) {
      // PCRE2's own check of the text would scan the rest of it every time.
      return pcre2_match(pattern, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                         PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | options, match.get(), context.get());
    };
    int found = search(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = search(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
    if (found < 0) throw Error("PCRE2 cannot split the text at byte {}: {}", begin, message(found));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
    return {ends[0], ends[1]};
  }

  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match;
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context;
};

void PreTokenizer::cut_piece(const Compiled& cut, std::string_view piece, Search& search,
                             std::vector<std::string_view>& pieces) {
  for (std::size_t begin = 0; begin < piece.size();) {
    const auto [first, last] = search.next(cut.pattern.get(), piece, begin);
    if (begin < first && !cut.drops_the_rest) pieces.push_back(piece.substr(begin, first - begin));
    if (first < last) pieces.push_back(piece.substr(first, last - first));
    begin = last;
  }
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  Search search(text.size());
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const Utf8Run run = first_utf8_run(text);
    std::vector<std::string_view> parts{text.substr(0, run.length)};
    text.remove_prefix(run.length);
    for (std::size_t i = 0; run.valid && i < cuts_.size(); ++i) {
      std::vector<std::string_view> smaller;
      for (const std::string_view part : parts) cut_piece(cuts_[i], part, search, smaller);
      parts = std::move(smaller);
    }
    if (pieces.empty()) {
      pieces = std::move(parts);
    } else {
      pieces.insert(pieces.end(), parts.begin(), parts.end());
    }
  }
  return pieces;
}

}  // namespace staircase
