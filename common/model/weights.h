// The weights of a model on their way from a checkpoint to a device: found by name, checked, and converted to
// the device's layout.
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

/// y = x W + b.
struct Linear {
  Weight weight;
  Tensor bias = {};       ///< [out_features], or empty
  LowRank adapters = {};  ///< what adapters add to W, by the adapter of a row; empty if none does
};

/// A module of Hugging Face's model that is a product or a part of one. Modules of one input are computed
/// together: queries, keys and values.
struct Module {
  std::string name;  ///< without prefix: "h.0.attn.c_attn"
  std::int64_t inputs = 0;
  std::vector<std::int64_t> columns = {};  ///< where the product has each of the module's outputs
};

/// Calls visit(product, its modules).
using VisitProduct = std::function<void(Linear& product, const std::vector<Module>& modules)>;

/// The columns first .. first + count - 1.
std::vector<std::int64_t> neighbouring_columns(std::int64_t first, std::int64_t count);

/// Calls visit(name, weight) for a matrix.
using VisitWeight = std::function<void(const std::string& name, Weight& weight)>;

/// The token embedding and the output layer, which are usually the same matrix.
struct Embeddings {
  Weight tokens;                 ///< [n_embd, vocab_size]
  std::optional<Weight> output;  ///< [n_embd, vocab_size], unless it is the token embedding

  const Weight& output_layer() const { return output ? *output : tokens; }
};

/// Finds weights by name, checks what the file states about them and counts their bytes. Each function throws
/// Error with one sentence for a tensor that is missing, has another shape or type, or holds a number that is
/// not finite or that `dtype` cannot hold.
class WeightReader {
 public:
  /// `prefix` may precede a name or be missing: "transformer.". `share` selects the part of the weights.
  WeightReader(Checkpoint checkpoint, Device& device, DType dtype, std::string prefix, Share share);

  const Share& share() const { return share_; }
  DType dtype() const { return dtype_; }

  /// Some inputs and outputs of a matrix [in, out], stored as `order` says. Outputs in several slices are
  /// side by side then; the order must be kInputFirst for them.
  Weight matrix(const std::string& name, WeightOrder order, const Slice& in, const std::vector<Slice>& out);

  /// Some outputs of a stored matrix [outputs, in], or of a tensor [matrices, outputs of each, in], whose
  /// outputs count from the first of the first matrix.
  struct Part {
    std::string name;
    Slice outputs;
    std::int64_t matrices = 0;  ///< 0: one matrix, of two dimensions
  };
  /// Parts, joined one after another.
  Weight matrix(std::span<const Part> parts, std::int64_t in);

  /// Some inputs of a part.
  Weight matrix(const Part& part, const Slice& in);

  /// The matrix of a router, [outputs, in]. It stays in float32: it is small, and its choice is discrete.
  Weight router(const std::string& name, std::int64_t outputs, std::int64_t in);

  /// The matrices of a gate and of what it gates, in the order of Epilogue::kSiluGate.
  Weight gated_matrix(const Part& gate, const Part& up, std::int64_t in);

  /// Some rows of a stored matrix [outputs, in], in another order: first the `rows` that begin at starts[0]
  /// of that slice, then those at starts[1] ...
  Weight reordered_matrix(const Part& part, std::span<const std::int64_t> starts, std::int64_t rows,
                          std::int64_t in);

  /// The embedding `tokens` and, if the two are not tied, the output layer `output`. Of each, the rows of the
  /// share. A share without the first block has the output layer alone, one without the last block the
  /// embedding alone, and one without either neither.
  Embeddings embeddings(const std::string& tokens, const std::string& output, const ModelConfig& config);

  /// A vector, or several in a row.
  Tensor vector(const std::string& name, std::int64_t size);
  Tensor vector(std::span<const Part> parts);
  Tensor vector(std::span<const float> values);

  /// A vector or a table that a sum over all ranks has once: empty on all ranks but the first.
  Tensor on_first_rank(const std::string& name, const std::vector<std::int64_t>& shape);

  /// Whether the checkpoint is a GGUF file, where some numbers are not those of Hugging Face.
  bool from_gguf() const { return checkpoint_.from_gguf(); }

  /// The numbers of a vector.
  std::vector<float> values(const std::string& name, std::int64_t size);

  bool has(const std::string& name) { return look_up(name) != nullptr; }

  /// Warns about tensors that nothing has read, except those whose names end with one of `buffers`: masks and
  /// tables that older files have, which add nothing.
  void warn_of_unused(std::span<const std::string_view> buffers) const;

  /// Throws Error if a file has become shorter meanwhile. To be called after the last weight.
  void require_whole_files() const { checkpoint_.require_whole(); }

  /// Of all weights on the device.
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
  /// The parts that `arrange` makes of them, as one matrix.
  template <typename Arrange>
  Weight load(const std::vector<Rows>& wanted, DType dtype, const Arrange& arrange);
  /// Whether those rows of two matrices are stored alike.
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
