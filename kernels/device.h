// What a device provides: memory and the operations of a transformer. This file declares each operation with
// its shapes and its mathematics; kernels/<device>/<operation> implements it.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "kernels/tensor.h"

namespace staircase {

namespace cuda {
struct Tuning;
}

/// An array in host memory, as a file stores it: [rows, columns], row-major.
struct HostArray {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t rows = 1;
  std::int64_t columns = 0;
};

/// A weight matrix in the layout that its device multiplies fastest, with y[out] = Σ_in x[in] · W[in, out].
struct Weight {
  Tensor packed;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
};

/// Low-rank changes of one matrix [in, out] for several adapters, one adapter after another (Hu et al. 2021,
/// section 4.1). Adapter a has the ranks firsts[a] .. firsts[a + 1] - 1, and none if it does not change the
/// matrix.
struct LowRank {
  Tensor down;     ///< [ranks, in] in float32, float16 or bfloat16: the matrices A
  Tensor up;       ///< [ranks, out] in the same type: the matrices B, transposed; 0 outside of `columns`
  Tensor scales;   ///< [ranks]: the factor of each rank's row of `up`
  Tensor columns;  ///< [ranks, 2] int32: a rank changes the outputs from the first number up to, but not
                   ///< including, the second
  Tensor firsts;   ///< [adapters + 1] int32, ascending, from 0 to the number of ranks
};

/// The adapter index of a row without an adapter.
constexpr std::int32_t kNoAdapter = -1;

/// The order of a stored weight matrix's dimensions.
enum class WeightOrder {
  kInputFirst,   ///< [in, out]
  kOutputFirst,  ///< [out, in]
};

enum class NormKind {
  kNone,   ///< the row stays unchanged
  kLayer,  ///< (x - mean) / sqrt(variance + epsilon) · weight + bias (Ba et al. 2016, section 3)
  kRms,    ///< x / sqrt(mean of x² + epsilon) · weight (Zhang and Sennrich 2019, section 4)
};

/// The normalization of a row.
struct Norm {
  NormKind kind = NormKind::kNone;
  Tensor weight, bias;  ///< [width], or empty: 1 and 0
  float epsilon = 0.0f;
};

/// What `linear` applies to the product before storing it.
enum class Epilogue {
  kStore,     ///< out = x W + b
  kGelu,      ///< out = gelu(x W + b), the tanh form of Hendrycks and Gimpel 2016, section 2
  kGeluErf,   ///< the exact definition: gelu(x) = x/2 · (1 + erf(x / sqrt 2))
  kSiluGate,  ///< out = silu(gate) · up, where x W + b alternates kGateColumns outputs of gate and of up;
              ///< silu(x) = x / (1 + exp(-x)) (Shazeer 2020, section 2: SwiGLU)
  kGeluGate,  ///< out = gelu(gate) · up in the same layout, with the gelu of kGelu (GEGLU)
  kAdd,       ///< out += x W + b: the residual connection
};

/// Whether the product holds both a gate and the values it gates.
constexpr bool is_gated(Epilogue epilogue) {
  return epilogue == Epilogue::kSiluGate || epilogue == Epilogue::kGeluGate;
}

/// Whether a router's softmax runs over the scores of all experts or only of the chosen ones.
enum class RouterSoftmax { kAll, kChosen };

/// A gated product interleaves its outputs: this many of the gate, then as many of the factor `up`, and so
/// on. The loader pads the last group of each with zero outputs, so W always holds whole groups. out has the
/// width of the unpadded gate, at most half the width of W.
constexpr std::int64_t kGateColumns = 16;

/// The new tokens of one or more sequences, packed one sequence after another without padding. Sequence s
/// owns the tokens offsets[s] .. offsets[s + 1] - 1; the first of them is at position starts[s] of that
/// sequence. Without a cache every start is 0; a decoding step has one token per sequence.
struct Batch {
  Tensor tokens;   ///< [n_tokens] int32
  Tensor offsets;  ///< [n_sequences + 1] int32, ascending, from 0 to n_tokens
  Tensor starts;   ///< [n_sequences] int32

