// Reads a GGUF file without copying it: metadata and tensors, in one file or in parts. Their meaning for a
// model is defined elsewhere. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
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

/// A list of metadata as the file stores it: numbers, or strings, each after its length.
struct GgufArray {
  std::uint32_t type = 0;  ///< of its elements
  std::uint64_t size = 0;
  std::span<const std::byte> bytes = {};

  bool operator==(const GgufArray& other) const { return bytes.data() == other.bytes.data(); }
};

using GgufValue = std::variant<bool, std::uint64_t, std::int64_t, double, std::string, GgufArray>;

/// A value for an error message: a number or a string in full, of a list only its length.
std::string shown(const GgufValue& value);

/// The bytes of a GGUF file, checked: every string, list and tensor is inside.
struct GgufContents {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, StoredTensor, std::less<>> tensors;  ///< shapes with the outermost dimension first
};

/// Throws Error with one sentence that names `file` and the fault. The result refers to `whole_file`.
GgufContents parse_gguf(std::span<const std::byte> whole_file, const std::string& file);

/// Whether that path ends as those of GGUF files do: in .gguf, whatever the case.
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

  /// A file that is in memory already, for tests; `file` is for messages.
  GgufFile(GgufContents contents, std::filesystem::path file);

  const std::filesystem::path& file() const { return file_; }

  /// All tensors by name. A tensor of an unreadable type has no bytes.
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }

  /// Throws Error if one of the parts has become shorter since.
  void require_whole() const;

  /// The metadata of that name, or nothing. Each throws Error for a value of another type.
  std::optional<std::string> text(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::uint64_t> integer(
      std::string_view key) const;  ///< of any size and sign, but not negative
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
