// A safetensors file: 8 bytes with the length of the header (little-endian), the header in JSON, and the
// tensors' bytes. The header maps each tensor's name to its dtype, its shape, and where its bytes begin and
// end:
//   {"wte.weight": {"dtype": "F16", "shape": [4096, 256], "data_offsets": [0, 2097152]}, ...}
#include "common/model/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "kernels/platform.h"

namespace staircase {

using nlohmann::json;
using Tensors = std::map<std::string, StoredTensor, std::less<>>;

namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();

/// Bytes per element; 0 for a dtype that this reader does not know and returns unchecked.
std::int64_t element_size(std::string_view dtype) {
  if (dtype == "BOOL" || dtype == "U8" || dtype == "I8" || dtype == "F8_E4M3" || dtype == "F8_E5M2") return 1;
  if (dtype == "U16" || dtype == "I16" || dtype == "F16" || dtype == "BF16") return 2;
  if (dtype == "U32" || dtype == "I32" || dtype == "F32") return 4;
  if (dtype == "U64" || dtype == "I64" || dtype == "F64") return 8;
  return 0;
}

/// Checks one entry of the header. `where` opens every message: the file and the tensor.
class Entry {
 public:
  Entry(const json& entry, std::string where) : entry_(entry), where_(std::move(where)) {
    if (!entry.is_object()) throw Error("{} is described by {}, not a JSON object", where_, shown(entry));
  }

  StoredTensor read(std::span<const std::byte> data) const {
    StoredTensor tensor;
    const json& dtype = field("dtype");
    if (!dtype.is_string()) throw Error("{} has a dtype that is not a string", where_);
    tensor.dtype = dtype.get<std::string>();
    tensor.shape = integers("shape");

    const std::vector<std::int64_t> offsets = integers("data_offsets");
    if (offsets.size() != 2) throw Error("{} has {} data_offsets instead of 2", where_, offsets.size());
    const auto begin = static_cast<std::uint64_t>(offsets[0]);
    const auto end = static_cast<std::uint64_t>(offsets[1]);
    if (begin > end || end > data.size()) {
      throw Error("{} lies at bytes {} to {}, and the file has 0 to {} for tensors", where_, begin, end,
                  data.size());
    }
    tensor.bytes = data.subspan(begin, end - begin);
    check_size(tensor);
    return tensor;
  }

 private:
  const json& field(const char* name) const {
    const auto found = entry_.find(name);
    if (found == entry_.end()) throw Error("{} has no {}", where_, name);
    return *found;
  }

  std::vector<std::int64_t> integers(const char* name) const {
    const json& list = field(name);
    if (!list.is_array()) throw Error("{} has a {} that is not an array", where_, name);
    std::vector<std::int64_t> values;
    for (const json& value : list) {
      // The parser stores non-negative integers as unsigned, and numbers that fit no integer as floats.
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kLargest) {
        throw Error("{} has {} in its {}, not an integer from 0 to 2^63 - 1", where_, shown(value), name);
      }
      values.push_back(value.get<std::int64_t>());
    }
    return values;
  }

  void check_size(const StoredTensor& tensor) const {
    const std::int64_t size = element_size(tensor.dtype);
    std::int64_t wanted = std::max<std::int64_t>(size, 1);
    for (const std::int64_t dimension : tensor.shape) {
      if (dimension != 0 && wanted > static_cast<std::int64_t>(kLargest) / dimension) {
        throw Error("{} has the shape {}, too large for any memory", where_, to_string(tensor.shape));
      }
      wanted *= dimension;
    }
    if (size != 0 && static_cast<std::uint64_t>(wanted) != tensor.bytes.size()) {
      throw Error("{} has {} bytes, and {} of shape {} takes {}", where_, tensor.bytes.size(), tensor.dtype,
                  to_string(tensor.shape), wanted);
    }
  }

  const json& entry_;
  std::string where_;
};

/// Throws Error unless the tensors cover `data` from its first byte to its last, each byte once.
void check_cover(const Tensors& tensors, std::span<const std::byte> data, const std::string& file) {
  std::vector<std::tuple<const std::byte*, const std::byte*, const std::string*>> ranges;
  for (const auto& [name, tensor] : tensors) {
    ranges.emplace_back(tensor.bytes.data(), tensor.bytes.data() + tensor.bytes.size(), &name);
  }
  std::sort(ranges.begin(), ranges.end());
  const std::byte* covered = data.data();
  const std::string* previous = nullptr;
  const auto require_none_left = [&](const std::byte* until) {
    if (covered == until) return;
    throw Error("{}: bytes {} to {} of the data belong to no tensor; a safetensors file has no unused bytes",
                file, covered - data.data(), until - data.data());
  };
  for (const auto& [begin, end, name] : ranges) {
    if (begin < covered) {
      throw Error("{}: the tensors {} and {} share bytes, but each must have its own", file, quote(*previous),
                  quote(*name));
    }
    require_none_left(begin);
    covered = end;
    previous = name;
  }
  require_none_left(data.data() + data.size());
}

}  // namespace

Tensors parse_safetensors(std::span<const std::byte> whole_file, const std::string& file) {
  if (whole_file.size() < kLengthBytes) {
    throw Error("{} is {} bytes long, too short for a safetensors file", file, whole_file.size());
  }
  refuse_lfs_pointer({reinterpret_cast<const char*>(whole_file.data()), whole_file.size()}, file);
  std::uint64_t header_length = 0;
  std::memcpy(&header_length, whole_file.data(), kLengthBytes);
  const std::uint64_t available = whole_file.size() - kLengthBytes;
  if (header_length > std::min(available, kMaxHeader)) {
    throw Error(
        "{} announces a header of {} bytes, more than the limit of {}: not a safetensors file, or cut off",
        file, header_length, std::min(available, kMaxHeader));
  }

  const auto header_bytes = whole_file.subspan(kLengthBytes, header_length);
  const std::string_view text(reinterpret_cast<const char*>(header_bytes.data()), header_bytes.size());
  const json header = parse_json_object(text, "the header of " + file);

  const std::span<const std::byte> data = whole_file.subspan(kLengthBytes + header_length);
  Tensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object() && !entry.is_null()) throw Error("{}: __metadata__ is not a JSON object", file);
      continue;
    }
    const Entry checked(entry, fmt::format("{}: the tensor {}", file, quote(name)));
    tensors.emplace(name, checked.read(data));
  }
  check_cover(tensors, data, file);
  return tensors;
}

Safetensors::Safetensors(const std::filesystem::path& file)
    : mapping_(file), tensors_(parse_safetensors(mapping_.bytes(), file.string())) {}

void Safetensors::release(const StoredTensor& tensor) const {
  platform::release(tensor.bytes);
}

const StoredTensor* Safetensors::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace staircase
