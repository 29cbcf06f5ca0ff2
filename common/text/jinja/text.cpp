#include "common/text/jinja/text.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#if STAIRCASE_UTF8PROC
#include <utf8proc.h>
#endif

namespace staircase::jinja {

namespace {

bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

bool is_space(std::string_view character) {
  const char32_t c = code_point(character);
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

template <typename Predicate>
std::size_t count_in_front(std::string_view text, const Predicate& counts) {
  std::size_t length = 0;
  while (length < text.size() && counts(first_character(text.substr(length)))) {
    length += first_character(text.substr(length)).size();
  }
  return length;
}

template <typename Predicate>
std::size_t count_at_back(std::string_view text, const Predicate& counts) {
  std::size_t rest = text.size();
  while (rest > 0 && counts(last_character(text.substr(0, rest)))) {
    rest -= last_character(text.substr(0, rest)).size();
  }
  return text.size() - rest;
}

}  // namespace

Text Text::of_template(std::string bytes) {
  const std::size_t size = bytes.size();
  return {std::move(bytes), std::string(size, kTemplate)};
}

Text Text::of_data(std::string bytes) {
  const std::size_t size = bytes.size();
  return {std::move(bytes), std::string(size, kData)};
}

Text Text::mixed(std::string bytes, const std::vector<const Text*>& sources) {
  const bool own =
      std::all_of(sources.begin(), sources.end(), [](auto* text) { return text->is_of_template(); });
  return own ? of_template(std::move(bytes)) : of_data(std::move(bytes));
}

Text Text::part(std::size_t begin, std::size_t end) const {
  return {bytes.substr(begin, end - begin), origins.substr(begin, end - begin), is_html};
}

void Text::append(const Text& other) {
  bytes += other.bytes;
  origins += other.origins;
}

std::vector<std::size_t> Text::characters() const {
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < size(); ++i) {
    if (i == 0 || begins_character(bytes[i])) starts.push_back(i);
  }
  starts.push_back(size());
  return starts;
}

std::size_t spaces_in_front(std::string_view text) {
  return count_in_front(text, is_space);
}

std::size_t spaces_at_back(std::string_view text) {
  return count_at_back(text, is_space);
}

std::size_t span_in_front(std::string_view text, std::string_view set) {
  return count_in_front(text, [&](auto character) { return set.find(character) != set.npos; });
}

std::size_t span_at_back(std::string_view text, std::string_view set) {
  return count_at_back(text, [&](auto character) { return set.find(character) != set.npos; });
}

std::string_view first_character(std::string_view text) {
  std::size_t length = text.empty() ? 0 : 1;
  while (length < text.size() && !begins_character(text[length])) ++length;
  return text.substr(0, length);
}

std::string_view last_character(std::string_view text) {
  std::size_t begin = text.empty() ? 0 : text.size() - 1;
  while (begin > 0 && !begins_character(text[begin])) --begin;
  return text.substr(begin);
}

char32_t code_point(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  switch (character.size()) {
    case 1:
      return byte(0);
    case 2:
      return static_cast<char32_t>((byte(0) & 0x1F) << 6 | (byte(1) & 0x3F));
    case 3:
      return static_cast<char32_t>((byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F));
    case 4:
      return static_cast<char32_t>((byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
                                   (byte(3) & 0x3F));
    default:
      return 0xFFFD;
  }
}

std::string utf8(char32_t c) {
  const auto byte = [](char32_t bits) { return static_cast<char>(bits); };
  if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) c = 0xFFFD;
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)), byte(0x80 | (c >> 6 & 0x3F)),
          byte(0x80 | (c & 0x3F))};
}

std::optional<double> decimal(std::string_view digits) {
  // Rejects what only strtod accepts: leading blanks and a +, hexadecimal digits, and nan(1).
  if (digits.empty() || digits[0] == '+' || spaces_in_front(digits) > 0) return {};
  if (digits.find_first_of("xX(") != digits.npos) return {};
  const std::string text(digits);
  char* end = nullptr;
  errno = 0;
  const double number = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size()) return {};
  if (errno == ERANGE && (number == 0 || std::isinf(number))) return {};
  return number;
}

// Upper and lower case as in Python: a letter may become several, and its neighbours may matter.

namespace {

constexpr char32_t kIota = 0x3B9, kIotaBelow = 0x345, kSigma = 0x3A3, kFinalSigma = 0x3C2;

#if STAIRCASE_UTF8PROC

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

char32_t simple_upper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}

char32_t simple_title(char32_t c) {
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
}

char32_t simple_lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

/// The letters that replace a letter when case is ignored: "ss" for "ß", but a single letter for most.
std::vector<char32_t> folded(char32_t c) {
  utf8proc_int32_t letters[4];
  int boundary = 0;
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), letters, 4, UTF8PROC_CASEFOLD, &boundary);
  return {letters, letters + std::max<utf8proc_ssize_t>(count, 0)};
}

