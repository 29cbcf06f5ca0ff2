#include "common/text/nfc.h"

#include "common/base/error.h"

#if STAIRCASE_UTF8PROC
#include <utf8proc.h>

#include <algorithm>
#include <vector>
#endif

namespace staircase {

#if STAIRCASE_UTF8PROC

namespace {

/// The characters of `text`, decomposed, with the marks of each letter in Unicode's order.
std::vector<utf8proc_int32_t> decomposed(std::string_view text) {
  std::vector<utf8proc_int32_t> characters;
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (const auto* end = at + text.size(); at != end;) {
    utf8proc_int32_t character = 0, parts[16];
    at += utf8proc_iterate(at, end - at, &character);
    int last_boundary = 0;
    const auto count = utf8proc_decompose_char(character, parts, 16, UTF8PROC_DECOMPOSE, &last_boundary);
    characters.insert(characters.end(), parts, parts + count);
  }
  // utf8proc could also sort, but takes quadratic time.
  const auto mark_class = [](utf8proc_int32_t character) {
    return utf8proc_get_property(character)->combining_class;
  };
  for (auto begin = characters.begin(); begin != characters.end();) {
    begin = std::find_if(begin, characters.end(), mark_class);
    const auto end = std::find_if_not(begin, characters.end(), mark_class);
    std::stable_sort(begin, end, [&](auto a, auto b) { return mark_class(a) < mark_class(b); });
    begin = end;
  }
  return characters;
}

std::string composed(std::string_view text) {
  std::vector<utf8proc_int32_t> characters = decomposed(text);
  const auto count =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (count < 0) throw Error("a text cannot be brought into normal form C: {}", utf8proc_errmsg(count));
  std::string composed;
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    utf8proc_uint8_t bytes[4];
    const auto length = utf8proc_encode_char(characters[static_cast<std::size_t>(i)], bytes);
    composed.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
  }
  return composed;
}

}  // namespace

bool has_nfc() {
  return true;
}

std::string to_nfc(std::string_view text) {
  const bool ascii =
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (ascii) return std::string(text);
  // This character composes with nothing, but utf8proc up to version 2.9 drops it after a Hangul syllable.
  constexpr std::string_view kBeforeFinals = "\u11A7";
  std::string all;
  for (;;) {
    const std::size_t at = text.find(kBeforeFinals);
    all += composed(text.substr(0, at));
    if (at == text.npos) return all;
    all += kBeforeFinals;
    text.remove_prefix(at + kBeforeFinals.size());
  }
}

#else

bool has_nfc() {
  return false;
}

std::string to_nfc(std::string_view) {
  throw Error("normal form C needs the library utf8proc, without which this program was built");
}

#endif

}  // namespace staircase
