// A tensor as a file stores it, and a file that is mapped into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace staircase {

/// A tensor as the file stores it: row-major, little-endian.
struct StoredTensor {
  std::string dtype;                 ///< the format's name: "F32", "F16", "BF16", "I64", "Q4_1" ...
  std::vector<std::int64_t> shape;   ///< outermost dimension first; empty for a scalar
  std::span<const std::byte> bytes;  ///< valid as long as the file is open
};

/// Formats a shape for error messages: "[768, 2304]".
std::string to_string(const std::vector<std::int64_t>& shape);

/// Throws Error that names two tensors if these share bytes. `file` is for the message.
void check_overlaps(const std::map<std::string, StoredTensor, std::less<>>& tensors, const std::string& file);

/// A file's bytes in memory, which the system reads on access. Movable, not copyable.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws Error with one sentence if the file cannot be read.
  explicit MappedFile(const std::filesystem::path& file);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

  /// Throws Error if the file has become shorter since it was mapped. Reading beyond the last page of the
  /// file ends the process with the same sentence, but the rest of that page reads as zeros.
  void require_whole() const;

 private:
  std::filesystem::path file_;
  std::span<const std::byte> bytes_;
};

}  // namespace staircase
