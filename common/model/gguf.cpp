// A GGUF file; all numbers are little-endian. It starts with "GGUF", the version (4 bytes), and the numbers
// of tensors and of metadata pairs (8 bytes each). Each pair has a key, a type and a value. Each tensor has a
// name, dimensions with the innermost first, a type and an offset. The tensors' numbers follow after some
// padding, each tensor at a multiple of the alignment. A string is stored as its length, then its bytes.
#include "common/model/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/model/gguf_types.h"

namespace staircase {
namespace {

constexpr std::uint32_t kOldestVersion = 2, kVersion = 3;
constexpr std::uint64_t kMostDimensions = 4;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();

/// The types of metadata, as the file numbers them.
enum Type : std::uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};

/// The bytes of one value of this type; 0 for strings, lists and unknown types.
std::uint64_t size_of_type(std::uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool:
      return 1;
    case kUint16:
    case kInt16:
      return 2;
    case kUint32:
    case kInt32:
    case kFloat32:
      return 4;
    case kUint64:
    case kInt64:
    case kFloat64:
      return 8;
    default:
      return 0;
  }
}

/// Reads one value after another from the bytes. Errors name the position in the file.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return bytes_.size() - position_; }

  std::span<const std::byte> take(std::uint64_t size, std::string_view what) {
    if (size > left()) {
      throw Error("{} ends inside {}: {} bytes from byte {} on, but the file has {}", file_, what, size,
                  position_, bytes_.size());
    }
    const auto taken = bytes_.subspan(position_, size);
    position_ += size;
    return taken;
  }

  template <typename Number>
  Number number(std::string_view what) {
    Number value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }

  std::string text(std::string_view what) {
    const auto size = number<std::uint64_t>(what);
    const auto bytes = take(size, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  /// Reads the number of elements that follow, each of at least `smallest` bytes.
  std::uint64_t count(std::string_view what, std::uint64_t smallest) {
    const auto count = number<std::uint64_t>(what);
    check_count(count, what, smallest);
    return count;
  }

  void check_count(std::uint64_t count, std::string_view what, std::uint64_t smallest) const {
    if (count <= left() / smallest) return;
    throw Error("{} announces {} {}, which do not fit into the {} bytes from byte {} on", file_, count, what,
                left(), position_);
  }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t position_ = 0;
  const std::string& file_;
};

/// A number in the metadata, widened to 64 bits.
template <typename Number>
GgufValue widened(std::span<const std::byte> bytes) {
  Number number;
  std::memcpy(&number, bytes.data(), sizeof number);
  if constexpr (std::is_floating_point_v<Number>) {
    return static_cast<double>(number);
  } else if constexpr (std::is_signed_v<Number>) {
    return static_cast<std::int64_t>(number);
  } else {
    return static_cast<std::uint64_t>(number);
  }
}

GgufValue number_of(std::uint32_t type, std::span<const std::byte> bytes) {
  switch (type) {
    case kUint8:
      return widened<std::uint8_t>(bytes);
    case kInt8:
      return widened<std::int8_t>(bytes);
    case kUint16:
      return widened<std::uint16_t>(bytes);
    case kInt16:
      return widened<std::int16_t>(bytes);
    case kUint32:
      return widened<std::uint32_t>(bytes);
    case kInt32:
      return widened<std::int32_t>(bytes);
    case kFloat32:
      return widened<float>(bytes);
    case kBool:
      return bytes[0] != std::byte{0};
    case kUint64:
      return widened<std::uint64_t>(bytes);
    case kInt64:
      return widened<std::int64_t>(bytes);
    default:
      return widened<double>(bytes);
  }
}

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), file_(file), reader_(bytes, file) {}

  GgufContents parse() {
    check_magic_and_version();
    // A tensor takes at least a name's length, a number of dimensions, a type and an offset. A pair takes at
    // least a key's length, a type and one byte.
    const std::uint64_t tensors = reader_.count("tensors", 8 + 4 + 4 + 8);
    const std::uint64_t pairs = reader_.count("pairs of metadata", 8 + 4 + 1);
    for (std::uint64_t i = 0; i < pairs; ++i) read_pair();
    reader_.check_count(tensors, "tensors", 8 + 4 + 4 + 8);
    std::vector<Entry> entries;
    for (std::uint64_t i = 0; i < tensors; ++i) entries.push_back(read_entry());
    place(entries);
    check_overlaps(contents_.tensors, file_);
    return std::move(contents_);
  }

 private:
  struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;
    std::uint32_t type;
    std::uint64_t offset;
  };

  void check_magic_and_version() {
    refuse_lfs_pointer({reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}, file_);
    const auto magic = reader_.take(4, "its first four bytes");
    if (std::memcmp(magic.data(), "GGUF", 4) != 0) {
      throw Error("{} does not begin with the letters GGUF: it is another kind of file", file_);
    }
    const auto version = reader_.number<std::uint32_t>("its version");
    if (version >= kOldestVersion && version <= kVersion) return;
    if (version != 0 && version % (1u << 16) == 0) {
      throw Error("{} is a big-endian GGUF file; only little-endian ones can be read", file_);
    }
    throw Error("{} is a GGUF file of version {}; versions {} and {} can be read", file_, version,
                kOldestVersion, kVersion);
  }

  void read_pair() {
    const std::string key = reader_.text("a key of the metadata");
    const auto type = reader_.number<std::uint32_t>("the type of " + quote(key));
    GgufValue value = read_value(key, type);
    if (!contents_.metadata.emplace(key, std::move(value)).second) {
      throw Error("{} has the key {} twice", file_, quote(key));
    }
  }

  GgufValue read_value(const std::string& key, std::uint32_t type) {
    const std::string what = "the value of " + quote(key);
    if (type == kString) return reader_.text(what);
    if (type == kArray) return read_array(key, what);
    return number_of(type, reader_.take(known_size(key, type), what));
  }

  GgufArray read_array(const std::string& key, const std::string& what) {
    GgufArray array;
    array.type = reader_.number<std::uint32_t>(what);
    array.size = reader_.number<std::uint64_t>(what);
    const std::string elements = "elements of " + quote(key);
    if (array.type == kArray)
      throw Error("{}: {} is a list of lists, which no model needs", file_, quote(key));
    const std::uint64_t begin = reader_.position();
    if (array.type == kString) {
      reader_.check_count(array.size, elements, 8);
      for (std::uint64_t i = 0; i < array.size; ++i) {
        reader_.take(reader_.number<std::uint64_t>(what), what);
      }
    } else {
      const std::uint64_t size = known_size(key, array.type);
      reader_.check_count(array.size, elements, size);
      reader_.take(array.size * size, what);
    }
    array.bytes = bytes_.subspan(begin, reader_.position() - begin);
    return array;
  }

  std::uint64_t known_size(const std::string& key, std::uint32_t type) const {
    const std::uint64_t size = size_of_type(type);
    if (size == 0)
      throw Error("{}: {} has a value of type {}, but only types 0 to 12 are known", file_, quote(key), type);
    return size;
  }

  Entry read_entry() {
    Entry entry;
    entry.name = reader_.text("the name of a tensor");
    const std::string what = "the tensor " + quote(entry.name);
    const auto dimensions = reader_.number<std::uint32_t>(what);
    if (dimensions < 1 || dimensions > kMostDimensions) {
      throw Error("{}: {} has {} dimensions, not 1 to {}", file_, what, dimensions, kMostDimensions);
    }
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      const auto size = reader_.number<std::uint64_t>(what);
      if (size < 1 || size > kLargest) {
        throw Error("{}: {} has a dimension of {}, not 1 to 2^63 - 1", file_, what, size);
      }
      entry.shape.insert(entry.shape.begin(), static_cast<std::int64_t>(size));
    }
    entry.type = reader_.number<std::uint32_t>(what);
    entry.offset = reader_.number<std::uint64_t>(what);
    return entry;
  }

  std::uint64_t alignment() const {
    const auto found = contents_.metadata.find("general.alignment");
    if (found == contents_.metadata.end()) return kDefaultAlignment;
    const auto* const number = std::get_if<std::uint64_t>(&found->second);
    if (number == nullptr || *number == 0 || *number > (1u << 30) || (*number & (*number - 1)) != 0) {
      throw Error("{}: general.alignment is {}, not an unsigned power of two", file_, shown(found->second));
    }
    return *number;
  }

  /// Finds the bytes of each tensor.
  void place(const std::vector<Entry>& entries) {
    if (entries.empty()) return;
    const std::uint64_t align = alignment();
    const std::uint64_t begin = (reader_.position() + align - 1) / align * align;
    const auto data = bytes_.subspan(std::min<std::uint64_t>(begin, bytes_.size()));
    for (const Entry& entry : entries) {
      const std::string where = fmt::format("{}: the tensor {}", file_, quote(entry.name));
      if (entry.offset % align != 0) {
        throw Error("{} lies at {}, not a multiple of the alignment {}", where, entry.offset, align);
      }
      const GgufType* const type = find_gguf_type(entry.type);
      StoredTensor tensor;
      tensor.dtype = type != nullptr ? std::string(type->name) : fmt::format("type {}", entry.type);
      tensor.shape = entry.shape;
      const std::uint64_t size =
          type != nullptr && type->to_floats != nullptr ? bytes_of(entry, *type, where) : 0;
      if (entry.offset > data.size() || size > data.size() - entry.offset) {
        throw Error(
            "{} has {} bytes from byte {} of the tensors' data on, and the file has {} of data: it is cut "
            "off",
            where, size, entry.offset, data.size());
      }
      tensor.bytes = data.subspan(entry.offset, size);
      if (!contents_.tensors.emplace(entry.name, std::move(tensor)).second) {
        throw Error("{} occurs twice", where);
      }
    }
  }

  std::uint64_t bytes_of(const Entry& entry, const GgufType& type, const std::string& where) const {
    const std::int64_t row = entry.shape.back();
    if (row % type.block != 0) {
      throw Error("{} has rows of {} numbers, and {} stores them in blocks of {}", where, row, type.name,
                  type.block);
    }
    std::vector<std::int64_t> blocks = entry.shape;
    blocks.back() /= type.block;
    std::int64_t size = type.bytes;
    for (const std::int64_t dimension : blocks) {
      if (size > static_cast<std::int64_t>(kLargest) / dimension) {
        throw Error("{} has the shape {}, too large for any memory", where, to_string(entry.shape));
      }
      size *= dimension;
    }
    return static_cast<std::uint64_t>(size);
  }

  std::span<const std::byte> bytes_;
  const std::string& file_;
  Reader reader_;
  GgufContents contents_;
};

