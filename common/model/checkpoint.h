// The weights of a model by the names that Hugging Face gives them, wherever they are stored: in one
// safetensors file, in shards that an index names, or in a GGUF file.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/safetensors.h"
#include "kernels/device.h"

namespace staircase {

/// A tensor of a checkpoint. dtype and bytes are those of its file; the shape is that of Hugging Face's file.
struct CheckpointTensor : StoredTensor {
  std::filesystem::path file;
};

/// A tensor's numbers on the host: in the mapped file, or in memory of their own.
struct CheckpointArray {
  HostArray array;
  std::shared_ptr<void> memory = nullptr;
};

/// The numbers as float32.
std::vector<float> to_floats(const HostArray& array);

/// One open checkpoint. Movable, not copyable.
class Checkpoint {
 public:
  /// Opens the weights of `model`: a folder with model.safetensors, or else with model.safetensors.index.json
  /// and all its shards. Throws Error with one sentence that names the file and the fault.
  static Checkpoint open(const std::filesystem::path& model);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  /// The file that lists the tensors, for errors about one that is missing.
  const std::filesystem::path& file() const { return file_; }

  /// All tensors by name.
  const std::map<std::string, CheckpointTensor, std::less<>>& tensors() const { return tensors_; }

  /// The tensor of that name, or nullptr.
  const CheckpointTensor* find(std::string_view name) const;

  /// Whether `read` can return this tensor.
  bool is_readable(const CheckpointTensor& tensor) const;

  /// The tensor's numbers, ready for a device that will store them as `dtype`. A vector is one row; two
  /// dimensions at most.
  CheckpointArray read(const CheckpointTensor& tensor, DType dtype);

  /// Releases the memory of the tensor's bytes, after its numbers were copied. They can be read again.
  void release(const CheckpointTensor& tensor) const;

 private:
  Checkpoint() = default;

  void open_shards(const std::filesystem::path& folder);

  std::filesystem::path file_;
  std::vector<Safetensors> safetensors_;
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
};

}  // namespace staircase
