// Checks JSON more strictly than its parser does: a document that the parser would accept but misread is an
// error that names the file. No installed header includes this one: users of the library do not depend on our
// JSON parser.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace staircase {

/// Parses `text` as a JSON object. Throws Error for anything else, for duplicate keys, and for nesting deeper
/// than in any model's file. `file` is for the message.
nlohmann::json parse_json_object(std::string_view text, const std::string& file);

/// Parses `text` as any JSON value, nested at most `depth` deep; its keys keep their order. Throws Error for
/// invalid JSON, duplicate keys and deeper nesting.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& file, std::size_t depth);

/// `text` in quotation marks for an error message: shortened, and on one line.
std::string quote(std::string_view text);

/// `value` for an error message: a number in full, a string as `quote` returns it, and only the type of an
/// array or an object.
std::string shown(const nlohmann::json& value);

}  // namespace staircase
