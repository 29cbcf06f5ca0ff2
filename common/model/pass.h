// One forward pass of a model, as the code of a family sees it: the new tokens on the device, memory for each
// intermediate result, the cache, and the watchers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "common/model/attention_probe.h"
#include "common/model/model.h"
#include "common/model/rotary.h"
#include "common/model/share.h"
#include "common/model/weights.h"
#include "common/parallel/ranks.h"
#include "kernels/device.h"

namespace staircase {

/// Memory for intermediate results, kept from call to call; it grows to the largest batch so far.
struct PassMemory {
  Tensor indices;  // tokens, offsets, starts and wanted rows, one after another
  Tensor rotations, x, projected, queries, keys, values, attended, hidden, wanted_x, wanted_attended, normed,
      logits, own_logits, found, router_scores, chosen, shares, expert_rows, expert_inputs, expert_outputs,
      adapted;
  Tensor other_logits;                          // of the pass before, if one starts before it has been used
  Tensor host_logits, host_found, host_chosen;  // if the host cannot read the device's memory
  Tensor other_host_found;
  std::vector<Tensor> host_rows;  // of logits, where not all are read

  /// Everything on the device.
  std::array<const Tensor*, 23> on_device() const;
  std::size_t bytes() const;
};

/// The new tokens of all sequences on the host, one sequence after another.
struct PackedTokens {
  std::vector<std::int32_t> tokens, offsets{0}, starts, wanted_rows;
  std::vector<std::int32_t> wanted_offsets{0};  // of each sequence among the wanted rows
  /// The position of each sequence's first new token, by which rotary models rotate queries and keys. A start
  /// is its index in the cache; the two differ in a row that has slid. Attention depends only on the
  /// difference of two rotations, so positions keep counting, and older keys stay valid. A table of positions
  /// ends with the context: a model with one uses the index as the position, and its older keys belong to
  /// other indices.
  std::vector<std::int32_t> positions;
  /// The adapter of each sequence, or kNoAdapter; empty if no sequence has one.
  std::vector<std::int32_t> adapters;
  std::int64_t longest = 0;  // new tokens of the longest sequence
  bool wants_all = true;     // the wanted rows are all of them, in their order

  /// Logits are wanted after each of the last counts[s] tokens of sequence s. Ids may be below `vocabulary`;
  /// the model's last token replaces one that it lacks. Throws Error for an empty list, more than the model's
  /// context, an id outside the vocabulary, or a count that is not from 1 to the number of tokens. Of the
  /// cache, only the lengths of its rows are read. The last of `of_sequences` is the adapter of further
  /// sequences, too.
  PackedTokens(std::span<const std::span<const int>> sequences, std::span<const int> counts,
               const KvCache& cache, const ModelConfig& config, int vocabulary,
               std::span<const std::int32_t> of_sequences = {});

  /// Those sequences alone.
  PackedTokens part(Slice sequences) const;

  /// Whether each sequence has one new token, and logits are wanted after it.
  bool one_each() const { return wants_all && longest == 1 && tokens.size() == starts.size(); }

 private:
  PackedTokens() = default;
  void add_sequence(std::int64_t count, std::int64_t wanted, std::int32_t start, std::int32_t position);
};

/// The watchers of a pass; each may be missing.
struct PassWatchers {
  const OnStage& on_stage;
  AttentionProbe* probe;
  std::vector<ChosenExperts>* experts = nullptr;
};

/// Which part of the model the pass computes, and the link to the other ranks.
struct PassPart {
  Ranks& ranks;
  const Share& share;
};

/// Memory for a mixture of experts, for some rows of which each chooses k experts.
struct Mixture {
  Tensor normed;           ///< [rows, n_embd]
  Tensor scores;           ///< of the router, [rows, n_experts]
  Tensor chosen;           ///< [rows, k] int32
  Tensor shares;           ///< [rows, k]
  Tensor inputs, outputs;  ///< [rows k, n_embd], sorted by expert
};

/// Rows sorted by the expert that computes them, each as often as it has chosen one.
struct ExpertRows {
  std::vector<std::int64_t> firsts;  ///< the first of each expert, and how many there are: [n_experts + 1]
  Tensor sources;                    ///< of which row each one is a copy, [rows k] int32
  Tensor places;                     ///< where the copies of a row are, [rows, k] int32
};

/// Where a pass finds its tokens and positions: it copies them to the device, or the pass before, on the same
/// sequences, has left them there (Device::argmax).
enum class PassInput { kFromHost, kOnDevice };

class Pass {
 public:
  Pass(Device& device, DType dtype, const ModelConfig& config, const PassPart& part,
       std::span<const Rotary> rotaries, const PackedTokens& packed, KvCache& cache, PassMemory& memory,
       PassWatchers watchers, PassInput input = PassInput::kFromHost);

  Device& device() const { return device_; }
  Ranks& ranks() const { return part_.ranks; }

  /// Calls run(part) with a pass of some neighbours of the sequences, whose logits are a part of logits().
  /// Without new tokens among them there is nothing to run. What `batch` returns is valid until then.
  void run_part(Slice sequences, const std::function<void(Pass& part)>& run) const;

  /// Sums x over all ranks: each gets the sum. A single rank keeps its x.
  void all_reduce(Tensor& x) const;

  /// Sends x to rank `to`, another one. It does not wait for that rank, and x may change at once.
  void send(const Tensor& x, int to) const;

