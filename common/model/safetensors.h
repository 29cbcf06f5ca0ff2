// Reads a .safetensors file without copying it: the file is mapped into memory, the header is checked, and
// every tensor is a view of the mapped bytes. Format: https://huggingface.co/docs/safetensors
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "common/model/stored_tensor.h"

namespace staircase {

/// One open file. Movable, not copyable.
class Safetensors {
 public:
  /// Maps `file` and checks the whole header: lengths and offsets, that each byte belongs to one tensor, and
  /// that every tensor of a known dtype has shape × element size bytes. Throws Error with one sentence that
  /// names the file and the fault.
  explicit Safetensors(const std::filesystem::path& file);

  /// All tensors by name.
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }

  /// The tensor with this name, or nullptr.
  const StoredTensor* find(std::string_view name) const;

  /// Releases the memory of this tensor's bytes. Call it once they have been copied elsewhere. The bytes can
  /// still be read: the system then loads them from the file again.
  void release(const StoredTensor& tensor) const;

  /// Throws Error if the file has become shorter since it was opened.
  void require_whole() const { mapping_.require_whole(); }

 private:
  MappedFile mapping_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

/// Returns the tensors of a safetensors file that is already in memory, checked as above. Separate from the
/// mapping, so that a test can pass any bytes. `file` is for error messages only.
std::map<std::string, StoredTensor, std::less<>> parse_safetensors(std::span<const std::byte> whole_file,
                                                                   const std::string& file);

}  // namespace staircase
