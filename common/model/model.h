// A model of any family, as the rest of the code sees it: its facts, and the logits after some tokens.
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

/// The types for weights; not every device multiplies all of them.
std::span<const DType> weight_dtypes();

/// The type with that name. Throws UsageError for another name.
DType weight_dtype(std::string_view name);

/// The types for keys and values in a cache; not every device takes all of them.
std::span<const DType> cache_dtypes();

/// The tokens of a pass of a single sequence, and how many of its text came before them.
struct FedTokens {
  std::span<const int> tokens;
  std::size_t position;
};
using EditLogits = std::function<void(std::span<float> logits, const FedTokens& fed)>;

class Model {
 public:
  /// Reads a model as Hugging Face stores it: a folder with config.json and the weights as safetensors, in
  /// one file or in shards; or a .gguf file. The weights are kept on `device` in `dtype`. Warns about
  /// everything that the model has no use for. Uses an output layer that differs from the token embedding.
  /// Throws Error with one sentence for a missing or broken file, an unsupported family or setting, weights
  /// that contradict the configuration, and non-finite weights.
  static Model load(const std::filesystem::path& path, std::shared_ptr<Device> device,
                    DType dtype = DType::kFloat32);

  /// Reads only this rank's share of the weights: some heads, some columns of each MLP, some tokens of the
  /// vocabulary. Each forward pass then runs on all ranks, which feed the same tokens and get the same
  /// logits, to the bit. config() has the rank's own n_head, n_kv_head and n_inner. `ranks` must outlive the
  /// model. Throws Error on every rank if one of them has another model, or for a model with fewer heads than
  /// ranks.
  ///
  /// With Split::kBlocks a rank has some whole blocks, the first one the token embedding
  /// as well, and the last one the last norm and the output layer. config() has the rank's own n_layer. Then
  /// run_with must pass the residual stream from rank to rank, and the logits to all. There is no warning of
  /// tensors without a use. Throws Error for more ranks than blocks.
  static Model load(const std::filesystem::path& path, std::shared_ptr<Device> device, DType dtype,
                    Ranks& ranks, Split split = Split::kMatrices);

  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  /// Another model on the same device, in the same dtype, with at most the same context.
  Model load_beside(const std::filesystem::path& path) const { return load_like_this(path, dtype_); }

  /// The same weights in another dtype, read again.
  Model load_as(DType dtype) const;

  /// Limits texts to that many positions from now on; caches have room for no more.
  void limit_context(int positions) { config_.n_positions = std::min(config_.n_positions, positions); }

  /// Caches that are made from now on keep keys and values in that type. Throws UsageError if the device does
  /// not take it, or not for heads of this size.
  void use_cache_dtype(DType dtype);

  /// Makes the logits cover that many tokens, and accepts that many as input: a draft needs this if its
  /// target has another vocabulary size. Tokens that this model lacks have a logit of -infinity, and its last
  /// token is fed instead of them. The configuration does not change.
  void fit_vocabulary(int size) { fitted_vocabulary_ = size; }

  /// Reads these adapters (Hu et al. 2021), each a folder as PEFT stores it, in the place of earlier ones; no
  /// sequence uses them yet. They keep the types of their files, whatever dtype() is. Throws Error with one
  /// sentence, and changes nothing, for an adapter of another model, a broken one and a setting that is not
  /// supported, or if the model is split between ranks.
  void load_adapters(std::span<const std::filesystem::path> folders);

  /// The adapter of each sequence of a batch from now on: its index in the list of load_adapters, or
  /// kNoAdapter. The last one is that of further sequences, too; an empty list is none for all. Keys and
  /// values depend on the adapter, so a row of a cache must keep the same one. Throws Error for another
  /// index.
  void use_adapters(std::vector<std::int32_t> of_sequences);

  const ModelConfig& config() const { return config_; }

  /// Its folder or .gguf file.
  const std::filesystem::path& path() const { return path_; }

  /// Whether other ranks have parts of it.
  bool is_split() const { return ranks_ != nullptr; }

  Device& device() const { return *device_; }

  /// The type of the weights.
  DType dtype() const { return dtype_; }

  /// The type of keys and values in a cache.
  DType kv_dtype() const { return config_.kv_dtype(dtype_); }

  /// The shape of the keys, and of the values, of one layer in a cache: in int8 a head has its scale, too.
  std::vector<std::int64_t> kv_shape(std::int64_t rows, std::int64_t capacity) const {
    return {rows, config_.n_kv_head, capacity, kept_size(kv_dtype(), config_.head_size)};
  }

