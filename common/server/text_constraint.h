// What the texts of a request must look like: JSON, a schema, a pattern, a grammar, or one of some choices.
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

/// The constraints of a model's texts. It keeps the latest ones: requests that repeat one share its masks.
/// From any thread; the constraints themselves belong to the model thread once a request has them.
class Constraints {
 public:
  static constexpr std::size_t kMaxKept = 32;  // a batch of the default size, each with its own

  explicit Constraints(std::shared_ptr<const SortedTokens> tokens) : tokens_(std::move(tokens)) {}

  /// The constraint with this name, which `make` makes from the tokens if it is not there.
  template <typename Make>
  std::shared_ptr<Constraint> find_or_make(const std::string& name, const Make& make) {
    if (const auto known = find(name)) return known;
    const std::shared_ptr<Constraint> made = make(tokens_);  // others need not wait
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
  /// `key` is the body's, and equal constraints have the same name.
  TextConstraint(std::string key, std::string name, std::shared_ptr<Constraint> constraint, EndTokens ends)
      : key_(std::move(key)), name_(std::move(name)), keep_{std::move(constraint)}, ends_(std::move(ends)) {}

  const std::string& key() const { return key_; }
  const std::string& name() const { return name_; }
  const GrammarRules& rules() const { return keep_.constraint->rules(); }

  /// For a row of its own.
  KeepConstraint row() const { return keep_; }

  /// Masks the logits of a row. If it finds no way on, this text and the request's others end with their next
  /// token, and `fault` says why: one client's constraint never stops the pass of the others.
  void apply(KeepConstraint& row, std::span<float> logits, std::span<const int> text);

  /// The answer to the request if one of its texts has failed.
  std::optional<HttpError> fault() const;

 private:
  const std::string key_, name_;
  const KeepConstraint keep_;
  const EndTokens ends_;
  mutable std::mutex mutex_;
  std::string fault_ = {};
};

/// Reads the constraint of a body; nothing if it has none. `body` is the same as text, since the order of a
/// schema's properties counts. Throws HttpError with the key, also for a key that cannot be combined with it.
std::shared_ptr<TextConstraint> read_constraint(JsonOptions& values, std::string_view body,
                                                const ServedModel& model);

/// The constraint of an answer that may, or must, call functions of which there is at least one. The model
/// has a form for that. `format`, or nullptr, is for answers without a call. Throws as above.
std::shared_ptr<TextConstraint> calls_constraint(JsonOptions& values, const Tools& tools,
                                                 const TextConstraint* format, const ServedModel& model);

/// The keys that read_constraint reads.
const std::vector<std::string>& constraint_keys();

}  // namespace staircase
