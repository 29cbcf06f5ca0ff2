// Checks that all bodies share: a limited number of values, known keys, and keys that are rejected by name.
// Only .cpp files include this header.
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
  std::set<std::string> known;  ///< the keys that are read
  /// Keys that are not implemented but would change the answer, with the value that changes nothing. null:
  /// every value changes something.
  std::map<std::string, nlohmann::json> refused;
  std::size_t most;  ///< maximum number of keys in the whole body, including inner objects
};

/// The keys that no part of this server implements.
const std::map<std::string, nlohmann::json>& not_implemented();

/// Parses a body as an object, without its null values. Throws HttpError for a body that is not an object,
/// for a rejected key, and for a misspelling of a known key; all others are ignored.
nlohmann::json read_body(std::string_view body, const BodyKeys& keys, std::size_t most_values);

/// Rejects the unsupported keys of an object unless they change nothing. `name` is the object's name in
/// messages, with a trailing point, and empty for the body itself.
void refuse_keys(const nlohmann::json& object, const std::map<std::string, nlohmann::json>& refused,
                 const std::string& name = "");

/// Calls `work`, which reads this key of the body, and turns its errors into rejections: status 400 and the
/// key.
template <typename Work>
auto reject_errors(const std::string& key, const Work& work) {
  try {
    return work();
  } catch (const HttpError&) {
    throw;
  } catch (const Error& error) {
    throw HttpError(400, error.what(), key);
  }
}

/// The adapter with this name, or kNoAdapter for the model alone. Throws HttpError with status 404 for the
/// name of another model.
int require_model(const std::string& name, const ServedModel& model);

/// The adapter that the body names as its model; kNoAdapter without a name. Throws as above.
int require_model(JsonOptions& body, const ServedModel& model);

/// Reads a token id. Throws Error with `name` if the value is not one.
int token_id(const std::string& name, const nlohmann::json& value, const ServedModel& model);

/// The rejection of a prompt that does not fit into the context with the new tokens. `prompt` is its length,
/// such as "5" or "900 bytes", and `key` its key.
HttpError too_long(const std::string& prompt, int max_tokens, int n_positions, const std::string& key);

}  // namespace staircase
