#include "common/base/file.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <vector>

#include "common/base/error.h"
#include "common/base/quoted.h"

namespace staircase {
namespace {

/// The status of a file that exists and is not a folder. Throws Error otherwise.
std::filesystem::file_status status_of(const std::filesystem::path& file) {
  std::error_code fault;
  const auto status = std::filesystem::status(file, fault);
  if (status.type() == std::filesystem::file_type::not_found)
    throw Error("{} does not exist", typed(file.string()));
  if (fault) throw Error("{} cannot be read: {}", typed(file.string()), fault.message());
  if (std::filesystem::is_directory(status)) throw Error("{} is a folder, not a file", typed(file.string()));
  return status;
}

std::string bytes_of(const std::filesystem::path& file) {
  const auto refuse = [&] {
    throw Error("{} cannot be read: {}", typed(file.string()), std::generic_category().message(errno));
  };
  // A disk may fail midway. Not every library's stream distinguishes that from the end of the file.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(file.string().c_str(), "rb"),
                                                           std::fclose);
  if (in == nullptr) refuse();
  std::string bytes;
  std::vector<char> part(std::size_t{1} << 16);
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), in.get())) {
    bytes.append(part.data(), count);
  }
  if (std::ferror(in.get()) != 0) refuse();
  return bytes;
}

}  // namespace

bool is_there(const std::filesystem::path& file) {
  std::error_code ignored;
  return std::filesystem::status(file, ignored).type() != std::filesystem::file_type::not_found;
}

void refuse_lfs_pointer(std::string_view content, const std::string& file) {
  if (content.starts_with("version https://git-lfs.github.com/spec/")) {
    throw Error("{} is only a git-lfs pointer to the file; \"git lfs pull\" fetches the file itself", file);
  }
}

void require_file(const std::filesystem::path& file) {
  if (!std::filesystem::is_regular_file(status_of(file))) {
    throw Error("{} is not a regular file", typed(file.string()));
  }
}

std::string_view without_byte_order_mark(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  return text;
}

std::string read_text_file(const std::filesystem::path& file) {
  return std::string(without_byte_order_mark(read_file(file)));
}

std::string read_file(const std::filesystem::path& file) {
  require_file(file);
  std::string content = bytes_of(file);
  refuse_lfs_pointer(content, typed(file.string()));
  return content;
}

std::string read_file_or_pipe(const std::filesystem::path& file) {
  if (!std::filesystem::is_fifo(status_of(file))) require_file(file);
  return bytes_of(file);
}

}  // namespace staircase
