// Reads a JSON Schema: where its parts are, what they require, and which of them must hold together. No
// installed header includes this one.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/code_points.h"

namespace staircase {

/// The types of JSON values, as bits. Numbers are either whole or have a fraction.
enum JsonType {
  kNull = 1,
  kBoolean = 2,
  kWhole = 4,
  kFraction = 8,
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAllTypes = 127
};

/// The characters that names in an object may have: all those with exactly one short form in JSON, so that no
/// name has two spellings.
inline const CodePoints kNameCharacters = all_but({{0, 7}, {11, 11}, {14, 31}});

/// Reads one schema. Each function throws UsageError that names the place of anything unusable: "the schema
/// cannot be used at /properties/age: it refers to itself".
class SchemaReader {
 public:
  using Json = nlohmann::ordered_json;

  /// Schemas that must all hold for a value. They are parts of the document.
  using Schemas = std::vector<const Json*>;

  /// The document may be an object, true or false.
  explicit SchemaReader(Json document);

  SchemaReader(const SchemaReader&) = delete;
  SchemaReader& operator=(const SchemaReader&) = delete;

  const Json* root() const { return &document_; }

  [[noreturn]] void fail(const Json* schema, std::string_view what) const;
  [[noreturn]] void fail(const Json* schema, const std::string& keyword, std::string_view what) const;

  /// Counts further parts of the grammar. Throws UsageError if the grammar gets too many parts.
  void count(std::size_t parts);

  // ── Parts ──

  /// The schema that is the value of a keyword, such as items, in another schema.
  const Json* within(const Json* schema, const std::string& keyword);

  /// The schemas in the list of a keyword, such as prefixItems.
  Schemas listed(const Json* schema, const std::string& keyword);

  /// The schemas for an object's member: from properties and patternProperties, or from additionalProperties
  /// if neither applies.
  Schemas member(const Schemas& all, const std::string& name);

  /// The patterns in patternProperties, each once.
  static std::set<std::string> patterns_in(const Schemas& all);

  /// The schemas for a member that is not in properties and matches exactly these patterns.
  Schemas matched(const Schemas& all, const std::set<std::string>& patterns);

  // ── Which schemas hold together ──

  /// The ways in which all schemas can hold together. In each way, only the plain keywords of its schemas
  /// still matter, not anyOf and the like.
  std::vector<Schemas> alternatives(const Schemas& schemas);

  // ── What schemas require together ──

  /// The JsonTypes that all schemas allow.
  int types_of(const Schemas& all) const;

  /// The values that enum and const allow, if any schema has one of them.
  std::optional<std::vector<Json>> values_of(const Schemas& all);

  struct Bounds {
    std::optional<double> least = {}, most = {};
    bool excludes_least = false, excludes_most = false;
    const Json* least_by = nullptr;  ///< the schema that sets the bound
    const Json* most_by = nullptr;
  };
  static Bounds bounds_of(const Schemas& all);

  /// The largest or smallest count under a keyword such as minItems.
  static std::optional<int> counted(const Schemas& all, const char* keyword, bool takes_largest);

  /// The names in the `required` lists of all schemas, in their written order.
  static std::vector<std::string> required_in(const Schemas& all);

  /// The schema under `not` if it excludes only types, the strings of a list, or the strings that match a
  /// pattern; otherwise nullptr. `alternatives` covers every other `not`.
  static const Json* excluded(const Json* schema);

  static bool is_whole(const Json& number);

  /// Describes the text between the quotation marks of a name that matches a pattern in patternProperties.
  RegexPart name_pattern(const Schemas& all, const std::string& pattern) const;

 private:
  [[noreturn]] void fail_at(const std::string& path, std::string_view what) const;
  const Json* at(const Json* schema, const std::string& path);
  const Json* property(const Json* schema, const std::string& name);
  Schemas with_patterns(const Json* schema, const std::set<std::string>& patterns);
  bool matches(const Schemas& all, const std::string& pattern, const std::string& name) const;
  bool matches(const Json* schema, const std::string& pattern, const std::string& text) const;
  const Json* referred(const Json* schema);
  void check(const Json* schema);
  int types_of(const Json* schema) const;
  int named_types(const Json* schema) const;
  bool holds(const Json& value, const Json* schema);
  bool is_valid(const Json& value, const Schemas& all);
  std::vector<Schemas> both(const std::vector<Schemas>& some, const std::vector<Schemas>& others,
                            const Json* place);
  std::vector<Schemas> alternatives(const Json* schema);
  std::vector<Schemas> one_of(const Json* schema);
  std::vector<Schemas> conditional(const Json* schema);
  std::vector<Schemas> none_of(const Json* schema, const Json* user, const char* keyword);
  std::optional<std::vector<Json>> negation(const Json* schema);
  std::optional<std::vector<Json>> negation_of(const Json* schema, const std::string& key, const Json& value);
  static std::optional<std::vector<Json>> other_values(const std::vector<Json>& values);
  std::vector<Schemas> dependent(const Json* schema, const std::string& keyword, const std::string& name);
  const Json* made(Json schema, const std::string& path);
  bool exclude(const Schemas& one, const Schemas& other, int depth);

  const Json document_;
  std::deque<Json> added_;     // schemas that follow from others
  bool ref_is_alone_ = false;  // before 2019, $ref hid the keywords next to it
  std::map<const Json*, std::string> paths_;
  std::vector<const Json*> open_;
  std::set<const Json*> checked_;
  std::set<std::string> notes_;  // names that are neither keywords nor misspelt keywords
  std::map<const Json*, std::map<std::string, const Json*>> properties_;  // by name
  std::size_t made_ = 0;
};

/// Escapes a name for a JSON pointer (RFC 6901).
std::string in_pointer(const std::string& name);

}  // namespace staircase
