// Loads the weights of a model from a checkpoint to a device: finds them by name, checks them, and converts
// them to the device's layout.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/model/checkpoint.h"
#include "common/model/config.h"
#include "common/model/share.h"
#include "kernels/device.h"

namespace staircase {

/// A linear layer: y = x W + b.
struct Linear {
  Weight weight;
  Tensor bias = {};       ///< [out_features], or empty
  LowRank adapters = {};  ///< what each adapter adds to W; empty if no adapter changes it
};

/// A module of Hugging Face's model that is a whole product or a part of one. Modules with the same input,
/// such as queries, keys and values, are computed in one product.
struct Module {
  std::string name;  ///< without prefix: "h.0.attn.c_attn"
  std::int64_t inputs = 0;
  std::vector<std::int64_t> columns = {};  ///< the product's column for each of the module's outputs
};

/// Called with a product and its modules.
using VisitProduct = std::function<void(Linear& product, const std::vector<Module>& modules)>;

/// Returns the columns first .. first + count - 1.
std::vector<std::int64_t> neighbouring_columns(std::int64_t first, std::int64_t count);

/// Called with the name and the weights of a matrix.
using VisitWeight = std::function<void(const std::string& name, Weight& weight)>;

/// The token embedding and the output layer, which are usually the same matrix.
struct Embeddings {
  Weight tokens;                 ///< [n_embd, vocab_size]
  std::optional<Weight> output;  ///< [n_embd, vocab_size], unless it is the token embedding

  const Weight& output_layer() const { return output ? *output : tokens; }
};

/// Finds weights by name, checks their shapes and types, and counts their bytes. Each function throws Error
/// with one sentence for a tensor that is missing, has another shape or an unreadable type, or holds a
/// non-finite number or one beyond the range of `dtype`.
class WeightReader {
 public:
  /// `prefix`, such as "transformer.", may precede a name or be missing. `share` is the part of the weights
  /// to read.
  WeightReader(Checkpoint checkpoint, Device& device, DType dtype, std::string prefix, Share share);

  const Share& share() const { return share_; }
  DType dtype() const { return dtype_; }

  /// Reads some inputs and outputs of a matrix [in, out], which is stored in `order`. Several slices of
  /// outputs end up side by side; they need the order kInputFirst.
  Weight matrix(const std::string& name, WeightOrder order, const Slice& in, const std::vector<Slice>& out);

  /// Some outputs of a stored matrix [outputs, in], or of a tensor [matrices, outputs of each, in]. In a
  /// tensor, outputs are numbered through all matrices.
  struct Part {
    std::string name;
    Slice outputs;
    std::int64_t matrices = 0;  ///< 0 for a single matrix with two dimensions
  };
  /// Reads several parts and joins them one after another.
  Weight matrix(std::span<const Part> parts, std::int64_t in);

  /// Reads some inputs of a part.
  Weight matrix(const Part& part, const Slice& in);

  /// Reads the matrix of a router, [outputs, in]. It stays in float32 because it is small and its choice is
  /// discrete.
  Weight router(const std::string& name, std::int64_t outputs, std::int64_t in);

  /// Reads the matrix of a gate and the matrix that it gates, in the order of Epilogue::kSiluGate.
  Weight gated_matrix(const Part& gate, const Part& up, std::int64_t in);

  /// Reads some rows of a stored matrix [outputs, in] in another order: first `rows` rows from row starts[0]
  /// of the part on, then `rows` rows from starts[1] on ...
  Weight reordered_matrix(const Part& part, std::span<const std::int64_t> starts, std::int64_t rows,
                          std::int64_t in);

  /// Reads the token embedding `tokens` and, if the two are not tied, the output layer `output`: only the
  /// rows of the share. A share without the first block gets only the output layer, a share without the last
  /// block only the embedding, and a share without both gets neither.
  Embeddings embeddings(const std::string& tokens, const std::string& output, const ModelConfig& config);

  /// Loads a vector, several vectors one after another, or given values.
  Tensor vector(const std::string& name, std::int64_t size);
  Tensor vector(std::span<const Part> parts);
  Tensor vector(std::span<const float> values);

  /// Reads a vector or a table that a sum over all ranks must contain once. It is empty on all ranks but the
  /// first.
  Tensor on_first_rank(const std::string& name, const std::vector<std::int64_t>& shape);

  /// Whether the checkpoint is a GGUF file, in which some numbers differ from Hugging Face's.
  bool from_gguf() const { return checkpoint_.from_gguf(); }

  /// Reads the numbers of a vector to the host.
  std::vector<float> values(const std::string& name, std::int64_t size);

  bool has(const std::string& name) { return look_up(name) != nullptr; }

  /// Warns about tensors that nothing has read. Names that end with one of `buffers` are exempt: these are
  /// masks and tables of older files that carry no information.
  void warn_of_unused(std::span<const std::string_view> buffers) const;

  /// Throws Error if a file has become shorter meanwhile. Call it after the last weight.
  void require_whole_files() const { checkpoint_.require_whole(); }

  /// The bytes of all weights that were loaded onto the device.
  std::size_t bytes() const { return bytes_; }

 private:
  const CheckpointTensor* look_up(const std::string& name);
  const CheckpointTensor& find(const std::string& name, const std::vector<std::int64_t>& shape);
  std::string name_of(const CheckpointTensor& tensor) const;
  void check_numbers(const CheckpointTensor& tensor, const HostArray& array, DType dtype) const;
  Tensor table(const CheckpointTensor& tensor);
  Weight load(const CheckpointTensor& tensor, const CheckpointArray& stored, WeightOrder order);
  /// Some rows of a stored matrix.
  struct Rows {
    const CheckpointTensor* tensor;
    Slice slice;
  };
  Rows find(const Part& part, std::int64_t in);
  /// Loads rows as one matrix, after `arrange` has put them in order.
  template <typename Arrange>
  Weight load(const std::vector<Rows>& wanted, DType dtype, const Arrange& arrange);
  /// Whether the bytes of these rows are equal in two matrices.
  bool same(const CheckpointTensor& one, const CheckpointTensor& other, const Slice& rows) const;

  Checkpoint checkpoint_;
  Device& device_;
  DType dtype_;
  std::string prefix_;
  Share share_;
  std::set<std::string, std::less<>> asked_;
  std::size_t bytes_ = 0;
};

}  // namespace staircase
