// JSON, checked more strictly than its parser does: what would be accepted and then misread is an error that
// names the file. Only sources include this, no header, and it is not installed: who uses the library needs
// no JSON of ours.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace staircase {

/// The JSON object that `text` is. Throws Error for anything else, for a key that an object holds twice, and
/// for nesting deeper than any model's file has. `file` is for the message.
nlohmann::json parse_json_object(std::string_view text, const std::string& file);

/// `text` in quotation marks for an error message: shortened, and on one line.
std::string quote(std::string_view text);

/// `value` for an error message: a number or a string as it is, of anything larger only its kind.
std::string shown(const nlohmann::json& value);

}  // namespace staircase
