// A text that records the origin of each byte: the template, or the data that the template was given. Only
// text from the template may become a special token, so every operation on texts keeps the origins.
#pragma once

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace staircase::jinja {

/// A template's mistake: "uses 'x', which is undefined". The interpreter adds the line.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Text {
  static constexpr char kTemplate = 't', kData = 'd';

  std::string bytes;
  std::string origins;   ///< kTemplate or kData for each byte
  bool is_html = false;  ///< made by the filters `safe` and `escape`, so `+` escapes the other text

  static Text of_template(std::string bytes);
  static Text of_data(std::string bytes);

  /// A text whose bytes an operation mixed from `sources`. Its origin is the template only if all sources are
  /// the template's.
  static Text mixed(std::string bytes, const std::vector<const Text*>& sources);

  std::size_t size() const { return bytes.size(); }
  bool is_of_template() const { return origins.find(kData) == std::string::npos; }
  Text part(std::size_t begin, std::size_t end) const;
  void append(const Text& other);

  /// The start of each character, then the end of the last one.
  std::vector<std::size_t> characters() const;
};

/// The number of bytes of white space at the front of a text, and at its back. White space is defined as in
/// Python's str.isspace().
std::size_t spaces_in_front(std::string_view text);
std::size_t spaces_at_back(std::string_view text);

/// The number of bytes at the front of a text, or at its back, that are characters of `set`.
std::size_t span_in_front(std::string_view text, std::string_view set);
std::size_t span_at_back(std::string_view text, std::string_view set);

std::string_view first_character(std::string_view text);
std::string_view last_character(std::string_view text);

/// The code point of a character in UTF-8, and the reverse.
char32_t code_point(std::string_view character);
std::string utf8(char32_t code_point);

/// The number that all of `digits` spell, with or without a fraction or an exponent; nothing if they are not
/// a number that a double can hold. Some standard libraries lack std::from_chars for double.
std::optional<double> decimal(std::string_view digits);

/// As Python's str.upper(), lower(), capitalize() and title(). Without utf8proc, they throw Fault for letters
/// beyond ASCII.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_capitalized(std::string_view text);
std::string to_title(std::string_view text);

/// As Python's str.islower() or isupper(): whether at least one letter has a case, and all of those have this
/// one. Throws Fault for modifier letters, whose case is not known here.
bool has_only_case(std::string_view text, bool small);

}  // namespace staircase::jinja
