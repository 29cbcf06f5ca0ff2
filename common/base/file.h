// Files as strings.
#pragma once

#include <filesystem>
#include <string>

namespace staircase {

/// Throws Error unless `file` is a regular file (a folder, say, or nothing at all).
void require_file(const std::filesystem::path& file);

/// All bytes of `file`. Throws Error with one sentence if it cannot be read.
std::string read_file(const std::filesystem::path& file);

/// The same for a file that may be a pipe, as the shell's <(command) is one.
std::string read_file_or_pipe(const std::filesystem::path& file);

}  // namespace staircase
