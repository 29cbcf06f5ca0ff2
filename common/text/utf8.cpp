// UTF-8, byte by byte, after the Unicode standard's table 3-7 of well-formed sequences.
#include "common/text/utf8.h"

namespace staircase {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

enum class Kind { character, broken, unfinished };

/// The front of some bytes: a character, the maximal subpart of one that can never be completed, or an
/// unfinished character at the end of the bytes.
struct Front {
  Kind kind;
  std::size_t length;
};

Front look_at_front(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Kind::character, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Kind::broken, 1};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;

  // The second byte's range excludes overlong forms (E0, F0), surrogates (ED) and code points above U+10FFFF
  // (F4).
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Kind::unfinished, i};
    if (byte(i) < low || byte(i) > high) return {Kind::broken, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Kind::character, length};
}

}  // namespace

Utf8Run first_utf8_run(std::string_view bytes) {
  const bool valid = look_at_front(bytes).kind == Kind::character;
  std::size_t length = 0;
  while (length < bytes.size()) {
    const Front front = look_at_front(bytes.substr(length));
    if ((front.kind == Kind::character) != valid) break;
    length += front.length;
  }
  return {valid, length};
}

std::string take_complete_utf8(std::string& bytes) {
  std::string text;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const Front front = look_at_front(rest);
    if (front.kind == Kind::unfinished) break;
    text += front.kind == Kind::character ? rest.substr(0, front.length) : kReplacement;
    rest.remove_prefix(front.length);
  }
  bytes.erase(0, bytes.size() - rest.size());
  return text;
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string rest(bytes);
  std::string text = take_complete_utf8(rest);
  if (!rest.empty()) text += kReplacement;
  return text;
}

}  // namespace staircase