/// The numbers of a list, widened to `Wide`; nothing for a list of another kind.
template <typename Wide>
std::optional<std::vector<Wide>> numbers_of(const GgufArray& array) {
  const std::uint64_t size = size_of_type(array.type);
  if (size == 0) return {};
  std::vector<Wide> numbers;
  numbers.reserve(array.size);
  for (std::uint64_t i = 0; i < array.size; ++i) {
    const GgufValue value = number_of(array.type, array.bytes.subspan(i * size, size));
    if (std::is_floating_point_v<Wide> != std::holds_alternative<double>(value)) return {};
    numbers.push_back(std::visit(
        [](const auto& number) {
          if constexpr (std::is_arithmetic_v<std::decay_t<decltype(number)>>)
            return static_cast<Wide>(number);
          return Wide{};
        },
        value));
  }
  return numbers;
}

/// The files of all parts of a model, for example model-00001-of-00003.gguf to model-00003-of-00003.gguf.
/// `file` is any one of them.
std::vector<std::filesystem::path> part_files(const std::filesystem::path& file, std::uint64_t count) {
  const std::string name = file.filename().string(), ending = fmt::format("-of-{:05}.gguf", count);
  constexpr std::size_t kNumber = std::string_view("-00001").size();
  if (!name.ends_with(ending) || name.size() < ending.size() + kNumber) {
    throw Error(
        "{} is one of {} parts, but its name does not end in -NNNNN{}, so the other parts cannot "
        "be found",
        file.string(), count, ending);
  }
  const std::string stem = name.substr(0, name.size() - ending.size() - kNumber);
  std::vector<std::filesystem::path> files;
  for (std::uint64_t i = 1; i <= count; ++i) {
    files.push_back(file.parent_path() / fmt::format("{}-{:05}{}", stem, i, ending));
    if (!is_there(files.back())) {
      throw Error("{} is one of {} parts, and {} is missing", file.string(), count,
                  quote(files.back().filename().string()));
    }
  }
  return files;
}

}  // namespace

