// Maps a GGUF file, or its several parts, and reads its metadata and tensors without copying the file.
// gguf_config.h and gguf_names.h define their meaning for a model. Format:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/model/stored_tensor.h"

namespace staircase {

/// A list in the metadata, as the file stores it: numbers, or strings that each follow their length.
struct GgufArray {
  std::uint32_t type = 0;  ///< type of the elements
  std::uint64_t size = 0;
  std::span<const std::byte> bytes = {};

  bool operator==(const GgufArray& other) const { return bytes.data() == other.bytes.data(); }
};

using GgufValue = std::variant<bool, std::uint64_t, std::int64_t, double, std::string, GgufArray>;

/// Returns a value for an error message: a number or a string in full, only the length of a list.
std::string shown(const GgufValue& value);

/// The checked contents of a GGUF file: every string, list and tensor lies inside the file.
struct GgufContents {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, StoredTensor, std::less<>> tensors;  ///< shapes with the outermost dimension first
};

/// Reads the bytes of a GGUF file. Throws Error with one sentence that names `file` and the fault. The result
/// refers to `whole_file`.
GgufContents parse_gguf(std::span<const std::byte> whole_file, const std::string& file);

/// Whether the path ends in .gguf, in upper or lower case.
bool is_gguf(const std::filesystem::path& file);

/// An open GGUF file, with its other parts if there are several. Movable, not copyable.
class GgufFile {
 public:
  struct Tensor : StoredTensor {
    std::filesystem::path file;  ///< the part that holds it
  };

  /// Maps and checks the file; if a model has several parts, such as model-00001-of-00003.gguf, `file` may be
  /// any of them. Throws Error with one sentence that names the file and the fault.
  explicit GgufFile(const std::filesystem::path& file);

  /// Uses a file that is already in memory, for tests; `file` is for messages.
  GgufFile(GgufContents contents, std::filesystem::path file);

  const std::filesystem::path& file() const { return file_; }

  /// All tensors by name. A tensor of an unreadable type has no bytes.
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }

  /// Throws Error if one of the parts has become shorter since it was opened.
  void require_whole() const;

  /// These functions return the metadata under `key`, or nothing if the file has none. They throw Error for a
  /// value of another type.
  std::optional<std::string> text(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::uint64_t> integer(
      std::string_view key) const;  ///< any integer type, but no negative value
  std::optional<double> number(std::string_view key) const;
  std::optional<std::vector<std::string>> texts(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<float>> numbers(std::string_view key) const;

 private:
  void open_parts(const std::vector<std::filesystem::path>& files);
  void add(const std::filesystem::path& file, std::map<std::string, StoredTensor, std::less<>> tensors);
  template <typename Value>
  const Value* get(std::string_view key, std::string_view wanted) const;

  std::filesystem::path file_;
  std::vector<MappedFile> mappings_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace staircase