  std::int64_t n_tokens() const { return tokens.dim(0); }
  std::int64_t n_sequences() const { return starts.dim(0); }
};

/// How queries and keys are prepared for attention. First each head is normalized. Then the pairs (i, i +
/// rotary / 2) of its first `rotary` features are rotated by angles that depend on the token's position: a' =
/// a cos - b sin, b' = b cos + a sin. This is section 3.4 of Su et al. 2021, in the layout of Hugging Face.
struct HeadRule {
  Norm query_norm, key_norm;  ///< norms of head_size features, RMS or none
  Tensor rotations;  ///< [n_tokens, rotary]: the cosines of a token's rotary / 2 angles, then the sines; or
                     ///< empty
  /// Each norm covers all query heads, or all key heads, together instead of one head at a time.
  bool heads_together = false;
};

/// The largest k of k_largest.
constexpr std::int64_t kMostLargest = 1024;

/// The window of a layer that sees all positions.
constexpr std::int32_t kNoWindow = std::numeric_limits<std::int32_t>::max();

/// How many numbers of a head in an int4 cache share a least number and a step.
constexpr std::int64_t kInt4CacheGroup = 16;

/// The elements that one head occupies at one position of a cache of type `dtype`. In int8 a head's keys at a
/// position share a scale, and so do its values: the integers come first, then the scale's four bytes. In
/// int4 the levels come first, two per byte, then four bytes for each group. Moving or copying a position
/// therefore also moves its scales.
constexpr std::int64_t kept_size(DType dtype, std::int64_t head_size) {
  if (dtype == DType::kInt4) return head_size / 2 + head_size / kInt4CacheGroup * 4;
  return head_size + (dtype == DType::kInt8 ? std::int64_t{sizeof(float)} : 0);
}

/// The head_size for which kept_size returns `kept`.
constexpr std::int64_t head_size_of(DType dtype, std::int64_t kept) {
  if (dtype == DType::kInt4) return kept * kInt4CacheGroup / kept_size(dtype, kInt4CacheGroup);
  return kept - kept_size(dtype, 0);
}

/// In a cache of type `dtype` the head size must be a multiple of this. In int8 a head then fills whole
/// vectors on any processor, and in int4 pairs of groups.
constexpr std::int64_t head_multiple(DType dtype) {
  return dtype == DType::kInt4 ? 2 * kInt4CacheGroup : dtype == DType::kInt8 ? 16 : 1;
}
inline bool takes_heads(DType dtype, std::int64_t head_size) {
  return dtype != DType::kInt32 && head_size % head_multiple(dtype) == 0;
}

/// Keys and values of one layer, in float32, float16, bfloat16, int8 or int4. Sequence s of a batch uses row
/// s. Without a block table a row is one block: head h of its position p is keys[s, h, p]. With a block
/// table, a row's positions are spread over blocks of block_size positions (Kwon et al. 2023, section 4.2),
/// and that element is keys[blocks[s, p / block_size], h, p % block_size]. Rows may share blocks that no
/// operation writes. The positions of a head in a block are contiguous, so attention reads memory in order.
/// In int8 a number x is stored as round(x / scale), ties to even, with scale = the largest magnitude of its
/// head at its position / 127 (see kept_size).
///
/// In int4 each head is first rotated by a Hadamard matrix (rotate_head in kernels/hadamard.h), which spreads
/// its outliers (Ashkboos et al. 2024). Each group of kInt4CacheGroup numbers stores two more in bfloat16,
/// `least` and `step`. A number x becomes the level round((x - least) / step), ties to even, from 0 to 15,
/// and is read back as least + level · step. At first `least` is the group's least number and step = (the
/// largest - least) / 15. These give the levels; linear regression then finds the `least` and `step` with the
/// least squared error for them, and these two are stored. Of 32 neighbours, byte i holds the level of number
/// i in its lower half and the level of number i + 16 in its upper half. The first 8 bytes, with the numbers
/// 0 to 7 and 16 to 23, are one group, and the last 8 bytes another. After all levels follow `least` and
/// `step` of each group.
struct KeysValues {
  /// [n_rows, n_kv_head, capacity, head_size] or [n_blocks, n_kv_head, block_size, head_size], where the last
  /// dimension is kept_size in int8 and int4.
  Tensor keys;
  Tensor values;  ///< the same shape as `keys`
  Tensor blocks =
      {};  ///< [n_rows, most blocks of a row] int32, or empty; block_size is a multiple of 16 then
  std::int32_t window = kNoWindow;  ///< a query sees at most its own position and the window - 1 before it