  /// x = what rank `from`, another one, has sent. Throws Error if that is more or fewer numbers; devices that
  /// exchange them without the host cannot tell.
  void receive(Tensor& x, int from) const;

  /// How a rank adds its part of a product to the residual stream before all_reduce. Rank 0 adds it to x; the
  /// others overwrite x with it, so the sum contains x once.
  Epilogue add_once() const {
    return part_.share.whole || ranks().rank() == 0 ? Epilogue::kAdd : Epilogue::kStore;
  }

  /// Call before each run of a network's operations.
  void begin() { only_wanted_ = false; }

  /// Of the part of the model that is here.
  const ModelConfig& config() const { return config_; }

  const Batch& batch() const { return batch_; }

  /// Whether the pass begins here with the tokens; else the residual stream comes from another rank.
  bool begins() const { return part_.share.has_first_block(); }
  /// Of the blocks that are here.
  std::int64_t first_block() const { return part_.share.blocks.first; }

  /// For HeadRule: the rotations of each token's position, by that one of the network's rotaries.
  Tensor rotations(std::int64_t rotary = 0) const {
    return rotations_.rows(rotary * batch_.n_tokens(), batch_.n_tokens());
  }

  /// The residual stream, [n_tokens, n_embd].
  Tensor residual() const;
  /// Queries, keys and values of all heads, one after another, [n_tokens, (n_head + 2 n_kv_head) head_size].
  Tensor projected() const;
  /// [n_tokens, n_head head_size]
  Tensor queries() const;
  /// The result of attention, [n_tokens, n_head head_size], in the type that products take.
  Tensor attended() const;
  /// What a block adds to those rows of x, [rows, n_embd], where a norm comes between.
  Tensor added(const Tensor& x) const;
  /// The inside of the MLP for those rows of x, [rows, n_inner], in the type that products take.
  Tensor hidden(const Tensor& x) const { return hidden(x, config_.n_inner); }
  /// The same for an MLP of another width.
  Tensor hidden(const Tensor& x, std::int64_t width) const;
  /// For the rows of x.
  Mixture mixture(const Tensor& x) const;
  /// From the choice of each row in a layer. The host sorts them, so device().run() cannot do that.
  ExpertRows sort_by_expert(int layer, const Tensor& chosen) const;
  /// Those of the cache; without one, the layers take turns in one pair of tensors.
  KeysValues keys_values(int layer) const;

  /// out = epilogue(norm(x) W + b), where W is changed by the adapter of each row's sequence. out is float32
  /// unless the epilogue is a GELU or a gate.
  void linear(const Tensor& x, const Norm& norm, const Linear& layer, Epilogue epilogue, Tensor& out) const;

  /// The same for a product of queries, keys and values, each of them to its place: Device::query_key_value.
  void query_key_value(const Tensor& x, const Norm& norm, const Linear& layer, Tensor& queries,
                       KeysValues& keys_values) const;

  /// `attended` = attention of that layer. After the last layer's attention, only the tokens whose logits are
  /// wanted continue: `x` and `attended` become their rows.
  void attend(int layer, const Tensor& queries, const KeysValues& keys_values, Tensor& x, Tensor& attended);

  /// The products after the next attention: Device::announce.
  void announce(const Linear& next, const Linear& after_next) const {
    device_.announce(next.weight, after_next.weight);
  }

  /// logits = norm(x) W, the end of every family's pass. Nothing to do on a rank without the last block.
  void finish(const Tensor& x, const Norm& norm, const Weight& output_layer) const;

  void show(std::string_view name, const Tensor& values) const;

  /// Numbers that decide which operations a network calls here and on which tensors, unless something watches
  /// the pass: the sizes of the batch, and where the cache and all memory are.
  std::vector<std::uint64_t> key() const;

  /// [wanted tokens, vocab_size] on the device, once the pass is done.
  const Tensor& logits() const { return logits_; }

  /// Room for what Device::k_largest finds, or Device::argmax: [wanted tokens, 2 k + 1] int32, or for a k of
  /// 0 [wanted tokens].
  Tensor found(std::int64_t k) const;

 private:
  /// Whether a row of this pass has an adapter, and some adapter changes the layer.
  bool adapts(const Linear& layer) const;
  /// [rows, columns] in `memory`.
  Tensor matrix(Tensor& memory, std::int64_t rows, std::int64_t columns, DType dtype = DType::kFloat32) const;
  /// logits = those of all ranks' tokens, gathered from each rank's own, [rows, share.rows()].
  void gather_logits(const Tensor& own) const;
  /// The same for the operand of a product that nothing else reads: in the type that the product takes.
  Tensor operand(Tensor& memory, std::int64_t rows, std::int64_t columns) const;

  Device& device_;
  DType dtype_;
  const ModelConfig& config_;
  PassPart part_;
  std::span<const Rotary> rotaries_;
  const PackedTokens& packed_;
  std::int64_t first_row_ = 0;  // of the cache
  KvCache& cache_;
  PassMemory& memory_;
  PassWatchers watchers_;
  Batch batch_;
  Tensor wanted_rows_, rotations_, logits_;
  Tensor adapters_, wanted_adapters_;  // of all new tokens, and of those whose logits are wanted
  bool only_wanted_ = false;           // whether the others are done
};

}  // namespace staircase