std::string shown(const GgufValue& value) {
  return std::visit(
      [](const auto& it) -> std::string {
        using Value = std::decay_t<decltype(it)>;
        if constexpr (std::is_same_v<Value, std::string>) return quote(it);
        if constexpr (std::is_same_v<Value, GgufArray>) return fmt::format("a list of {}", it.size);
        if constexpr (std::is_arithmetic_v<Value>) return fmt::format("{}", it);
      },
      value);
}

GgufContents parse_gguf(std::span<const std::byte> whole_file, const std::string& file) {
  return Parser(whole_file, file).parse();
}

bool is_gguf(const std::filesystem::path& file) {
  std::string ending = file.extension().string();
  for (char& letter : ending)
    letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter;
  return ending == ".gguf";
}

void GgufFile::require_whole() const {
  for (const MappedFile& mapping : mappings_) mapping.require_whole();
}

GgufFile::GgufFile(GgufContents contents, std::filesystem::path file)
    : file_(std::move(file)), metadata_(std::move(contents.metadata)) {
  add(file_, std::move(contents.tensors));
}

GgufFile::GgufFile(const std::filesystem::path& file) : file_(file) {
  mappings_.emplace_back(file);
  GgufContents contents = parse_gguf(mappings_[0].bytes(), file.string());
  metadata_ = std::move(contents.metadata);
  const std::uint64_t parts = integer("split.count").value_or(1);
  if (parts > 1) {
    open_parts(part_files(file, parts));
  } else {
    add(file, std::move(contents.tensors));
  }
}