  std::int64_t head_size() const { return head_size_of(keys.dtype(), keys.dim(3)); }
};

/// One of several devices that compute together. Each belongs to one rank, which is a process or a thread.
struct DeviceRank {
  int rank = 0, size = 1;
  /// Every rank calls this, and every call returns the text that rank 0 passed.
  std::function<std::string(const std::string& text)> broadcast;
};

/// Tensors passed to an operation must be on the device, have the stated shapes and not overlap. An operation
/// neither allocates its results nor checks these conditions, which the model guarantees.
class Device {
 public:
  virtual ~Device() = default;

  /// A description for people, such as "CPU, 2 threads, AVX3".
  virtual std::string description() const = 0;

  /// The name of the GPU, such as "NVIDIA H200", for which a tuning table may exist; empty for other devices.
  virtual std::string card() const { return {}; }

  /// Makes a GPU use the kernel forms of this table from now on (kernels/tuning.h). Forms differ in speed and
  /// in the order of their sums. If the table lacks a product, or names a form for it that is not compiled,
  /// the product keeps its default form. Other devices ignore the table.
  virtual void use(const cuda::Tuning& /*tuning*/) {}

  // ── Memory ──

  /// Returns a tensor with uninitialised memory. If the device has too little memory, throws std::bad_alloc
  /// on the CPU, and std::runtime_error with the sizes on a GPU.
  virtual Tensor allocate(DType dtype, const Shape& shape) = 0;

  /// Copies all of `source` to the start of `destination`.
  virtual void copy_from_host(std::span<const std::int32_t> source, Tensor& destination) = 0;

  /// Copies all of `source` to the start of a float32 tensor.
  void copy_from_host(std::span<const float> source, Tensor& destination) {
    Tensor bits = destination.viewed_as(DType::kInt32, destination.shape());
    copy_from_host(std::span(reinterpret_cast<const std::int32_t*>(source.data()), source.size()), bits);
  }

  /// Copies the first destination.size() bytes of a tensor to the host.
  virtual void copy_to_host(const Tensor& source, std::span<std::byte> destination) = 0;

  /// Copies the first destination.size() elements of a float32 tensor to the host.
  void copy_to_host(const Tensor& source, std::span<float> destination) {
    copy_to_host(source, std::as_writable_bytes(destination));
  }

  /// Returns the elements of a float32 tensor for the host to read: in place if possible, otherwise as a copy
  /// in `memory`, which grows if it is too small.
  virtual std::span<const float> to_host(const Tensor& source, Tensor& memory) = 0;

  /// Returns the elements of an int32 tensor for the host to read, as `to_host` does.
  std::span<const std::int32_t> ints_to_host(const Tensor& source, Tensor& memory) {
    const std::span<const float> bits = to_host(source.viewed_as(DType::kFloat32, source.shape()), memory);
    return {reinterpret_cast<const std::int32_t*>(bits.data()), bits.size()};
  }

  /// Starts the copy of ints_to_host, and returns a function that waits for this copy alone and returns the
  /// elements. If given() has a value, later operations may already run and change `source`. `memory` must
  /// not change until the function has returned.
  virtual std::function<std::span<const std::int32_t>()> start_to_host(const Tensor& source, Tensor& memory) {
    return [this, source, &memory] { return ints_to_host(source, memory); };
  }