  /// How many positions a layer sees at most, as in its configuration; a rank counts the layers that it has.
  std::int32_t window(int layer) const;

  /// Memory that the weights take on the device, with those of adapters.
  std::size_t weight_bytes() const { return weight_bytes_; }

  /// Memory that the intermediate results of a forward pass take on the device at present: activations, the
  /// indices of a batch, keys and values if there is no cache, logits. It is what the largest batches so far
  /// needed, since it is kept from call to call, and 0 before the first. It excludes what a device keeps for
  /// itself inside its operations, and a GPU's copy of the logits on the host.
  std::size_t activation_bytes() const;

  /// Logits after the last of `tokens`, [vocab_size], computed from position 0. Valid until the next call.
  /// Throws Error for an empty list, more than n_positions, an id outside the vocabulary, or a result that is
  /// not finite. A cache that was given then holds what it held before, down to whole blocks if it has
  /// blocks, and the parts that check_between_parts has let through. It also holds earlier parts of sequences
  /// that are longer than it takes at once.
  std::span<const float> next_logits(std::span<const int> tokens);

  /// The same with a cache: `tokens` are only the new ones, after those that row 0 of the cache holds.
  std::span<const float> next_logits(std::span<const int> tokens, KvCache& cache);

  /// The same, but the logits stay on the device until they are read, each row for itself. Only the largest
  /// of each row comes to the host, or the k largest if a row has asked for k in the last call. If half of
  /// the rows of the last call were read, or more, all of these are copied at once: two copies in turn cost
  /// more than one.
  ///
  /// A device that can computes the pass after this one while the host still works on this one, once
  /// kSureAfter calls in turn have continued each sequence with its most likely token. It guesses that the
  /// next call does so, too. A wrong guess, as where a text ends, costs the device a pass, and changes no
  /// result.
  Logits lazy_logits(std::span<const std::span<const int>> sequences, KvCache& cache);

  /// The same after each of the last counts[s] tokens of sequence s: [Σ counts, vocab_size], the rows of one
  /// sequence after those of another.
  Logits lazy_logits(std::span<const std::span<const int>> sequences, std::span<const int> counts,
                     KvCache& cache);
  static constexpr int kSureAfter = 16;

  /// From now on, a single sequence with a cache is computed in parts of kPart tokens, and `check` is called
  /// before each further part. If it throws, the caller gets its exception, and the cache holds the parts so
  /// far: a person need not wait for the end of a long prompt.
  void check_between_parts(std::function<void()> check) { check_ = std::move(check); }
  static constexpr int kPart = 256;

  /// From now on, `edit` changes the logits that a single sequence gets, [count, vocab_size], before they are
  /// returned. If it throws, the caller gets its exception, and the cache holds the sequence.
  void edit_logits(EditLogits edit) { edit_ = std::move(edit); }

  /// Logits after each of the last `count` of `tokens`, [count, vocab_size].
  /// Throws Error for more than the cache takes at once, if the tokens are more as well.
  std::span<const float> last_logits(std::span<const int> tokens, int count);
  std::span<const float> last_logits(std::span<const int> tokens, int count, KvCache& cache);

  /// What the output layer read for the logits of the last call, one for each row of them: the hidden states
  /// after the last norm, [rows][n_embd]. None before the first call. Throws Error after a call of
  /// lazy_logits, since the device may have begun another pass, and for a model that is split between ranks.
  std::vector<std::vector<float>> hidden_states();

  /// The output layer alone, as of draft heads: the logits of any hidden states, [rows][n_embd] to
  /// [rows][vocab_size]. Throws Error for a state of another width, a result that is not finite, and a model
  /// that is split between ranks.
  std::vector<std::vector<float>> output_logits(std::span<const std::vector<float>> states);

  /// A batch of sequences of any lengths: logits after the last token of each, [sequences.size(),
  /// vocab_size]. Sequence s belongs to row s of the cache. One without tokens rests while others continue:
  /// its logits are meaningless.
  std::span<const float> next_logits(std::span<const std::span<const int>> sequences);
  std::span<const float> next_logits(std::span<const std::span<const int>> sequences, KvCache& cache);

  /// Runs `pass` instead of the family's own from now on. It computes the logits from the tokens of the pass,
  /// with operations only, and may be called more than once per batch.
  void run_with(std::function<void(Pass& pass)> pass) { run_ = std::move(pass); }

  /// The weights, for code that knows the family. It may change them before the first pass.
  Network& network() const { return *network_; }

  void on_stage(OnStage on_stage) { on_stage_ = std::move(on_stage); }

