// A model of any family: its facts, and the logits after some tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/config.h"
#include "common/model/forward_pass.h"
#include "common/model/logits.h"
#include "common/parallel/ranks.h"
#include "kernels/device.h"

namespace staircase {

class Network;
class Pass;
enum class PassInput;
struct PackedTokens;
struct PassMemory;
struct Share;

/// What is split between ranks: each matrix, or the blocks.
enum class Split { kMatrices, kBlocks };

/// The types that weights may have; not every device supports all of them.
std::span<const DType> weight_dtypes();

/// The weight type with this name. Throws UsageError for an unknown name.
DType weight_dtype(std::string_view name);

/// The types that keys and values in a cache may have; not every device supports all of them.
std::span<const DType> cache_dtypes();

/// The new tokens of a single sequence, and the position of the first one in its text.
struct FedTokens {
  std::span<const int> tokens;
  std::size_t position;
};
using EditLogits = std::function<void(std::span<float> logits, const FedTokens& fed)>;

class Model {
 public:
  /// Reads a model as Hugging Face stores it: a folder with config.json and the weights as safetensors, in
  /// one file or in shards; or a .gguf file. The weights are kept on `device` in `dtype`. Warns about tensors
  /// that the model does not use. If the file's output layer differs from the token embedding, uses it even
  /// if the two are tied. Throws Error with one sentence for a missing or broken file, an unsupported family
  /// or setting, weights that contradict the configuration, and non-finite weights.
  static Model load(const std::filesystem::path& path, std::shared_ptr<Device> device,
                    DType dtype = DType::kFloat32);

  /// Reads only this rank's share of the weights: some heads, some columns of each MLP, some tokens of the
  /// vocabulary. Each forward pass then runs on all ranks, which feed the same tokens and get the same
  /// logits, bit for bit. config() has the rank's own n_head, n_kv_head and n_inner. `ranks` must outlive the
  /// model. Throws Error on every rank if one rank has a different model, or if the model has fewer heads
  /// than there are ranks.
  ///
  /// With Split::kBlocks each rank has some whole blocks. The first rank also has the token embedding, and
  /// the last rank the last norm and the output layer. config() has the rank's own n_layer. The function
  /// given to run_with must then pass the residual stream from rank to rank, and the logits to all ranks.
  /// Nothing warns about unused tensors. Throws Error if there are more ranks than blocks.
  static Model load(const std::filesystem::path& path, std::shared_ptr<Device> device, DType dtype,
                    Ranks& ranks, Split split = Split::kMatrices);

  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  /// Loads another model on the same device, in the same dtype, with a context that is no longer than this
  /// one's.
  Model load_beside(const std::filesystem::path& path) const { return load_like_this(path, dtype_); }

  /// Loads the same weights again, in another dtype.
  Model load_as(DType dtype) const;

  /// From now on, limits sequences to this many positions; new caches allocate no more.
  void limit_context(int positions) { config_.n_positions = std::min(config_.n_positions, positions); }

  /// From now on, new caches store keys and values in this type. Throws UsageError if the device does not
  /// support the type, or not for heads of this size.
  void use_cache_dtype(DType dtype);

  /// Makes the logits cover `size` tokens, and accepts all of these tokens as input. A draft model needs this
  /// if its target's vocabulary has another size. A token that this model lacks gets a logit of -infinity; as
  /// input, the model's last token replaces it. The configuration does not change.
  void fit_vocabulary(int size) { fitted_vocabulary_ = size; }

  /// Reads adapters (Hu et al. 2021), each from a folder in PEFT's format. They replace earlier ones, and no
  /// sequence uses them yet. Adapters keep the types of their files, whatever dtype() is. Throws Error with
  /// one sentence, and changes nothing, for an adapter that belongs to another model, is broken or has an
  /// unsupported setting, and if the model is split between ranks.
  void load_adapters(std::span<const std::filesystem::path> folders);

  /// From now on, sequence s of a batch uses adapter of_sequences[s]: an index into the list of
  /// load_adapters, or kNoAdapter. Further sequences use the last entry; with an empty list, no sequence uses
  /// an adapter. Keys and values depend on the adapter, so a row of a cache must keep the same adapter.
  /// Throws Error for any other index.
  void use_adapters(std::vector<std::int32_t> of_sequences);

  const ModelConfig& config() const { return config_; }

  /// The folder or .gguf file of the model.
  const std::filesystem::path& path() const { return path_; }

  /// Whether other ranks hold parts of the model.
  bool is_split() const { return ranks_ != nullptr; }

  Device& device() const { return *device_; }

  /// The type of the weights.
  DType dtype() const { return dtype_; }

  /// The type of keys and values in a cache.
  DType kv_dtype() const { return config_.kv_dtype(dtype_); }

