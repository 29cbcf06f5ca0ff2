// Splits a template into tokens: the text between tags, and the words and signs within them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace staircase::jinja {

struct Token {
  enum class Kind {
    kText,
    kOutputBegin,  // {{
    kOutputEnd,    // }}
    kBlockBegin,   // {%
    kBlockEnd,     // %}
    kName,
    kInteger,
    kFloat,
    kString,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string text;
  int line;
};

/// Splits a template like Jinja with trim_blocks and lstrip_blocks: removes the newline after a block, and
/// the blanks before it if nothing else precedes it on its line. A sign at a tag overrides both: "-" removes
/// all white space, "+" removes none. Throws Error with the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace staircase::jinja