void GgufFile::open_parts(const std::vector<std::filesystem::path>& files) {
  mappings_.clear();
  auto first = metadata_;
  for (std::size_t i = 0; i < files.size(); ++i) {
    file_ = files[i];
    GgufContents contents = parse_gguf(mappings_.emplace_back(file_).bytes(), file_.string());
    metadata_ = std::move(contents.metadata);
    const std::uint64_t number = integer("split.no").value_or(0), count = integer("split.count").value_or(1);
    if (number != i || count != files.size()) {
      throw Error("{} is part {} of {} in its metadata, but part {} of {} by its name", file_.string(),
                  number + 1, count, i + 1, files.size());
    }
    add(file_, std::move(contents.tensors));
    if (i == 0) first = metadata_;
  }
  file_ = files[0];
  metadata_ = std::move(first);  // the other parts state nothing about the model
  const std::uint64_t announced = integer("split.tensors.count").value_or(tensors_.size());
  if (announced != tensors_.size()) {
    throw Error("{} announces {} tensors in all parts, and they hold {}", file_.string(), announced,
                tensors_.size());
  }
}

void GgufFile::add(const std::filesystem::path& file,
                   std::map<std::string, StoredTensor, std::less<>> tensors) {
  for (auto& [name, tensor] : tensors) {
    if (!tensors_.emplace(name, Tensor{std::move(tensor), file}).second) {
      throw Error("{}: the tensor {} is also in another part", file.string(), quote(name));
    }
  }
}

template <typename Value>
const Value* GgufFile::get(std::string_view key, std::string_view wanted) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return nullptr;
  const auto* const value = std::get_if<Value>(&found->second);
  if (value == nullptr)
    throw Error("{}: {} is {}, not {}", file_.string(), key, shown(found->second), wanted);
  return value;
}

std::optional<std::string> GgufFile::text(std::string_view key) const {
  const auto* const value = get<std::string>(key, "a string");
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const auto* const value = get<bool>(key, "true or false");
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<std::uint64_t> GgufFile::integer(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found != metadata_.end()) {
    const auto* const value = std::get_if<std::int64_t>(&found->second);
    if (value != nullptr && *value >= 0) return static_cast<std::uint64_t>(*value);
  }
  const auto* const value = get<std::uint64_t>(key, "an integer from 0 on");
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const auto* const value = get<double>(key, "a floating-point number");
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<std::vector<std::string>> GgufFile::texts(std::string_view key) const {
  const auto* const array = get<GgufArray>(key, "a list of strings");
  if (array == nullptr) return {};
  if (array->type != kString) throw Error("{}: {} is a list of numbers, not of strings", file_.string(), key);
  std::vector<std::string> texts;
  texts.reserve(array->size);
  const std::string file = file_.string();
  Reader reader(array->bytes, file);
  for (std::uint64_t i = 0; i < array->size; ++i) texts.push_back(reader.text(key));
  return texts;
}

std::optional<std::vector<std::int64_t>> GgufFile::integers(std::string_view key) const {
  const auto* const array = get<GgufArray>(key, "a list of integers");
  if (array == nullptr) return {};
  auto integers = numbers_of<std::int64_t>(*array);
  if (!integers) throw Error("{}: {} is not a list of integers", file_.string(), key);
  return integers;
}

std::optional<std::vector<float>> GgufFile::numbers(std::string_view key) const {
  const auto* const array = get<GgufArray>(key, "a list of floating-point numbers");
  if (array == nullptr) return {};
  auto numbers = numbers_of<float>(*array);
  if (!numbers) throw Error("{}: {} is not a list of floating-point numbers", file_.string(), key);
  return numbers;
}

}  // namespace staircase