  /// The shape of one layer's keys in a cache, and of its values. In the types int8 and int4, the last
  /// dimension also holds the scales of a head.
  std::vector<std::int64_t> kv_shape(std::int64_t rows, std::int64_t capacity) const {
    return {rows, config_.n_kv_head, capacity, kept_size(kv_dtype(), config_.head_size)};
  }

  /// The most positions that a layer sees. On a rank, `layer` counts only the rank's own layers.
  std::int32_t window(int layer) const;

  /// The device memory of the weights in bytes, including adapters.
  std::size_t weight_bytes() const { return weight_bytes_; }

  /// The device memory in bytes that currently holds the intermediate results of a forward pass: activations,
  /// the indices of a batch, logits, and keys and values if there is no cache. The memory is kept from call
  /// to call, so it is as large as the largest batches so far needed, and 0 before the first call. Excludes a
  /// device's own memory inside its operations, and the copy of a GPU's logits on the host.
  std::size_t activation_bytes() const;

  /// Returns the logits after the last of `tokens`, [vocab_size], computed from position 0. Valid until the
  /// next call. Throws Error for an empty list, more than n_positions tokens, an id outside the vocabulary,
  /// or a non-finite result. After an exception, a cache holds what it held before the call, rounded down to
  /// whole blocks if it has blocks. It also keeps the parts that check_between_parts has let through, and
  /// earlier parts of sequences that are longer than `most_at_once`.
  std::span<const float> next_logits(std::span<const int> tokens);

  /// Returns the logits after `tokens` that continue row 0 of the cache: only these new tokens are computed.
  std::span<const float> next_logits(std::span<const int> tokens, KvCache& cache);

  /// Computes the logits after each sequence, but leaves them on the device until a row is read. Only the
  /// largest logit of each row is copied to the host, or the k largest if a row of the last call asked for k.
  /// If at least half of the last call's rows were read, all rows are copied at once: two copies in turn cost
  /// more than one.
  ///
  /// Some devices can compute the next pass while the host still works with this one. They do so once
  /// kSureAfter calls in turn have continued each sequence with its most likely token, guessing that the next
  /// call will do the same. A wrong guess, for example at the end of a text, costs the device one pass and
  /// changes no result.
  Logits lazy_logits(std::span<const std::span<const int>> sequences, KvCache& cache);

  /// As above, but with logits after each of the last counts[s] tokens of sequence s: [Σ counts, vocab_size],
  /// with the rows of sequence 0 first.
  Logits lazy_logits(std::span<const std::span<const int>> sequences, std::span<const int> counts,
                     KvCache& cache);
  static constexpr int kSureAfter = 16;

  /// From now on, a single sequence with a cache is computed in parts of kPart tokens, and `check` is called
  /// before each further part. If it throws, the caller gets its exception, and the cache holds the parts so
  /// far. So a person can interrupt a long prompt.
  void check_between_parts(std::function<void()> check) { check_ = std::move(check); }
  static constexpr int kPart = 256;

  /// From now on, `edit` changes the logits that a single sequence gets, [count, vocab_size], before they are
  /// returned. If it throws, the caller gets its exception, and the cache holds the sequence.
  void edit_logits(EditLogits edit) { edit_ = std::move(edit); }

  /// Returns the logits after each of the last `count` of `tokens`, [count, vocab_size]. Throws Error if both
  /// `count` and the number of tokens exceed what the cache takes at once.
  std::span<const float> last_logits(std::span<const int> tokens, int count);
  std::span<const float> last_logits(std::span<const int> tokens, int count, KvCache& cache);

  /// The hidden states from which the output layer computed the logits of the last call, after the last norm:
  /// [rows][n_embd], one for each row of logits. Empty before the first call. Throws Error after a call of
  /// lazy_logits, since the device may have begun another pass, and for a model that is split between ranks.
  std::vector<std::vector<float>> hidden_states();

  /// Applies only the output layer: the logits of any hidden states, such as those of draft heads,
  /// [rows][n_embd] to [rows][vocab_size]. Throws Error for a state of another width, a non-finite result,
  /// and a model that is split between ranks.
  std::vector<std::vector<float>> output_logits(std::span<const std::vector<float>> states);

  /// Returns the logits after the last token of each sequence in a batch, [sequences.size(), vocab_size].
  /// Sequences may differ in length, and sequence s belongs to row s of the cache. A sequence without tokens
  /// rests while others continue; its logits are meaningless.
  std::span<const float> next_logits(std::span<const std::span<const int>> sequences);
  std::span<const float> next_logits(std::span<const std::span<const int>> sequences, KvCache& cache);

  /// From now on, runs `pass` instead of the family's own forward pass. It computes the logits from the
  /// tokens of the pass with device operations only, and may be called more than once per batch.
  void run_with(std::function<void(Pass& pass)> pass) { run_ = std::move(pass); }

  /// The weights, for code that is written for a family. They may be changed before the first pass.
  Network& network() const { return *network_; }

