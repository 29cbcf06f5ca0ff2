// GPT-2's pattern, run by PCRE2.
#include "common/text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "common/base/error.h"
#include "common/text/utf8.h"

namespace staircase {

namespace {

// From https://github.com/openai/gpt-2/blob/master/src/encoder.py:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// White space is spelled out, because PCRE2 still counts U+180E as such, which Unicode no longer does (6.3).
// The look-ahead leaves the last of several spaces to the word behind them.
constexpr char kPattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\t-\r\x{85}\p{Z}\p{L}\p{N}]+)"
                            R"(|[\t-\r\x{85}\p{Z}]+(?![^\t-\r\x{85}\p{Z}])|[\t-\r\x{85}\p{Z}]+)";

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
                               PCRE2_UTF | PCRE2_UCP, &fault, &where, nullptr));
  if (!pattern_) throw Error("PCRE2 cannot compile the pattern: {} at character {}", message(fault), where);
  pcre2_jit_compile(pattern_.get(), PCRE2_JIT_COMPLETE);  // without a JIT the interpreter does the same work
}

void PreTokenizer::split_valid(std::string_view text, std::vector<std::string_view>& pieces) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  // Every character is in one of the pattern's classes, so each match begins where the last one ended. No
  // alternative has more than one repetition to go back into, so neither the JIT's stack nor a match limit
  // depends on the length of a piece. PCRE2's own check of the text would look at all the rest, every time.
  for (std::size_t begin = 0; begin < text.size();) {
    const int found =
        pcre2_match(pattern_.get(), subject, text.size(), begin, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (found < 0) throw Error("PCRE2 cannot split the text at byte {}: {}", begin, message(found));
    const std::size_t end = pcre2_get_ovector_pointer(match.get())[1];
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const Utf8Run run = first_utf8_run(text);
    const std::string_view part = text.substr(0, run.length);
    if (run.valid) {
      split_valid(part, pieces);
    } else {
      pieces.push_back(part);
    }
    text.remove_prefix(run.length);
  }
  return pieces;
}

}  // namespace staircase
