// Turns a JSON Schema into a grammar of the JSON texts that are valid under it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/grammar_rules.h"

namespace staircase {

/// What may stand between the braces of an object.
struct ObjectMembers {
  struct Member {
    RegexPart part;  ///< "name": value
    bool is_required;
  };

  std::vector<Member> members = {};    ///< in the order in which they are written
  std::optional<RegexPart> more = {};  ///< any other member, which may come any number of times after them
  RegexPart comma = {};                ///< with the white space around it
};

/// Describes all ways to write these members with commas between them. May add rules.
using WriteMembers = std::function<RegexPart(const ObjectMembers& object, GrammarRules& rules)>;

/// The first rule describes texts whose values are valid. Each valid value has at least one such text. Its
/// members are in the order in which the schema names them, as a model is asked for them: what `allOf` holds
/// comes first if it is written before `properties`. Members without a name there follow. Where white space
/// may be there is at most one blank, or a line feed and 20 blanks. Integers are `1`, not `1.0`.
///
/// Keywords of any value: type, enum, const, nullable, $ref within the schema, $defs, definitions, anyOf,
/// allOf, oneOf, not, if, then, else. What is not valid under a schema below `not` or `if`
/// must be describable, which items, formats, names besides properties and recursion are not. The same for
/// alternatives of oneOf that may hold at once. Of objects: properties, required, additionalProperties, up to
/// four patternProperties, dependentRequired, dependentSchemas, dependencies, minProperties, maxProperties.
/// Of arrays: items, prefixItems, additionalItems, minItems, maxItems. Of texts: minLength, maxLength,
/// pattern, format (date, time, date-time, uuid, ipv4, email, uri; other names that the standard does not
/// define do nothing). Of numbers: minimum, maximum, exclusiveMinimum, exclusiveMaximum. Titles, descriptions
/// and all names that JSON Schema does not define do nothing (2020-12, core, 6.5).
///
/// Throws UsageError with its place for any other keyword, and for a name that is a keyword misspelt. The
/// same for a combination that is not built, and a schema under which no value is valid. The same for a text
/// that is no JSON, has more than 1,000,000 bytes or nests deeper than 100.
GrammarRules json_schema_rules(std::string_view schema, const WriteMembers& write);

/// Reads a file with a schema; without a name, there are no rules. Throws also what read_file throws.
GrammarRules read_json_schema(const std::string& file, const WriteMembers& write);

}  // namespace staircase
