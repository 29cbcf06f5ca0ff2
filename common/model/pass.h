// One forward pass of a model, for the code of a family: the new tokens on the device, memory for each
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
  Tensor other_logits;                          // of the previous pass, if they are read after this one
                                                // starts
  Tensor host_logits, host_found, host_chosen;  // used if the host cannot read the device's memory
  Tensor other_host_found;
  std::vector<Tensor> host_rows;  // rows of logits, if not all are read

  /// All tensors that are on the device.
  std::array<const Tensor*, 23> on_device() const;
  std::size_t bytes() const;
};

/// The new tokens of all sequences on the host, one sequence after another.
struct PackedTokens {
  std::vector<std::int32_t> tokens, offsets{0}, starts, wanted_rows;
  std::vector<std::int32_t> wanted_offsets{0};  // where each sequence begins among the wanted rows
  /// The position of each sequence's first new token, by which rotary models rotate queries and keys.
  /// `starts` is its index in the cache; the two differ in a row that has slid. Attention depends only on the
  /// difference between two rotations, so positions keep counting and older keys stay valid. A table of
  /// positions ends with the context: a model with one uses the index as the position, so after sliding its
  /// older keys belong to other indices.
  std::vector<std::int32_t> positions;
  /// The adapter of each sequence, or kNoAdapter; empty if no sequence has one.
  std::vector<std::int32_t> adapters;
  std::int64_t longest = 0;  // new tokens of the longest sequence
  bool wants_all = true;     // whether all rows are wanted, in their order

  /// Logits are wanted after each of the last counts[s] tokens of sequence s. Ids must be below `vocabulary`;
  /// the model's last token replaces any token that the model lacks. Throws Error for an empty list, more
  /// tokens than the model's context, an id outside the vocabulary, or a count that is not from 1 to the
  /// number of tokens. Only the lengths of the cache's rows, and how far they have slid, are read.
  /// `of_sequences` are the sequences' adapters; further sequences use its last entry.
  PackedTokens(std::span<const std::span<const int>> sequences, std::span<const int> counts,
               const KvCache& cache, const ModelConfig& config, int vocabulary,
               std::span<const std::int32_t> of_sequences = {});

  /// Only these sequences.
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

/// Memory for a mixture of experts: each of some rows chooses k experts.
struct Mixture {
  Tensor normed;           ///< [rows, n_embd]
  Tensor scores;           ///< of the router, [rows, n_experts]
  Tensor chosen;           ///< [rows, k] int32
  Tensor shares;           ///< [rows, k]
  Tensor inputs, outputs;  ///< [rows k, n_embd], sorted by expert
};

/// Copies of rows, one for each chosen expert, sorted by the expert that computes them.
struct ExpertRows {
  std::vector<std::int64_t> firsts;  ///< the first copy of each expert, then the count: [n_experts + 1]
  Tensor sources;                    ///< the row that each copy comes from, [rows k] int32
  Tensor places;                     ///< where the copies of a row are, [rows, k] int32
};

/// Where a pass finds its tokens and positions: it copies them from the host, or a previous pass on the same
/// sequences has left them on the device (Device::argmax).
enum class PassInput { kFromHost, kOnDevice };

class Pass {
 public:
  Pass(Device& device, DType dtype, const ModelConfig& config, const PassPart& part,
       std::span<const Rotary> rotaries, const PackedTokens& packed, KvCache& cache, PassMemory& memory,
       PassWatchers watchers, PassInput input = PassInput::kFromHost);

  Device& device() const { return device_; }
  Ranks& ranks() const { return part_.ranks; }

  /// Calls run(part) with a pass over some neighbouring sequences, whose logits are a part of logits(). Does
  /// not call it if they have no new tokens. Invalidates the result of `batch`.
  void run_part(Slice sequences, const std::function<void(Pass& part)>& run) const;

  /// Replaces x by its sum over all ranks. On a single rank, x stays as it is.
  void all_reduce(Tensor& x) const;

  /// Sends x to another rank, without waiting for it. x may change as soon as this returns.
  void send(const Tensor& x, int to) const;

  /// x = the numbers that another rank, `from`, has sent. Throws Error if their count differs, except between
  /// devices that exchange data without the host: these cannot check it.
  void receive(Tensor& x, int from) const;

