// What all bodies have in common: few enough values to build them, keys that are known, and keys that are
// refused by name. Only sources include this.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "common/base/json_options.h"
#include "common/server/completion_request.h"

namespace staircase {

struct CompletionRequest::Body : JsonOptions {};

/// The keys of a body.
struct BodyKeys {
  std::set<std::string> known;  ///< those that are read
  /// Those that change the answer where they are implemented, and the value that changes nothing. null: every
  /// value changes something.
  std::map<std::string, nlohmann::json> refused;
  std::size_t most;  ///< in the whole body, those of inner objects included
};

/// The keys that are implemented nowhere in this server.
const std::map<std::string, nlohmann::json>& not_implemented();

/// The object that a body is, without its null values. Throws HttpError for a body that is none, for a key
/// that is refused, and for one that looks like a misspelt known key; all others are ignored.
nlohmann::json read_body(std::string_view body, const BodyKeys& keys, std::size_t most_values);

/// Refuses the keys of an object that are refused, unless they change nothing. `name` of the object is for
/// messages, with a point behind it; the body itself has none.
void refuse_keys(const nlohmann::json& object, const std::map<std::string, nlohmann::json>& refused,
                 const std::string& name = "");

/// Turns the errors of `work`, which looks at a key of the body, into refusals.
template <typename Work>
auto about(const std::string& key, const Work& work) {
  try {
    return work();
  } catch (const HttpError&) {
    throw;
  } catch (const Error& error) {
    throw HttpError(400, error.what(), key);
  }
}

/// Throws HttpError with status 404 where the body names another model.
void require_model(JsonOptions& body, const ServedModel& model);

/// Throws Error with the name for what is no token id.
int token_id(const std::string& name, const nlohmann::json& value, const ServedModel& model);

/// The refusal of a prompt, "5" tokens or "900 bytes" long, that does not fit into the context together with
/// the new tokens. `key` is that of the prompt.
HttpError too_long(const std::string& prompt, int max_tokens, int n_positions, const std::string& key);

}  // namespace staircase
