// GPT-2's pattern, run by PCRE2.
#include "common/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "common/error.h"

namespace staircase {

namespace {

// From https://github.com/openai/gpt-2/blob/master/src/encoder.py:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// White space is spelled out, because PCRE2 still counts U+180E as such, which Unicode no longer does (6.3).
// The look-ahead leaves the last of several spaces to the word behind them.
#define SPACE R"(\t-\r\x{85}\p{Z})"
constexpr char kPattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+)"
                            R"(| ?[^\p{L}\p{N})" SPACE "]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+";
#undef SPACE

std::string message(int fault) {
  char text[256];
  pcre2_get_error_message(fault, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

}  // namespace

void PreTokenizer::Free::operator()(pcre2_real_code_8* pattern) const {
  pcre2_code_free(pattern);
}

PreTokenizer::PreTokenizer() {
  int fault = 0;
  PCRE2_SIZE where = 0;
  pattern_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                               PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &fault, &where, nullptr));
  if (!pattern_)
    throw Error("PCRE2 cannot compile GPT-2's pattern: {} at character {}", message(fault), where);
  pcre2_jit_compile(pattern_.get(), PCRE2_JIT_COMPLETE);  // without a JIT the interpreter does the same work
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());

  std::vector<std::string_view> pieces;
  std::size_t done = 0;  // everything before it is in a piece
  while (done < text.size()) {
    // No alternative needs to remember more than one position to go back to, so neither the JIT's stack nor
    // a match limit depends on the length of a match.
    const int found = pcre2_match(pattern_.get(), subject, text.size(), done, 0, match.get(), nullptr);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
      throw Error("PCRE2 cannot split the text: {}", message(found));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    const std::size_t begin = found < 0 ? text.size() : range[0];
    const std::size_t end = found < 0 ? text.size() : range[1];
    if (begin > done) pieces.push_back(text.substr(done, begin - done));
    if (end > begin) pieces.push_back(text.substr(begin, end - begin));
    done = end;
  }
  return pieces;
}

}  // namespace staircase
