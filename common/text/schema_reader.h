// A JSON Schema as it is read: where its parts lie, what they say, and which of them hold together. No
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

/// The types of JSON values, as bits. A number is whole or has a fraction.
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

/// The characters of an object's names: all that have one short form in JSON, so no name comes in disguise.
inline const CodePoints kNameCharacters = all_but({{0, 7}, {11, 11}, {14, 31}});

/// Reads one schema. Each function throws UsageError with the place of what it cannot use:
/// "the schema cannot be used at /properties/age: it refers to itself".
class SchemaReader {
 public:
  using Json = nlohmann::ordered_json;

  /// Schemas that all must hold for a value: parts of the document.
  using Schemas = std::vector<const Json*>;

  /// The document may be an object, true or false.
  explicit SchemaReader(Json document);

  SchemaReader(const SchemaReader&) = delete;
  SchemaReader& operator=(const SchemaReader&) = delete;

  const Json* root() const { return &document_; }

  [[noreturn]] void fail(const Json* schema, std::string_view what) const;
  [[noreturn]] void fail(const Json* schema, const std::string& keyword, std::string_view what) const;

  /// Counts parts of the grammar that is made of the schema. Throws UsageError for too many of them.
  void count(std::size_t parts);

  // ── Parts ──

  /// The schema within another one that a keyword has, such as items.
  const Json* within(const Json* schema, const std::string& keyword);

  /// The schemas in a keyword's list, such as prefixItems.
  Schemas listed(const Json* schema, const std::string& keyword);

  /// The schemas of an object's member: from properties and patternProperties, or from additionalProperties
  /// if neither names it.
  Schemas member(const Schemas& all, const std::string& name);

  /// The patterns of patternProperties, each once.
  static std::set<std::string> patterns_in(const Schemas& all);

  /// The schemas of a member that no properties name and that exactly these patterns match.
  Schemas matched(const Schemas& all, const std::set<std::string>& patterns);

  // ── Which schemas hold together ──

  /// The ways in which all schemas can hold, each as schemas of which only the keywords beside anyOf and the
  /// like matter.
  std::vector<Schemas> alternatives(const Schemas& schemas);

  // ── What schemas say together ──

  /// The JsonTypes that they allow.
  int types_of(const Schemas& all) const;

  /// The values that enum and const leave, if a schema has either.
  std::optional<std::vector<Json>> values_of(const Schemas& all);

  struct Bounds {
    std::optional<double> least = {}, most = {};
    bool excludes_least = false, excludes_most = false;
    const Json* least_by = nullptr;  ///< the schema that says so
    const Json* most_by = nullptr;
  };
  static Bounds bounds_of(const Schemas& all);

  /// The largest or smallest count that a keyword such as minItems has.
  static std::optional<int> counted(const Schemas& all, const char* keyword, bool takes_largest);

  /// The names in their lists `required`, in the written order.
  static std::vector<std::string> required_in(const Schemas& all);

  /// What `not` excludes, if these are types or strings: those of a list, or those that match a pattern. Any
  /// other `not` is among the alternatives. Otherwise nullptr.
  static const Json* excluded(const Json* schema);

  static bool is_whole(const Json& number);

  /// What stands between the quotation marks of a name that one of the patterns in patternProperties matches.
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
  std::deque<Json> added_;     // schemas that others imply
  bool ref_is_alone_ = false;  // before 2019, $ref hides the keywords beside it
  std::map<const Json*, std::string> paths_;
  std::vector<const Json*> open_;
  std::set<const Json*> checked_;
  std::set<std::string> notes_;  // names that are no keywords, and none misspelt
  std::map<const Json*, std::map<std::string, const Json*>> properties_;  // by name
  std::size_t made_ = 0;
};

/// A name as a part of a JSON pointer (RFC 6901).
std::string in_pointer(const std::string& name);

}  // namespace staircase
