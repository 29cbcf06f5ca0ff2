// The form that a request's texts must have: JSON, a schema, a pattern, a grammar, or one of some choices.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/decoding/constraint.h"
#include "common/server/http.h"

namespace staircase {

struct JsonOptions;
struct ServedModel;
struct Tools;

/// Keeps the latest constraints of a model's texts, so that requests that repeat one share its masks. Any
/// thread may call it; a constraint itself belongs to the model thread once a request has it.
class Constraints {
 public:
  static constexpr std::size_t kMaxKept = 32;  // one for each text of a default batch

  explicit Constraints(std::shared_ptr<const SortedTokens> tokens) : tokens_(std::move(tokens)) {}

  /// The constraint with this name, which `make` builds from the tokens if it is missing.
  template <typename Make>
  std::shared_ptr<Constraint> find_or_make(const std::string& name, const Make& make) {
    if (const auto known = find(name)) return known;
    const std::shared_ptr<Constraint> made = make(tokens_);  // without the lock: others need not wait
    keep(name, made);
    return made;
  }

 private:
  std::shared_ptr<Constraint> find(const std::string& name);
  void keep(const std::string& name, const std::shared_ptr<Constraint>& constraint);

  const std::shared_ptr<const SortedTokens> tokens_;
  std::mutex mutex_;
  std::vector<std::pair<std::string, std::shared_ptr<Constraint>>> kept_ = {};  // the latest at the end
};

/// The constraint of one request.
class TextConstraint {
 public:
  /// `key` is the constraint's key in the body. Equal constraints have the same name.
  TextConstraint(std::string key, std::string name, std::shared_ptr<Constraint> constraint, EndTokens ends)
      : key_(std::move(key)), name_(std::move(name)), keep_{std::move(constraint)}, ends_(std::move(ends)) {}

  const std::string& key() const { return key_; }
  const std::string& name() const { return name_; }
  const GrammarRules& rules() const { return keep_.constraint->rules(); }

  /// A copy for one row.
  KeepConstraint row() const { return keep_; }

  /// Masks the logits of a row. If no token is allowed, all texts of the request end with their next token,
  /// and `fault` reports why: one client's constraint never stops the pass of others.
  void apply(KeepConstraint& row, std::span<float> logits, std::span<const int> text);

  /// The error to answer with if one of the request's texts has failed.
  std::optional<HttpError> fault() const;

 private:
  const std::string key_, name_;
  const KeepConstraint keep_;
  const EndTokens ends_;
  mutable std::mutex mutex_;
  std::string fault_ = {};
};

/// Reads the constraint of a body; nothing if it has none. `body` is the text of `values`, which keeps the
/// order of a schema's properties. Throws HttpError with the key that is wrong, or that cannot be combined
/// with the constraint.
std::shared_ptr<TextConstraint> read_constraint(JsonOptions& values, std::string_view body,
                                                const ServedModel& model);

/// The constraint of an answer that may or must call functions. `tools` has at least one, and the model has a
/// form for calls. `format`, or nullptr, constrains answers without a call. Throws as above.
std::shared_ptr<TextConstraint> calls_constraint(JsonOptions& values, const Tools& tools,
                                                 const TextConstraint* format, const ServedModel& model);

/// The keys that read_constraint reads.
const std::vector<std::string>& constraint_keys();

}  // namespace staircase
