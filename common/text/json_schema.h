// Turns a JSON Schema into a grammar for the JSON texts that are valid under it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/grammar_rules.h"

namespace staircase {

/// The members that an object may have between its braces.
struct ObjectMembers {
  struct Member {
    RegexPart part;  ///< "name": value
    bool is_required;
  };

  std::vector<Member> members = {};    ///< in the order in which they must be written
  std::optional<RegexPart> more = {};  ///< any other member; may follow them any number of times
  RegexPart comma = {};                ///< with the white space around it
};

/// Returns a part that describes all ways to write these members with commas between them. May add rules.
using WriteMembers = std::function<RegexPart(const ObjectMembers& object, GrammarRules& rules)>;

/// Returns rules for JSON texts that are valid under the schema; the first rule describes whole texts. Every
/// valid value has at least one such text. Object members come in the order in which the schema names them;
/// the members of an `allOf` come first if it is written before `properties`. Members that the schema does
/// not name follow. White space is at most one blank, or a line feed and up to 20 blanks. Integers are `1`,
/// not `1.0`.
///
/// Supported keywords for any value: type, enum, const, nullable, $ref within the schema, $defs, definitions,
/// anyOf, allOf, oneOf, not, if, then, else. A schema below `not` or `if` is negated, and so are alternatives
/// of oneOf that may hold at once. Items, formats, names outside of properties, and recursion cannot be
/// negated. For objects: properties, required, additionalProperties, up to four patternProperties,
/// dependentRequired, dependentSchemas, dependencies, minProperties, maxProperties. For arrays: items,
/// prefixItems, additionalItems, minItems, maxItems. For strings: minLength, maxLength, pattern, format
/// (date, time, date-time, uuid, ipv4, email, uri; other names that the standard does not define do nothing).
/// For numbers: minimum, maximum, exclusiveMinimum, exclusiveMaximum. Titles, descriptions and all names that
/// JSON Schema does not define do nothing (2020-12, core, 6.5).
///
/// Throws UsageError that names the place for any other keyword, a misspelt keyword, and an unsupported
/// combination. Also throws UsageError if no value is valid under the schema, or if the text is not JSON, has
/// more than 1,000,000 bytes or nests deeper than 100.
GrammarRules json_schema_rules(std::string_view schema, const WriteMembers& write);

/// Reads a file with a schema; an empty name returns no rules. Also throws what read_file throws.
GrammarRules read_json_schema(const std::string& file, const WriteMembers& write);

}  // namespace staircase
