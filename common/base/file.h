// Files as strings.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace staircase {

/// Whether the name exists. An unreadable file and a loop of links count as existing: reading them reports
/// the fault.
bool is_there(const std::filesystem::path& file);

/// Throws Error if `content` is the pointer that git stores instead of a large file until git-lfs fetches it.
/// `file` is for the message.
void refuse_lfs_pointer(std::string_view content, const std::string& file);

/// Throws Error unless `file` exists and is a regular file, not a folder or a device.
void require_file(const std::filesystem::path& file);

/// Returns `text` without the byte order mark that editors, mainly on Windows, write at its start.
std::string_view without_byte_order_mark(std::string_view text);

/// Returns the bytes of a file that a person may have edited, without a byte order mark. Throws Error as
/// read_file does.
std::string read_text_file(const std::filesystem::path& file);

/// Returns all bytes of `file`. Throws Error with one sentence if the file cannot be read or is a git-lfs
/// pointer.
std::string read_file(const std::filesystem::path& file);

/// Returns all bytes of a file or a pipe, such as the shell's <(command). Accepts any content, even a git-lfs
/// pointer. Throws Error if `file` cannot be read.
std::string read_file_or_pipe(const std::filesystem::path& file);

}  // namespace staircase
