// A text that remembers who wrote each of its bytes: the template, or the data that it was given. Only text
// from the template may become a special token, so every operation on texts keeps the origins.
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
  bool is_html = false;  ///< made by the filters `safe` and `escape`: `+` escapes the text that is added

  static Text of_template(std::string bytes);
  static Text of_data(std::string bytes);

  /// The origin of `sources` after an operation mixes their bytes: the template's only if all are.
  static Text mixed(std::string bytes, const std::vector<const Text*>& sources);

  std::size_t size() const { return bytes.size(); }
  bool is_of_template() const { return origins.find(kData) == std::string::npos; }
  Text part(std::size_t begin, std::size_t end) const;
  void append(const Text& other);

  /// The start of each character, and the end of the last.
  std::vector<std::size_t> characters() const;
};

/// The bytes of white space, as in Python's str.isspace(), at the front and at the back.
std::size_t spaces_in_front(std::string_view text);
std::size_t spaces_at_back(std::string_view text);

/// The bytes at the front, or at the back, that are characters of `set`.
std::size_t span_in_front(std::string_view text, std::string_view set);
std::size_t span_at_back(std::string_view text, std::string_view set);

std::string_view first_character(std::string_view text);
std::string_view last_character(std::string_view text);

/// The number of a character of valid UTF-8, and back.
char32_t code_point(std::string_view character);
std::string utf8(char32_t code_point);

/// The number that all of `digits` spell, with or without a fraction or an exponent; nothing if they spell
/// none that a double holds. Some standard libraries lack std::from_chars for it.
std::optional<double> decimal(std::string_view digits);

/// As Python's str.upper(), lower(), capitalize() and title(). Without utf8proc, they throw Fault for letters
/// beyond ASCII.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_capitalized(std::string_view text);
std::string to_title(std::string_view text);

/// As Python's str.islower() or isupper(): whether all letters that have a case have this one, and one has.
/// Throws Fault for modifier letters, whose case is not known here.
bool has_only_case(std::string_view text, bool small);

}  // namespace staircase::jinja
