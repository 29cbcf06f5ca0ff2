#include "common/model/stored_tensor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <system_error>
#include <tuple>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/base/quoted.h"
#include "kernels/platform.h"

namespace staircase {

namespace {

std::string became_shorter(const std::filesystem::path& file) {
  return file.string() + " became shorter while it was read, or its disk failed";
}

}  // namespace

static_assert(std::endian::native == std::endian::little, "tensors are returned as the file stores them");

std::string to_string(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void check_overlaps(const std::map<std::string, StoredTensor, std::less<>>& tensors,
                    const std::string& file) {
  std::vector<std::tuple<const std::byte*, const std::byte*, const std::string*>> ranges;
  for (const auto& [name, tensor] : tensors) {
    ranges.emplace_back(tensor.bytes.data(), tensor.bytes.data() + tensor.bytes.size(), &name);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    const auto& [begin, end, name] = ranges[i];
    const auto& [previous_begin, previous_end, previous_name] = ranges[i - 1];
    if (begin < previous_end) {
      throw Error("{}: the tensors {} and {} share bytes, but each must have its own", file,
                  quote(*previous_name), quote(*name));
    }
  }
}

MappedFile::MappedFile(const std::filesystem::path& file) : file_(file) {
  require_file(file);
  try {
    bytes_ = platform::map_file(file, "error: " + printable(became_shorter(file)) + "\n");
  } catch (const std::system_error& fault) {
    throw Error("{} cannot be read: {}", file.string(), fault.code().message());
  }
}

MappedFile::~MappedFile() {
  platform::unmap_file(bytes_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : file_(std::move(other.file_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::require_whole() const {
  std::error_code fault;  // the mapping of a deleted file stays valid
  const std::uintmax_t size = std::filesystem::file_size(file_, fault);
  if (!fault && size < bytes_.size()) throw Error("{}", became_shorter(file_));
}

}  // namespace staircase
