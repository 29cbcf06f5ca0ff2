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

/// As Jinja with trim_blocks and lstrip_blocks: the newline after a block goes, and so do the blanks before
/// it if nothing else is on its line. A sign at a tag ("-" takes all white space, "+" none) overrides both.
/// Throws Error with the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace staircase::jinja