/// Whether a letter has a case although it is not in the categories for case: ª, º, Ⅷ, ⓐ and the like.
bool has_other_case(char32_t c) {
  return c == 0xAA || c == 0xBA || (c >= 0x2160 && c <= 0x217F) || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

bool is_small(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL;
}

/// Whether the character is a pair of letters with a capital first one: ǅ, ᾼ.
bool is_title_letter(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LT;
}

bool is_cased(char32_t c) {
  return is_small(c) || category(c) == UTF8PROC_CATEGORY_LU || is_title_letter(c) || has_other_case(c);
}

/// Whether the character may have a case that utf8proc does not know.
bool may_be_cased(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LM || c == kIotaBelow || has_other_case(c);
}

/// Whether the rule for a final sigma ignores the character: marks, modifiers and punctuation within words.
bool is_ignored(char32_t c) {
  static constexpr std::u32string_view kWithinWords =
      U"'.:^`\u00A8\u00AF\u00B4\u00B7\u00B8\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07"
      U"\uFF0E\uFF1A";
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return kWithinWords.find(c) != kWithinWords.npos;
  }
}

void require_known_case(std::string_view /*text*/) {}

#else

char32_t simple_upper(char32_t c) {
  return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c;
}

char32_t simple_title(char32_t c) {
  return simple_upper(c);
}

char32_t simple_lower(char32_t c) {
  return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
}

std::vector<char32_t> folded(char32_t c) {
  return {simple_lower(c)};
}

bool is_small(char32_t c) {
  return c >= 'a' && c <= 'z';
}

bool is_title_letter(char32_t) {
  return false;
}

bool is_cased(char32_t c) {
  return is_small(simple_lower(c));
}

bool may_be_cased(char32_t) {
  return false;
}

bool is_ignored(char32_t) {
  return false;
}

void require_known_case(std::string_view text) {
  const auto plain = [](char byte) { return static_cast<unsigned char>(byte) < 0x80; };
  if (!std::all_of(text.begin(), text.end(), plain))
    throw Fault("changes the case of a letter beyond ASCII, which needs a build with utf8proc");
}

#endif

std::u32string code_points(std::string_view text) {
  require_known_case(text);
  std::u32string all;
  for (; !text.empty(); text.remove_prefix(first_character(text).size()))
    all += code_point(first_character(text));
  return all;
}

std::string upper(char32_t c) {
  const std::vector<char32_t> letters = folded(c);
  const bool is_large = simple_lower(c) != c && !is_title_letter(c);
  if (letters.size() < 2 || is_large) return utf8(simple_upper(c));
  std::string mapped;
  for (const char32_t letter : letters) mapped += utf8(simple_upper(letter));
  return mapped;
}

/// The form of a letter at the beginning of a word: "Ss" for "ß".
std::string title(char32_t c) {
  const char32_t simple = simple_title(c);
  const std::vector<char32_t> letters = folded(c);
  if (letters.size() < 2 || !is_small(c) || is_title_letter(simple)) return utf8(simple);
  std::string mapped;
  bool is_first = true;
  for (const char32_t letter : letters) {
    const char32_t large = simple_upper(letter);
    mapped += utf8(is_first ? large : letter == kIota ? kIotaBelow : letter);
    is_first = is_first && large == letter;
  }
  return mapped;
}

/// The lower case of the character at `i`. A sigma at the end of a word has its own form.
std::string lower(const std::u32string& text, std::size_t i) {
  if (text[i] == 0x130) return "i\u0307";
  if (text[i] != kSigma) return utf8(simple_lower(text[i]));
  std::size_t before = i, after = i + 1;
  while (before > 0 && is_ignored(text[before - 1])) --before;
  while (after < text.size() && is_ignored(text[after])) ++after;
  const bool ends_word =
      before > 0 && is_cased(text[before - 1]) && !(after < text.size() && is_cased(text[after]));
  return utf8(ends_word ? kFinalSigma : simple_lower(kSigma));
}

}  // namespace

std::string to_upper(std::string_view text) {
  std::string mapped;
  for (const char32_t c : code_points(text)) mapped += upper(c);
  return mapped;
}

std::string to_lower(std::string_view text) {
  const std::u32string all = code_points(text);
  std::string mapped;
  for (std::size_t i = 0; i < all.size(); ++i) mapped += lower(all, i);
  return mapped;
}

std::string to_capitalized(std::string_view text) {
  const std::u32string all = code_points(text);
  std::string mapped;
  for (std::size_t i = 0; i < all.size(); ++i) mapped += i == 0 ? title(all[i]) : lower(all, i);
  return mapped;
}

std::string to_title(std::string_view text) {
  const std::u32string all = code_points(text);
  std::string mapped;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0 && may_be_cased(all[i - 1]) && is_cased(all[i]))
      throw Fault(
          fmt::format("capitalizes a letter after \"{}\", which is not known here", utf8(all[i - 1])));
    mapped += i > 0 && is_cased(all[i - 1]) ? lower(all, i) : title(all[i]);
  }
  return mapped;
}

bool has_only_case(std::string_view text, bool small) {
  bool has = false;
  for (const char32_t c : code_points(text)) {
    if (may_be_cased(c))
      throw Fault(fmt::format("tests the case of \"{}\", which is not known here", utf8(c)));
    if (!is_cased(c)) continue;
    if (is_small(c) != small || is_title_letter(c)) return false;
    has = true;
  }
  return has;
}

}  // namespace staircase::jinja
