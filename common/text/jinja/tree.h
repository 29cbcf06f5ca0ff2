// A template as a tree, and its values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/text/jinja/value.h"

namespace staircase::jinja {

/// How deep a tree may be: expressions inside expressions, blocks inside blocks.
constexpr int kMostNesting = 200;

struct Node {
  enum class Kind {
    // Expressions; `children` are their operands.
    kLiteral,    // value
    kName,       // name
    kAttribute,  // a.name
    kItem,       // a[b]
    kSlice,      // a[b:c:d]; missing parts are none
    kCall,       // a(arguments)
    kFilter,     // a|name(arguments)
    kTest,       // a is name(arguments)
    kNot,
    kAnd,
    kOr,
    kSigned,   // name is - or +
    kBinary,   // name is one of + - * / // % ~
    kCompare,  // a < b <= c: the operators are in `names`
    kChoice,   // a if b else c: children are b, a and perhaps c
    kList,
    kTuple,
    kDict,  // key, value, key, value ...
    // Statements.
    kText,         // value
    kOutput,       // {{ children }}
    kIf,           // {% if child %} body, otherwise
    kFor,          // {% for names in child if child %} body, otherwise
    kSet,          // {% set names = child %}, or the attribute `name` of a namespace
    kSetBlock,     // {% set names %} body: the child, a filter, takes the text of the body as the name ""
    kFilterBlock,  // {% filter child %} body
    kMacro,        // {% macro name(names) %} body; children are the defaults of the last names
    kScope,        // {% generation %} body
    kBreak,
    kContinue,
  };

  Kind kind = Kind::kText;
  int line = 0;
  std::string name;
  Value value;
  std::vector<std::string> names;  // for a call, the names of its last arguments
  std::vector<Node> children, body, otherwise;
  int depth = 1;  // the depth of the tree below
};

/// Throws Error with one sentence and the line.
std::vector<Node> parse(std::string_view source);

}  // namespace staircase::jinja
