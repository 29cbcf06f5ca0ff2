// A file that a person would miss is never written in place. Implemented in platform.cpp.
#pragma once

#include <filesystem>
#include <string_view>

namespace staircase::platform {

/// Writes a file that is complete or, after a failure, what it was before: the bytes go into a file beside
/// it, to the disk, and then under its name. A link stays a link. Throws std::system_error.
void replace_file(const std::filesystem::path& file, std::string_view bytes);

}  // namespace staircase::platform
