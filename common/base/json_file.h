// Reading of the files beside the weights. JSON is checked more strictly than its parser does: what would be
// accepted and then misread is an error that names the file.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace staircase {

/// Throws Error unless `file` is a regular file (a folder, say, or nothing at all).
void require_file(const std::filesystem::path& file);

/// All bytes of `file`. Throws Error with one sentence if it cannot be read.
std::string read_file(const std::filesystem::path& file);

/// The same for a file that may be a pipe, as the shell's <(command) is one.
std::string read_file_or_pipe(const std::filesystem::path& file);

/// The JSON object that `text` is. Throws Error for anything else, for a key that an object holds twice, and
/// for nesting deeper than any model's file has. `file` is for the message.
nlohmann::json parse_json_object(std::string_view text, const std::string& file);

/// `text` in quotation marks for an error message: shortened, and without line breaks or invalid UTF-8.
std::string quote(std::string_view text);

/// `value` for an error message: a number or a string as it is, of anything larger only its kind.
std::string shown(const nlohmann::json& value);

}  // namespace staircase
