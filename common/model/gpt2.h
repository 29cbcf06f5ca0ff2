// GPT-2 (Radford et al. 2019): weights and forward pass.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/attention_weights.h"
#include "common/model/config.h"
#include "common/model/kv_cache.h"
#include "kernels/device.h"

namespace staircase {

/// What weights can be kept in; not every device multiplies all of them.
std::span<const DType> weight_dtypes();

/// The one of that name. Throws UsageError for another name.
DType weight_dtype(std::string_view name);

/// Sees intermediate results as they arise: a name ("embeddings", "block.0" …, "ln_f") and the values,
/// [rows, n_embd]. For tests and for the curious; it costs a copy to the host each time.
using Observer = std::function<void(std::string_view name, std::span<const float> values)>;

/// A forward pass of a model, when it is done.
struct ForwardPass {
  std::span<const std::span<const int>> sequences;  ///< the new tokens; one without any rests
  std::span<const std::int32_t> starts;             ///< how many positions of each the cache held before
  int count;                                        ///< after how many tokens of each there are logits
  std::span<const float> logits;                    ///< [sequences.size() · count, vocab_size]
  KvCache* cache;                                   ///< or nullptr
  std::span<const AttentionWeights> attention;      ///< of each sequence, if a head is watched
};

/// A weight matrix as the products take it, on the host. What an output reads lies side by side.
struct WeightMatrix {
  std::string name;           ///< as in the file, without prefix: "h.0.attn.c_attn.weight"
  std::size_t inputs = 0;     ///< weights of an output
  std::vector<float> values;  ///< [outputs, inputs]
};

class Gpt2 {
 public:
  /// Reads config.json and model.safetensors of a Hugging Face GPT-2 folder; the weights are kept on `device`
  /// in `dtype`. Tensor names may carry the prefix "transformer."; attention mask buffers are ignored, and
  /// there is a warning of all else that the model has no use for. A lm_head.weight that is not the token
  /// embedding is the output layer. Throws Error with one sentence for a missing or broken file, for weights
  /// that contradict the configuration and for those that are no finite numbers.
  static Gpt2 load(const std::filesystem::path& folder, std::shared_ptr<Device> device,
                   DType dtype = DType::kFloat32);

  /// Another model, on the same device and in the same dtype.
  Gpt2 load_beside(const std::filesystem::path& folder) const { return load(folder, device_, dtype_); }

  /// The same weights in another dtype, read again.
  Gpt2 load_as(DType dtype) const { return load(folder_, device_, dtype); }

  const Gpt2Config& config() const { return config_; }
  Device& device() const { return *device_; }

  /// What the weights are kept in.
  DType dtype() const { return dtype_; }

  /// What keys and values are kept in.
  DType kv_dtype() const { return staircase::kv_dtype(dtype_); }

  /// Memory that the weights take on the device.
  std::size_t weight_bytes() const { return weight_bytes_; }

  /// Memory that the intermediate results of a forward pass take on the device at present (activations, the
  /// indices that come with a batch, keys and values where there is no cache, logits): as much as the largest
  /// batches so far needed, since it is kept from call to call, and 0 before the first. Without what a device
  /// keeps for itself inside its operations, and without a GPU's copy of the logits on the host.
  std::size_t activation_bytes() const { return memory_.bytes(); }

  /// Logits after the last of `tokens`, [vocab_size], computed from position 0. Valid until the next call.
  /// Throws Error for no token, more than n_positions, an id outside the vocabulary, or a result that is not
  /// finite.
  std::span<float> next_logits(std::span<const int> tokens);

  /// The same with a cache: `tokens` are only the new ones, behind those that row 0 of the cache holds.
  std::span<float> next_logits(std::span<const int> tokens, KvCache& cache);

  /// Logits after each of the last `count` of `tokens`, [count, vocab_size].
  std::span<float> last_logits(std::span<const int> tokens, int count, KvCache* cache = nullptr);

  /// A batch of sequences of any lengths: logits after the last token of each, [sequences.size(),
  /// vocab_size]. Sequence s belongs to row s of the cache. One without tokens rests while others go on: its
  /// logits mean nothing.
  std::span<float> next_logits(std::span<const std::span<const int>> sequences, KvCache* cache = nullptr);

  /// Shows each weight matrix as it came back from the type that it is kept in: the token embedding, those of
  /// the blocks from first to last, and the output layer unless it is the token embedding.
  void for_each_matrix(const std::function<void(const WeightMatrix& matrix)>& look) const;