  void on_stage(OnStage on_stage) { on_stage_ = std::move(on_stage); }

  /// From now on, calls `after` after each forward pass with all its logits, so even lazy_logits copies them
  /// to the host. With `head`, which must be in the model, `after` also gets what this head attends to, so
  /// the keys of its layer are also copied.
  void after_pass(std::function<void(const ForwardPass& pass)> after, std::optional<AttentionHead> head = {});

  /// From now on, calls `before` before each forward pass, so without logits. The cache already has room for
  /// the new tokens.
  void before_pass(std::function<void(const ForwardPass& pass)> before) { before_pass_ = std::move(before); }

 private:
  Model();

  static Model load(const std::filesystem::path& path, std::shared_ptr<Device> device, DType dtype,
                    Ranks* ranks, Split split);
  Model load_like_this(const std::filesystem::path& path, DType dtype) const;

  /// When the logits of a pass are copied to the host.
  enum class Copy { kAtOnce, kOnceRead };

  /// Logits after each of the last counts[s] tokens of sequence s.
  Logits forward(std::span<const std::span<const int>> sequences, std::span<const int> counts, KvCache& cache,
                 Copy copy);
  Logits compute(std::span<const std::span<const int>> sequences, std::span<const int> counts,
                 const PackedTokens& packed, KvCache& cache, Copy copy);
  /// Computes sequences that are longer than the cache takes at once.
  Logits forward_in_parts(std::span<const std::span<const int>> sequences, std::span<const int> counts,
                          KvCache& cache, Copy copy);
  /// How many of its largest logits a pass finds in each row if a row has asked for `asked`; 0 if reading all
  /// logits is faster.
  std::int64_t largest_to_find(std::size_t asked) const;
  /// The LogitsUse for the logits of a pass, whether they are still on the device or already copied.
  LogitsUse use(std::size_t rows);
  /// Some whole rows of the last pass's logits, on the host.
  std::span<const float> read(std::size_t first, std::size_t count);

  /// The results of a pass that has been started.
  struct Started {
    Tensor logits;
    std::function<std::span<const std::int32_t>()> found;  // waits for the pass
  };

  /// The pass after a greedy one, if each sequence continues with its most likely token.
  struct NextPass {
    const KvCache* cache;
    std::vector<std::int32_t> tokens, starts;
    std::optional<std::uint64_t> given;  // Device::given up to this pass
    Started started;                     // empty if the pass was not started
  };

  /// Starts a pass. If its logits stay on the device, it finds the k largest of each row, or the largest one.
  Started start(const PackedTokens& packed, KvCache& cache, PassInput input, bool stay, std::int64_t k);
  /// Starts the pass that continues `rows` rows with the tokens that are still on the device.
  Started start_next(std::size_t rows, KvCache& cache);
  /// Whether a pass needs nothing from the host, so that the next one can start early.
  bool may_run_ahead() const;
  /// Converts logits, [rows, config().vocab_size], to the vocabulary size of fit_vocabulary.
  std::span<const float> fitted(std::span<const float> logits);

  std::filesystem::path path_;
  ModelConfig config_;
  std::shared_ptr<Device> device_;
  DType dtype_ = DType::kFloat32;
  Ranks* ranks_ = nullptr;  // set for a split model
  Split split_ = Split::kMatrices;
  std::unique_ptr<Share> share_;
  std::unique_ptr<Network> network_;
  std::size_t weight_bytes_ = 0, adapter_bytes_ = 0;  // weight_bytes_ includes adapter_bytes_
  std::vector<std::filesystem::path> adapter_folders_;
  std::vector<std::int32_t> adapters_of_sequences_;
  std::uint64_t number_ = 0;  // unique among all models of the process
  /// Rows of hidden states of the last call; no value if it was lazy_logits.
  std::optional<std::size_t> hidden_rows_ = 0;
  std::unique_ptr<PassMemory> memory_;
  std::optional<int> fitted_vocabulary_;
  std::vector<float> fitted_logits_;
  Tensor unread_;                                  // the logits of the last pass, if they stay on the device
  std::span<const float> read_;                    // all logits, once they are on the host
  std::vector<std::span<const float>> read_rows_;  // single rows that were read from the device
  std::vector<bool> wanted_;                       // rows of lazy_logits that need all of their logits
  std::size_t asked_ = 0;                          // the most that a row has asked for by `largest`
  std::optional<NextPass> next_;
  int guessed_ = 0;  // calls in turn that were as guessed
  std::function<void(Pass&)> run_;
  std::function<void()> check_;
  EditLogits edit_;
  std::vector<float> edited_logits_;
  OnStage on_stage_;
  std::function<void(const ForwardPass&)> after_pass_, before_pass_;
  std::optional<AttentionProbe> attention_;
  std::vector<ChosenExperts> chosen_experts_;  // of the last pass, if a watcher is set
};

}  // namespace staircase