  /// The number of operations and copies issued to this device so far, or no value if each is done when its
  /// call returns. With a value, issue the next operations before reading the results of the last: that keeps
  /// the device busy.
  virtual std::optional<std::uint64_t> given() const { return {}; }

  /// Loads a vector or a small table (biases, norms, positions) as float32: [columns] for one row, otherwise
  /// [rows, columns].
  virtual Tensor load(const HostArray& array) = 0;

  /// Loads a weight matrix, converted to `dtype` and to the device's own layout in one pass. In int8 a weight
  /// is stored as round(weight / scale), with scale = the largest magnitude of its group (kGroup) / 127. In
  /// int4 scale = w / -8 in bfloat16, where w is the weight of the group (kInt4Group) that is furthest from
  /// zero, the first of equal ones; levels above 7 become 7. No number of the matrix may exceed the largest
  /// number of `dtype`, or of bfloat16 in int8 and int4. Throws std::runtime_error for a type that the device
  /// does not multiply.
  Weight load_weight(const HostArray& matrix, WeightOrder order, DType dtype) {
    return load_weight(std::span(&matrix, 1), order, dtype);
  }

  /// Loads several matrices with the same inputs as one: the outputs of the first part come first, then the
  /// outputs of the next. The parts may be stored in different types. With the order kInputFirst, there is
  /// only one part.
  virtual Weight load_weight(std::span<const HostArray> parts, WeightOrder order, DType dtype) = 0;

  // ── Operations ──

  /// The type of x for which `linear` is fastest, given the number of rows and the type of the weights. Data
  /// that only a product reads, such as the results of attention and of GELU, is best stored in this type
  /// from the start.
  virtual DType operand_dtype([[maybe_unused]] std::int64_t rows, [[maybe_unused]] DType weights) const {
    return DType::kFloat32;
  }

  /// Runs the operations that `work` calls. A device on which each launch takes time may record them. When a
  /// later `work` calls the same operations on the same tensors, whatever these contain, it launches the
  /// whole recording. So `work` must call only operations, without copies from or to the host, and may be
  /// called more than once. The device learns the operations by calling `work`, unless there is a `key`:
  /// equal keys promise the same operations on the same tensors.
  virtual void run(const std::function<void()>& work, std::span<const std::uint64_t> /*key*/ = {}) { work(); }

  /// out[t] = token_table[tokens[t]] + position_table[position of t], for every token t of the batch.
  /// token_table is a Weight [width, vocab_size], which may also be the output layer; position_table is
  /// [n_positions, width], or empty for none; out is [n_tokens, width].
  virtual void embedding(const Batch& batch, const Weight& token_table, const Tensor& position_table,
                         Tensor& out) = 0;

  /// out[r] = norm(x[r]) for each row. x and out [rows, width].
  virtual void normalize(const Tensor& x, const Norm& norm, Tensor& out) = 0;

  /// out[r] += norm(x[r]): the residual connection of model families that normalize what they add. The norm
  /// is not kNone. x and out [rows, width].
  virtual void add_normalized(const Tensor& x, const Norm& norm, Tensor& out) = 0;

  /// out = epilogue(norm(x) W + b). x [rows, in_features], out [rows, out_features] (fewer with a gate: see
  /// kGateColumns), bias [out_features] or an empty tensor for none. If W has 16 bits, norm(x) may also be
  /// rounded to its type. If W has fewer bits, norm(x) may be quantized in groups, as W is, or both may be
  /// rounded to 16 bits. Sums of floats are always float32. x is float32 or, without a norm, any type that
  /// operand_dtype names for W. out is float32 or, unless the product is added to it, also such a type. The
  /// norm is part of the product because a GPU, for a few rows, takes longer to launch a separate kernel for
  /// it than to compute it.
  virtual void linear(const Tensor& x, const Norm& norm, const Weight& weight, const Tensor& bias,
                      Epilogue epilogue, Tensor& out) = 0;

