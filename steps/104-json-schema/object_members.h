// The members of a JSON object as rules of a grammar: some may be left out, and commas separate the others.
#pragma once

#include <utility>

#include "common/text/json_schema.h"
#include "grammar.h"

namespace staircase {

/// The text between the braces: the members in their order, then any number of other members.
inline RegexPart written_members(const ObjectMembers& object, GrammarRules& rules) {
  using Kind = RegexPart::Kind;
  const auto rule = [&](RegexPart part) {
    rules.push_back({"members", std::move(part)});
    return RegexPart{Kind::kRule, {}, {}, 0, 0, static_cast<int>(rules.size()) - 1};
  };
  // The text from a member on: `first` if no member precedes it, `rest` if one does.
  RegexPart first{Kind::kSequence}, rest{Kind::kSequence};
  if (object.more) {
    rest = {Kind::kRepeat, {{Kind::kSequence, {object.comma, *object.more}}}, {}, 0, RegexPart::kNoLimit};
    first = {Kind::kChoice, {first, {Kind::kSequence, {*object.more, rest}}}};
  }
  for (auto member = object.members.rbegin(); member != object.members.rend(); ++member) {
    const auto& [part, is_required] = *member;
    RegexPart with{Kind::kSequence, {part, rest}}, after{Kind::kSequence, {object.comma, part, rest}};
    first = rule(is_required ? with : RegexPart{Kind::kChoice, {with, first}});
    rest = rule(is_required ? after : RegexPart{Kind::kChoice, {after, rest}});
  }
  return first;
}

struct SchemaOptions {
  std::string file = {};
  GrammarRules rules = {};  ///< from the file; empty: any text is valid
};

inline void add_options(OptionSink& sink, SchemaOptions& options, const RowOptions& row) {
  sink.add("--json-schema", Path{&options.file, "FILE"},
           "a JSON Schema under which the answer must be valid");
  sink.rule([&options] { options.rules = read_json_schema(options.file, written_members); });
  require_an_end(sink, "--json-schema", row, [&options] { return !options.file.empty(); });
}

}  // namespace staircase