  /// The same model, read again, with what `change` makes of the values of each of these matrices. They are
  /// rounded to the type that weights are kept in.
  Gpt2 with_matrices(const std::function<std::vector<float>(const WeightMatrix& matrix)>& change) const;

  void observe(Observer observer) { observer_ = std::move(observer); }

  /// Shows each forward pass from now on; that costs no copy. With a head, which the model must have, it
  /// shows what that looks at as well: then the keys of its layer are copied to the host in each pass.
  void watch(std::function<void(const ForwardPass& pass)> watcher, std::optional<AttentionHead> head = {});

 private:
  struct Linear {
    Weight weight;
    Tensor bias;  // [out_features]
  };
  struct Block {
    Norm ln_1;
    Linear attention_input;   // [n_embd, 3 n_embd]
    Linear attention_output;  // [n_embd, n_embd]
    Norm ln_2;
    Linear mlp_input;   // [n_embd, n_inner]
    Linear mlp_output;  // [n_inner, n_embd]
  };
  /// Memory for intermediate results, kept from call to call; it grows to the largest batch seen.
  struct Memory {
    Tensor indices;  // tokens, offsets, starts and wanted rows, one behind the other
    Tensor x, queries, keys, values, attended, hidden, wanted_x, wanted_attended, normed, logits;
    Tensor host_logits;  // where the host cannot read the device's

    /// Of all that is on the device.
    std::size_t bytes() const;
  };
  /// What Input is made of, on the host: the new tokens of all sequences, one sequence behind the other.
  struct Packed {
    std::vector<std::int32_t> tokens, offsets{0}, starts, wanted_rows;
    std::int64_t longest = 0;
    bool wants_all = true;
  };
  /// What a forward pass needs to know, on the device.
  struct Input {
    Batch batch;
    Tensor wanted_rows;    // [n_wanted] int32: the tokens behind which logits are asked for
    std::int64_t longest;  // new tokens of the longest sequence
    bool wants_all;        // the wanted rows are all of them, in their order
  };

  Gpt2() = default;

  /// Logits after each of the last `count` tokens of every sequence, on the host.
  std::span<float> forward(std::span<const std::span<const int>> sequences, int count, KvCache* cache);
  /// Throws Error for what check_input refuses; the cache is only asked for the lengths of its rows.
  Packed pack(std::span<const std::span<const int>> sequences, int count, const KvCache* cache) const;
  void check_input(std::span<const int> tokens, int start, int count) const;
  Input upload(const Packed& packed);
  /// From tokens to logits, on the device alone, [n_wanted, vocab_size].
  Tensor run(const Input& input, KvCache* cache);
  /// The operations of which `run` consists.
  void compute(const Input& input, KvCache* cache, Tensor& logits);
  static void check_finite(std::span<const float> logits, const KvCache* cache);
  /// [rows, columns] in `memory`.
  Tensor matrix(Tensor& memory, std::int64_t rows, std::int64_t columns, DType dtype = DType::kFloat32) const;
  /// The same for the operand of a product, which nothing else reads: in the type that the product takes.
  Tensor operand(Tensor& memory, std::int64_t rows, std::int64_t columns) const;
  void linear(const Tensor& x, const Norm& norm, const Linear& layer, Epilogue epilogue, Tensor& out) const;
  void show(std::string_view name, const Tensor& values) const;
  /// Whether the output layer is the token embedding.
  bool is_tied() const;
  /// Calls visit(name, weight) for each matrix, in the order of for_each_matrix.
  template <typename Model, typename Visit>
  static void visit_weights(Model& model, const Visit& visit);
  /// The weights on the host.
  WeightMatrix unpacked(std::string name, const Weight& weight) const;

  std::filesystem::path folder_;
  Gpt2Config config_;
  std::shared_ptr<Device> device_;
  DType dtype_ = DType::kFloat32;
  Weight token_embedding_;     // [n_embd, vocab_size]
  Weight output_layer_;        // [n_embd, vocab_size]; most often the token embedding itself
  Tensor position_embedding_;  // [n_positions, n_embd]
  std::vector<Block> blocks_;
  Norm ln_f_;
  std::size_t weight_bytes_ = 0;
  Memory memory_;
  Observer observer_;
  std::function<void(const ForwardPass&)> watcher_;
  std::optional<AttentionProbe> attention_;
};

}  // namespace staircase