  /// How a rank adds its part of a product to the residual stream before all_reduce. Rank 0 adds the part to
  /// x; the other ranks overwrite x with their parts, so the sum contains x once.
  Epilogue add_once() const {
    return part_.share.whole || ranks().rank() == 0 ? Epilogue::kAdd : Epilogue::kStore;
  }

  /// Call before each run of a network's operations.
  void begin() { only_wanted_ = false; }

  /// The configuration of this rank's part of the model.
  const ModelConfig& config() const { return config_; }

  const Batch& batch() const { return batch_; }

  /// Whether the pass begins on this rank, with the tokens. Otherwise the residual stream comes from another
  /// rank.
  bool begins() const { return part_.share.has_first_block(); }
  /// The number of this rank's first block.
  std::int64_t first_block() const { return part_.share.blocks.first; }

  /// The rotation of each token's position under one of the network's rotaries, for HeadRule.
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
  /// Memory for what a block adds to the rows of x, [rows, n_embd], if a norm comes before the addition.
  Tensor added(const Tensor& x) const;
  /// Memory for the hidden layer of the MLP for the rows of x, [rows, n_inner], in the type that products
  /// take.
  Tensor hidden(const Tensor& x) const { return hidden(x, config_.n_inner); }
  /// Memory for the hidden layer of an MLP with another width.
  Tensor hidden(const Tensor& x, std::int64_t width) const;
  /// Memory for the mixture of experts of the rows of x.
  Mixture mixture(const Tensor& x) const;
  /// Sorts the rows of a layer by their chosen experts. The host sorts, so this cannot be part of
  /// device().run().
  ExpertRows sort_by_expert(int layer, const Tensor& chosen) const;
  /// The keys and values of the cache. Without a cache, all layers reuse one pair of tensors.
  KeysValues keys_values(int layer) const;

  /// out = epilogue(norm(x) W + b), where each sequence's adapter changes W for its rows. `out` is float32
  /// unless the epilogue is a GELU or a gate.
  void linear(const Tensor& x, const Norm& norm, const Linear& layer, Epilogue epilogue, Tensor& out) const;

  /// Computes queries, keys and values in one product and stores each in its place: see
  /// Device::query_key_value.
  void query_key_value(const Tensor& x, const Norm& norm, const Linear& layer, Tensor& queries,
                       KeysValues& keys_values) const;

  /// `attended` = the attention of this layer. After the last layer's attention, only the tokens whose logits
  /// are wanted continue: `x` and `attended` become the rows of these tokens.
  void attend(int layer, const Tensor& queries, const KeysValues& keys_values, Tensor& x, Tensor& attended);

  /// Announces the two products after the next attention: see Device::announce.
  void announce(const Linear& next, const Linear& after_next) const {
    device_.announce(next.weight, after_next.weight);
  }

  /// logits = norm(x) W, the end of every family's pass. Does nothing on a rank without the last block.
  void finish(const Tensor& x, const Norm& norm, const Weight& output_layer) const;

  void show(std::string_view name, const Tensor& values) const;

  /// Numbers that determine which operations a network calls in this pass, and on which tensors: the sizes of
  /// the batch, and the addresses of the cache and all memory. A watched pass may call others.
  std::vector<std::uint64_t> key() const;

  /// The logits on the device, [wanted tokens, vocab_size], once the pass is done.
  const Tensor& logits() const { return logits_; }

  /// Memory for the result of Device::k_largest, [wanted tokens, 2 k + 1] int32, or of Device::argmax if k is
  /// 0: [wanted tokens].
  Tensor found(std::int64_t k) const;

 private:
  /// Whether any row of this pass has an adapter and any adapter changes the layer.
  bool adapts(const Linear& layer) const;
  /// A tensor [rows, columns] in `memory`, which grows if it is too small.
  Tensor matrix(Tensor& memory, std::int64_t rows, std::int64_t columns, DType dtype = DType::kFloat32) const;
  /// logits = the logits of all tokens, gathered from every rank's `own`, [rows, share.rows()].
  void gather_logits(const Tensor& own) const;
  /// A tensor for the operand of a product that nothing else reads, in the type that the product takes.
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
  Tensor adapters_, wanted_adapters_;  // of all new tokens, and of the wanted ones
  bool only_wanted_ = false;           // whether only the wanted tokens continue
};

}  // namespace staircase
