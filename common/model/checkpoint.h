// The weights of a model, by their names in Hugging Face's files. They may come from one safetensors file,
// from the shards that an index names, or from a GGUF file.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/gguf_names.h"
#include "common/model/stored_tensor.h"
#include "kernels/device.h"

namespace staircase {

struct GgufType;
class Safetensors;
struct Slice;

/// A tensor of a checkpoint. `dtype` and `bytes` are as in the file; `shape` is as in Hugging Face's file.
struct CheckpointTensor : StoredTensor {
  std::filesystem::path file;
  const GgufType* type = nullptr;  ///< the type of its numbers; nullptr for a type that cannot be read
  RowOrder order = {};             ///< the order of its rows
};

/// A tensor's numbers on the host: in the mapped file, or in separate memory.
struct CheckpointArray {
  HostArray array;
  std::shared_ptr<void> memory = nullptr;
};

/// Converts the numbers of an array to float32.
std::vector<float> to_floats(const HostArray& array);

class Safetensors;

/// Returns the numbers of the tensor `name` and the type in which `file` stores them: F32, F16 or BF16.
/// Throws Error with one sentence if the tensor is missing, has another type or shape, or holds a non-finite
/// number.
std::pair<std::vector<float>, DType> read_numbers(const std::filesystem::path& file,
                                                  const Safetensors& tensors, const std::string& name,
                                                  const std::vector<std::int64_t>& shape);

/// One open checkpoint. Movable, not copyable.
class Checkpoint {
 public:
  /// Opens the weights of `model`: a .gguf file, a folder with model.safetensors, or a folder with
  /// model.safetensors.index.json and all its shards. Throws Error with one sentence that names the file and
  /// the fault.
  static Checkpoint open(const std::filesystem::path& model);

  /// The weights of an open GGUF file.
  explicit Checkpoint(GgufFile file);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  bool from_gguf() const { return !gguf_.empty(); }

  /// The file that lists the tensors; errors about missing tensors name it.
  const std::filesystem::path& file() const { return file_; }

  /// All tensors by name.
  const std::map<std::string, CheckpointTensor, std::less<>>& tensors() const { return tensors_; }

  /// The tensor with this name, or nullptr.
  const CheckpointTensor* find(std::string_view name) const;

  /// Whether `read` can return this tensor.
  bool is_readable(const CheckpointTensor& tensor) const { return tensor.type != nullptr; }

  /// The types that `read` supports, for messages: "F32, F16 and BF16".
  std::string readable_types() const;

  /// Returns the tensor's numbers in Hugging Face's order, for a device that will store them as `dtype`.
  /// Numbers that are not quantized and already in this order are returned as stored. All others are
  /// converted to float32, or to bfloat16 if they are quantized and `dtype` is bfloat16. A vector is one row;
  /// the rows of any other tensor are all its dimensions but the last. Throws Error for a type that cannot be
  /// read.
  CheckpointArray read(const CheckpointTensor& tensor, DType dtype);

  /// Returns some columns of some rows of a tensor, side by side. Reads only the blocks that hold these
  /// numbers.
  CheckpointArray read(const CheckpointTensor& tensor, DType dtype, const Slice& rows,
                       std::span<const Slice> columns);

  /// From now on, the operating system reads only those parts of the files that `read` and `prefetch` name.
  void read_parts_only();

  /// Lets the operating system begin to read these bytes of a tensor. Does nothing before read_parts_only is
  /// called, because the system then reads ahead by itself.
  void prefetch(std::span<const std::byte> part) const;

  /// Releases the memory of the tensor's bytes, once its numbers are copied. They can be read again.
  void release(const CheckpointTensor& tensor) const;

  /// Throws Error if a file has become shorter since it was opened: numbers that were read may be zeros
  /// instead.
  void require_whole() const;

 private:
  Checkpoint() = default;

  void open_shards(const std::filesystem::path& folder);
  std::shared_ptr<void> memory(std::size_t bytes);

  struct Buffer {
    std::shared_ptr<void> memory;
    std::size_t bytes;
  };

  /// Prefetches the stored numbers of these rows and columns.
  void prefetch(const CheckpointTensor& tensor, const Slice& rows, std::span<const Slice> columns) const;

  std::filesystem::path file_;
  bool parts_only_ = false;
  std::vector<Safetensors> safetensors_;
  std::vector<GgufFile> gguf_;
  std::vector<Buffer> buffers_;  // earlier results of `read`, reused once they are free
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
};

}  // namespace staircase