  /// Multiplies several matrices by a few rows each, such as the experts of a mixture. With W = weights[i],
  /// it computes the rows firsts[i] to firsts[i + 1] - 1 of out = epilogue(x W). firsts has one number more
  /// than weights, which all have one shape and type. x and out are as in `linear`, whose results are the
  /// same, bit for bit.
  virtual void linear_groups(const Tensor& x, std::span<const std::int64_t> firsts,
                             std::span<const Weight* const> weights, Epilogue epilogue, Tensor& out) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::int64_t count = firsts[i + 1] - firsts[i];
      Tensor rows = out.rows(firsts[i], count);
      if (count > 0) linear(x.rows(firsts[i], count), {}, *weights[i], {}, epilogue, rows);
    }
  }

  /// Whether linear_groups, with this many rows in total, is faster than calling `linear` for each group.
  virtual bool joins_groups(std::int64_t /*rows*/) const { return false; }

  /// out[r] += Σ_k scales[k] (x[r] · down[k]) up[k] over the ranks k of the adapter of row r, which is
  /// adapters[r] or kNoAdapter (Hu et al. 2021, section 4.1). Rows of different adapters may come in any
  /// order. x [rows, in] has any type that operand_dtype names, adapters [rows] int32, out [rows, out]
  /// float32.
  virtual void add_low_rank(const Tensor& x, const Tensor& adapters, const LowRank& change, Tensor& out) = 0;

  /// out = epilogue(x), as `linear` would apply it: for a product to which something is added first. x [rows,
  /// width] is float32. The epilogue is not kAdd; out has a shape and type that `linear` allows with it.
  virtual void activate(const Tensor& x, Epilogue epilogue, Tensor& out) = 0;

  /// [q | k | v] = norm(x) W + b in one product as in `linear`, where W is [width, 3 width], with as many key
  /// heads as query heads. The bias, [3 width], is never empty. The queries go to `queries` [n_tokens,
  /// width]; keys and values go straight to the row and position of each token, rounded to their dtype. No
  /// two tokens may have the same position in a row.
  virtual void query_key_value(const Batch& batch, const Tensor& x, const Norm& norm, const Weight& weight,
                               const Tensor& bias, Tensor& queries, KeysValues& keys_values) = 0;

  /// Splits an existing product, [q | k | v] of each token, and stores its parts as query_key_value does:
  /// projected [n_tokens, (n_head + 2 n_kv_head) head_size]. Queries and keys pass through `rule` first, in
  /// float32. queries [n_tokens, n_head head_size].
  virtual void split_heads(const Batch& batch, const Tensor& projected, const HeadRule& rule, Tensor& queries,
                           KeysValues& keys_values) = 0;

  /// Causal attention (Vaswani et al. 2017, section 3.2): the query at position p of a sequence sees the keys
  /// 0 .. p of its row. With a window of w it sees only p - w + 1 .. p (Beltagy et al. 2020, section 3.1);
  /// earlier keys get no weight, and most of them are not read. For each head, out = softmax(q Kᵀ /
  /// sqrt(head_size)) V. Only a few rows of scores exist at a time, never a matrix of all positions by all
  /// positions. Neighbouring query heads share a head of keys and values: head h uses h / (n_head /
  /// n_kv_head) (Ainslie et al. 2023, section 2.2: grouped queries). queries and out [n_tokens, n_head
  /// head_size]; out may have any type that operand_dtype names. If keys and values have 16 bits, queries and
  /// softmax may be rounded to their type before they are multiplied; the sums are always float32. In int8
  /// the integers are multiplied unscaled: a key's scale multiplies its score, and a value's scale multiplies
  /// its weight. In int8 and int4, a processor with matrix instructions also rounds queries and these weights
  /// to bfloat16 and, in int4, the numbers that are read back. The result is the same, bit for bit, with and
  /// without a block table and wherever the blocks are, as long as a row has room for the same number of
  /// positions.
  virtual void attention(const Batch& batch, const Tensor& queries, const KeysValues& keys_values,
                         Tensor& out) = 0;

  /// Announces the weights of the two products that follow the next attention. During that attention, a GPU
  /// fetches them into its cache on multiprocessors that have no keys to read. This changes no result; other
  /// devices ignore it.
  virtual void announce(const Weight& /*first*/, const Weight& /*second*/) {}

  /// to[r, h, to_first + p] = from[r, h, from_first + p] for p < count, in every row r and head h. Copies
  /// keys or values from one cache to another or, inside one, towards its start (then from_first >=
  /// to_first). Both are [n_rows, n_kv_head, capacity, head_size], of the same dtype; their capacities may
  /// differ. In int8 and int4 the scales move with their positions.
  void copy_positions(const Tensor& from, std::int64_t from_first, std::int64_t count, Tensor& to,
                      std::int64_t to_first) {
    do_copy_positions(from, from_first, count, to, to_first);
    if (copy_watcher_) copy_watcher_(from, from_first, count, to, to_first);
  }

  /// A function that takes the arguments of copy_positions.
  using CopyWatcher = std::function<void(const Tensor& from, std::int64_t from_first, std::int64_t count,
                                         const Tensor& to, std::int64_t to_first)>;

  /// Calls `watcher` after each copy_positions from now on. Watching itself costs no copy.
  void watch_copies(CopyWatcher watcher) { copy_watcher_ = std::move(watcher); }

  /// out[i] = x[indices[i]]. x [rows, width], indices [n] int32, out [n, width] of the type of x, which may
  /// be any.
  virtual void gather_rows(const Tensor& x, const Tensor& indices, Tensor& out) = 0;

  /// A router's choice in a mixture of experts (Shazeer et al. 2017, section 2.1). Each row of `scores`
  /// [rows, n_experts] chooses as many experts as `chosen` [rows, k] int32 has columns: those with the
  /// largest scores, the largest first and of equal ones the lowest index. k is at most n_experts. shares[r,
  /// j] = exp(scores[r, chosen[r, j]]) / Σ exp(scores[r, e]), the sum over all experts e, or over the chosen
  /// ones (Jiang et al. 2024, section 2.1). shares [rows, k]. A NaN is chosen last, and a row never holds an
  /// index twice. The shares of non-finite scores may be NaN.
  virtual void choose_experts(const Tensor& scores, RouterSoftmax softmax, Tensor& chosen,
                              Tensor& shares) = 0;

  /// Adds up the results of each row's k experts, weighted by their shares (Shazeer et al. 2017, equation 1).
  /// out[r] = Σ_j shares[r, j] · x[places[r, j]], added in the order of j. With kAdd instead of kStore, the
  /// sum is added to out[r]. x [n, width], places [rows, k] int32, shares [rows, k], out [rows, width]; all
  /// but places are float32.
  virtual void combine_rows(const Tensor& x, const Tensor& places, const Tensor& shares, Epilogue epilogue,
                            Tensor& out) = 0;

  /// out[r] = the index of the largest number of x[r], the lowest one among equals, or -1 if any number of
  /// x[r] is infinite or NaN. x [rows, width] float32, out [rows] int32. `batch`, if given, holds one token
  /// for each row and becomes the next decoding step: its tokens are those of `out`, with 0 for -1, and each
  /// start grows by 1.
  virtual void argmax(const Tensor& x, Tensor& out, Batch* batch) = 0;
  void argmax(const Tensor& x, Tensor& out) { argmax(x, out, nullptr); }

  /// The part of a row of logits that is needed to sample a token. out[r] = [the indices of the k largest
  /// numbers of x[r] in falling order, the lowest one of equals first | these k numbers | log Σ_i exp(x[r,
  /// i])]. All but the indices are the bits of float32 numbers. If any number of x[r] is infinite or NaN, the
  /// first index is -1, and the rest is meaningless. x [rows, width] float32, out [rows, 2 k + 1] int32, k
  /// from 1 to the width and to kMostLargest.
  virtual void k_largest(const Tensor& x, std::int64_t k, Tensor& out) = 0;

  /// Whether k_largest is faster than copying rows of this width to the host and searching them there.
  virtual bool is_worth_searching(std::int64_t /*k*/, std::int64_t /*width*/) const { return true; }

  // ── Several devices ──

  /// Whether devices of this kind exchange tensors directly. If not, the host exchanges them.
  virtual bool can_join() const { return false; }

  /// Links this device to the devices of all other ranks, for the calls below. Every rank must make the same
  /// calls in the same order, except for send and receive, and none of them within run(). A linked device
  /// stays linked. Throws std::runtime_error if the link fails, and std::logic_error unless can_join().
  virtual void join(const DeviceRank& /*own*/) { throw_alone(); }

  /// Whether `join` has linked this device.
  virtual bool is_linked() const { return false; }

  /// Replaces each number of x (float32) by its sum over all ranks, added in the order of the ranks, so every
  /// rank gets the same bits in every run. Returns how many bytes came from other ranks.
  virtual std::size_t all_reduce(Tensor& /*x*/) { throw_alone(); }

  /// Puts the columns of all ranks side by side: all[r, k · count + c] = own[r, c] of rank k, for each c <
  /// count, up to the width of `all`. own [rows, count or more], all [rows, count · ranks or fewer], both
  /// float32. Returns how many bytes came from other ranks.
  virtual std::size_t all_gather(const Tensor& /*own*/, std::int64_t /*count*/, Tensor& /*all*/) {
    throw_alone();
  }

  /// Sends x (float32) to another rank, and returns at once. Later operations may wait until x is sent.
  virtual void send(const Tensor& /*x*/, int /*to*/) { throw_alone(); }

  /// Fills x (float32) with as many numbers, sent by another rank, `from`. Returns how many bytes came.
  virtual std::size_t receive(Tensor& /*x*/, int /*from*/) { throw_alone(); }

  /// Call this when a pass has failed on one rank. Operations of that pass may wait for other ranks forever,
  /// and releasing memory or the link would wait for these operations. So a linked device keeps both until
  /// the process ends. Devices that are not linked ignore the call.
  virtual void abandon() {}

 protected:
  /// Returns memory for at least this many intermediate results of an operation, kept from call to call.
  /// Growing it loses its contents.
  float* grown(Tensor& memory, std::int64_t floats) {
    if (memory.size() < floats) {
      memory = Tensor();
      memory = allocate(DType::kFloat32, {floats});
    }
    return memory.data<float>();
  }

 private:
  virtual void do_copy_positions(const Tensor& from, std::int64_t from_first, std::int64_t count, Tensor& to,
                                 std::int64_t to_first) = 0;

  [[noreturn]] static void throw_alone() { throw std::logic_error("this device is not linked to others"); }

  CopyWatcher copy_watcher_;
};

/// Returns the index of the largest value, the lowest one among equals. Runs on the host. `values` must not
/// be empty or hold NaN.
int argmax(std::span<const float> values);

/// Whether all values are finite: neither infinite nor NaN. Runs on the host.
bool all_finite(std::span<const float> values);

/// Replaces x by the distribution exp(x) / Σ exp(x); -infinity becomes 0. Runs on the host. If all values are
/// -infinity, or one is +infinity or NaN, it returns false and leaves x undefined.
bool softmax_in_place(std::span<float> x);

/// Returns the CPU as a device with this many threads. The SIMD instructions are chosen when the program
/// runs.
std::unique_ptr<Device> make_cpu_device(int threads);

/// Returns the first NVIDIA GPU as a device. Throws std::runtime_error with the reason if none is usable:
/// this program was built without CUDA, there is no driver or no GPU, or the GPU is too old. If the GPU can,
/// it begins a kernel before the previous one has ended, unless `may_overlap` is false. That changes no bit
/// of a result.
std::unique_ptr<Device> make_cuda_device(bool may_overlap = true);

/// The number of processors that this process may use.
int available_processors();

}  // namespace staircase
