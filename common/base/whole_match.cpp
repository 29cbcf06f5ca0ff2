#include "common/base/whole_match.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <string>

#include "common/base/error.h"
#include "common/base/quoted.h"

namespace staircase {
namespace {

constexpr std::uint32_t kMostSteps = 1'000'000;

std::string message(int fault) {
  char text[256];
  pcre2_get_error_message(fault, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

}  // namespace

bool matches_whole(std::string_view pattern, std::string_view text) {
  int fault = 0;
  PCRE2_SIZE where = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &fault, &where, nullptr),
      &pcre2_code_free);
  if (!code) {
    throw Error("the pattern {} is refused: {} at byte {}", quoted(std::string(pattern), 100), message(fault),
                where);
  }
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMostSteps);
  const int found = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                                match.get(), context.get());
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  throw Error("the pattern {} cannot be matched: {}", quoted(std::string(pattern), 100), message(found));
}

}  // namespace staircase
