// Files as strings.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace staircase {

/// Whether anything is there: also a file that cannot be read, or a loop of links, which reading reports.
bool is_there(const std::filesystem::path& file);

/// Throws Error if `content` is what git leaves in the place of a large file until git-lfs fetches it. `file`
/// is for the message.
void refuse_lfs_pointer(std::string_view content, const std::string& file);

/// Throws Error unless `file` is a regular file (and not missing or, say, a folder).
void require_file(const std::filesystem::path& file);

/// Text without the byte order mark that editors, above all on Windows, put in front of it.
std::string_view without_byte_order_mark(std::string_view text);

/// All bytes of a file that a person may have edited, without a byte order mark. Throws Error as read_file
/// does.
std::string read_text_file(const std::filesystem::path& file);

/// All bytes of `file`. Throws Error with one sentence if it cannot be read, or is a pointer of git-lfs.
std::string read_file(const std::filesystem::path& file);

/// All bytes of a file that may be a pipe, such as the shell's <(command), whatever they are.
std::string read_file_or_pipe(const std::filesystem::path& file);

}  // namespace staircase
