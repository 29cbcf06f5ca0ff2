// The weights of a model by the names that Hugging Face gives them, wherever they are stored: in one
// safetensors file, in shards that an index names, or in a GGUF file.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/gguf_names.h"
#include "common/model/stored_tensor.h"
#include "kernels/device.h"

namespace staircase {

struct GgufType;
class Safetensors;
struct Slice;

/// A tensor of a checkpoint. dtype and bytes are those of its file; the shape is that of Hugging Face's file.
struct CheckpointTensor : StoredTensor {
  std::filesystem::path file;
  const GgufType* type = nullptr;  ///< how its numbers are stored; nullptr if they cannot be read
  RowOrder order = {};             ///< and in which order
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
  /// Opens the weights of `model`: a .gguf file, or a folder with model.safetensors, or else with
  /// model.safetensors.index.json and all its shards. Throws Error with one sentence that names the file and
  /// the fault.
  static Checkpoint open(const std::filesystem::path& model);

  /// The weights in an open GGUF file.
  explicit Checkpoint(GgufFile file);
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
  bool is_readable(const CheckpointTensor& tensor) const { return tensor.type != nullptr; }

  /// The types that it can, for messages: "F32, F16 and BF16".
  std::string readable_types() const;

  /// The tensor's numbers in Hugging Face's order, ready for a device that will store them as `dtype`: as the
  /// file holds them where it has them so, else widened to float32, or from a quantized type to bfloat16 if
  /// that is what the device stores. A vector is one row; all dimensions of a tensor but the last are its
  /// rows. Throws Error for a type that cannot be read.
  CheckpointArray read(const CheckpointTensor& tensor, DType dtype);

  /// The same of some rows and, side by side, some columns. Of the file it looks at their numbers alone, and
  /// at what shares a block with them.
  CheckpointArray read(const CheckpointTensor& tensor, DType dtype, const Slice& rows,
                       std::span<const Slice> columns);

  /// From now on the system reads nothing beside the parts of the files that `read` and `announce` name.
  void read_parts_only();

  /// Those bytes of a tensor are going to be read.
  void announce(std::span<const std::byte> part) const;

  /// Releases the memory of the tensor's bytes, after its numbers were copied. They can be read again.
  void release(const CheckpointTensor& tensor) const;

 private:
  Checkpoint() = default;

  void open_shards(const std::filesystem::path& folder);
  std::shared_ptr<void> memory(std::size_t bytes);

  struct Buffer {
    std::shared_ptr<void> memory;
    std::size_t bytes;
  };

  /// Announces the stored numbers of these rows and columns.
  void announce(const CheckpointTensor& tensor, const Slice& rows, std::span<const Slice> columns) const;

  std::filesystem::path file_;
  bool parts_only_ = false;
  std::vector<Safetensors> safetensors_;
  std::vector<GgufFile> gguf_;
  std::vector<Buffer> buffers_;  // what `read` returned before, for when it is free again
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
};

}  // namespace staircase