  /// Calls `after` for each forward pass from now on. It gets all logits, so they are copied to the host in
  /// each pass, by lazy_logits as well. With a head, which the model must have, it also gets what that head
  /// attends to; then the keys of its layer are copied, too.
  void after_pass(std::function<void(const ForwardPass& pass)> after, std::optional<AttentionHead> head = {});

  /// Shows each forward pass from now on before it is computed, so without logits. The cache has room for it.
  void before_pass(std::function<void(const ForwardPass& pass)> before) { before_pass_ = std::move(before); }

 private:
  Model();

  static Model load(const std::filesystem::path& path, std::shared_ptr<Device> device, DType dtype,
                    Ranks* ranks, Split split);
  Model load_like_this(const std::filesystem::path& path, DType dtype) const;

  /// Where the logits of a pass go.
  enum class Copy { kAtOnce, kOnceRead };

  /// Logits after each of the last counts[s] tokens of sequence s.
  Logits forward(std::span<const std::span<const int>> sequences, std::span<const int> counts, KvCache& cache,
                 Copy copy);
  Logits compute(std::span<const std::span<const int>> sequences, std::span<const int> counts,
                 const PackedTokens& packed, KvCache& cache, Copy copy);
  /// The same for sequences that are longer than the cache takes at once.
  Logits forward_in_parts(std::span<const std::span<const int>> sequences, std::span<const int> counts,
                          KvCache& cache, Copy copy);
  /// How many of the largest logits of each row a pass finds, if a row has asked for that many: none if
  /// reading all takes less time.
  std::int64_t largest_to_find(std::size_t asked) const;
  /// Of the logits that a pass has left on the device, or copied at once.
  LogitsUse use(std::size_t rows);
  /// Some whole rows of them, on the host.
  std::span<const float> read(std::size_t first, std::size_t count);

  /// Where a pass leaves what it finds.
  struct Started {
    Tensor logits;
    std::function<std::span<const std::int32_t>()> found;  // waits for it
  };

  /// The pass after a greedy one, if each sequence continues with its most likely token.
  struct NextPass {
    const KvCache* cache;
    std::vector<std::int32_t> tokens, starts;
    std::optional<std::uint64_t> given;  // Device::given, up to here
    Started started;                     // or empty
  };

  /// Starts a pass. If its logits stay on the device, it finds the k largest of each row, or the largest one.
  Started start(const PackedTokens& packed, KvCache& cache, PassInput input, bool stay, std::int64_t k);
  /// Starts the one that continues that many rows with the tokens that are still on the device.
  Started start_next(std::size_t rows, KvCache& cache);
  /// Whether the host has nothing to do in a pass.
  bool may_run_ahead() const;
  /// `logits`, [rows, config().vocab_size], for the vocabulary size of fit_vocabulary.
  std::span<const float> fitted(std::span<const float> logits);

  std::filesystem::path path_;
  ModelConfig config_;
  std::shared_ptr<Device> device_;
  DType dtype_ = DType::kFloat32;
  Ranks* ranks_ = nullptr;  // of a split model
  Split split_ = Split::kMatrices;
  std::unique_ptr<Share> share_;
  std::unique_ptr<Network> network_;
  std::size_t weight_bytes_ = 0, adapter_bytes_ = 0;  // the latter are among the former
  std::vector<std::filesystem::path> adapter_folders_;
  std::vector<std::int32_t> adapters_of_sequences_;
  std::uint64_t number_ = 0;  // no other model has had it
  /// Of the last call that has not left its logits on the device.
  std::optional<std::size_t> hidden_rows_ = 0;
  std::unique_ptr<PassMemory> memory_;
  std::optional<int> fitted_vocabulary_;
  std::vector<float> fitted_logits_;
  Tensor unread_;                                  // the logits of the last pass, if they stay on the device
  std::span<const float> read_;                    // all on the host, once they are there
  std::vector<std::span<const float>> read_rows_;  // of those that stay on the device
  std::vector<bool> wanted_;                       // rows of lazy_logits that need all of their logits
  std::size_t asked_ = 0;                          // of the largest of lazy_logits
  std::optional<NextPass> next_;
  int guessed_ = 0;  // calls in turn that were the expected ones
  std::function<void(Pass&)> run_;
  std::function<void()> check_;
  EditLogits edit_;
  std::vector<float> edited_logits_;
  OnStage on_stage_;
  std::function<void(const ForwardPass&)> after_pass_, before_pass_;
  std::optional<AttentionProbe> attention_;
  std::vector<ChosenExperts> chosen_experts_;  // of the last pass, if it is watched
};

}  // namespace staircase
