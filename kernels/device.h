// The abilities of a device: memory, and the operations of a transformer. Every operation is declared here
// once, with its shapes and its mathematics, and implemented in kernels/<device>/<operation>.
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

/// Low-rank changes of one matrix [in, out], those of several adapters one after another (Hu et al. 2021,
/// section 4.1). Adapter a has the ranks firsts[a] .. firsts[a + 1] - 1: none if it leaves the matrix as it
/// is.
struct LowRank {
  Tensor down;     ///< [ranks, in] in float32, float16 or bfloat16: the matrices A
  Tensor up;       ///< [ranks, out] in the same type: the matrices B, transposed; 0 outside of `columns`
  Tensor scales;   ///< [ranks]: by which a rank's row of `up` is multiplied
  Tensor columns;  ///< [ranks, 2] int32: the first output that a rank changes, and the one after its last
  Tensor firsts;   ///< [adapters + 1] int32, ascending, from 0 to the number of ranks
};

/// The adapter of a row that has none.
constexpr std::int32_t kNoAdapter = -1;

/// Which dimension of a stored weight matrix comes first.
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

/// What `linear` does with the product before storing it.
enum class Epilogue {
  kStore,     ///< out = x W + b
  kGelu,      ///< out = gelu(x W + b), the tanh form of Hendrycks and Gimpel 2016, section 2
  kGeluErf,   ///< the exact definition: gelu(x) = x/2 · (1 + erf(x / sqrt 2))
  kSiluGate,  ///< out = silu(gate) · up, where x W + b holds gate and up in turns of kGateColumns outputs;
              ///< silu(x) = x / (1 + exp(-x)) (Shazeer 2020, section 2: SwiGLU)
  kGeluGate,  ///< the same with the gelu of kGelu (GEGLU)
  kAdd,       ///< out += x W + b: the residual connection
};

/// Whether the product holds a gate and what it gates.
constexpr bool is_gated(Epilogue epilogue) {
  return epilogue == Epilogue::kSiluGate || epilogue == Epilogue::kGeluGate;
}

/// Over which scores of a router a softmax makes shares: those of all experts, or those of the chosen ones.
enum class RouterSoftmax { kAll, kChosen };

/// A gated product interleaves its outputs: this many of the gate, then as many of the factor `up`. W
/// consists of whole turns of both: the loader pads the last ones with zero outputs. out is as wide as gate
/// and up were before that, at most half as wide as W.
constexpr std::int64_t kGateColumns = 16;

/// The new tokens of one or more sequences, packed one sequence after another without padding. Sequence s
/// owns the tokens offsets[s] .. offsets[s + 1] - 1; the first of them is at position starts[s] of that
/// sequence. A batch without a cache starts at 0 everywhere; a decoding step has one token per sequence.
struct Batch {
  Tensor tokens;   ///< [n_tokens] int32
  Tensor offsets;  ///< [n_sequences + 1] int32, ascending, from 0 to n_tokens
  Tensor starts;   ///< [n_sequences] int32

  std::int64_t n_tokens() const { return tokens.dim(0); }
  std::int64_t n_sequences() const { return starts.dim(0); }
};

/// How queries and keys are prepared for attention. Each of their heads is normalized. Then the position of a
/// token rotates the pairs (i, i + rotary / 2) of each head's first `rotary` features by an angle: a' = a cos
/// - b sin, b' = b cos + a sin. This is section 3.4 of Su et al. 2021, in the layout of Hugging Face.
struct HeadRule {
  Norm query_norm, key_norm;  ///< of head_size features, RMS or none
  Tensor rotations;  ///< [n_tokens, rotary]: the cosines of a token's rotary / 2 angles, then the sines; or
                     ///< empty
  /// Each norm is of the features of all heads of queries, or of keys, instead of each head.
  bool heads_together = false;
};

/// The most numbers of a row that k_largest finds.
constexpr std::int64_t kMostLargest = 1024;

/// The window of a layer that sees all positions.
constexpr std::int32_t kNoWindow = std::numeric_limits<std::int32_t>::max();

/// Numbers in a head of an int4 cache that share a least number and a step.
constexpr std::int64_t kInt4CacheGroup = 16;

/// The elements that a head takes at one position of a cache of that type. In int8 a head's keys at a
/// position, and its values, share a scale: the integers come first, then the scale's four bytes. In int4 the
/// levels come first, two in a byte, then four bytes for each group. So whatever moves or copies a position
/// takes them along.
constexpr std::int64_t kept_size(DType dtype, std::int64_t head_size) {
  if (dtype == DType::kInt4) return head_size / 2 + head_size / kInt4CacheGroup * 4;
  return head_size + (dtype == DType::kInt8 ? std::int64_t{sizeof(float)} : 0);
}

/// The reverse.
constexpr std::int64_t head_size_of(DType dtype, std::int64_t kept) {
  if (dtype == DType::kInt4) return kept * kInt4CacheGroup / kept_size(dtype, kInt4CacheGroup);
  return kept - kept_size(dtype, 0);
}

/// A cache of that type takes heads whose size is a multiple of this: whole vectors of any processor in int8,
/// and pairs of groups in int4.
constexpr std::int64_t head_multiple(DType dtype) {
  return dtype == DType::kInt4 ? 2 * kInt4CacheGroup : dtype == DType::kInt8 ? 16 : 1;
}

/// Keys and values of one layer, in float32, float16, bfloat16, int8 or int4. Sequence s of a batch uses row
/// s. Without a block table a row is one block: head h of its position p is keys[s, h, p]. With one, a row's
/// positions are spread over blocks of block_size (Kwon et al. 2023, section 4.2). That element is then
/// keys[blocks[s, p / block_size], h, p % block_size]. Rows may share blocks that are not written. The
/// positions of a head in a block are contiguous, so attention reads memory in order. In int8 a number x is
/// round(x / scale), ties to even, with scale = the largest magnitude of its head at its position / 127 (see
/// kept_size).
///
/// In int4 each head is first rotated by a Hadamard matrix (rotate_head in kernels/hadamard.h), which spreads
/// its outliers (Ashkboos et al. 2024). Each group of kInt4CacheGroup has two numbers in bfloat16: a number x
/// becomes the level round((x - least) / step), ties to even, from 0 to 15, and stands for least + level
/// step. At first `least` is the group's least number and step = (the largest - least) / 15. For the levels
/// that these give, linear regression finds the two with the least squared error, and they are stored. Of 32
/// neighbours, byte i has the level of number i in its lower half and that of number i + 16 in its upper one.
/// The first 8 bytes are a group, and the last 8 another. After all levels, `least` and `step` of each group
/// follow.
struct KeysValues {
  /// [n_rows, n_kv_head, capacity, head_size] or [n_blocks, n_kv_head, block_size, head_size], where int8 and
  /// int4 have kept_size in the place of head_size.
  Tensor keys;
  Tensor values;  ///< of the same shape
  Tensor blocks =
      {};  ///< [n_rows, most blocks of a row] int32, or empty; block_size is a multiple of 16 then
  std::int32_t window = kNoWindow;  ///< a query sees at most its own position and the window - 1 before it

  std::int64_t head_size() const { return head_size_of(keys.dtype(), keys.dim(3)); }
};

/// One of several devices that compute together, each for a rank of its own: a process, or a thread.
struct DeviceRank {
  int rank = 0, size = 1;
  /// Returns the text of rank 0. Every rank calls it.
  std::function<std::string(const std::string& text)> broadcast;
};

/// Tensors passed to an operation must be on the device, have the stated shapes and not overlap; an operation
/// neither allocates its results nor checks what the model guarantees.
class Device {
 public:
  virtual ~Device() = default;

  /// For people: "CPU, 2 threads, AVX3".
  virtual std::string description() const = 0;

  /// The name of a GPU, "NVIDIA H200", for which `use` may have a table; empty for other devices.
  virtual std::string card() const { return {}; }

  /// Which forms of its kernels a GPU takes from now on (kernels/tuning.h). They differ in their speed
  /// and in the order of their sums. A product that the table does not name, or names a form for that it has
  /// no kernel of, gets the form that it has without a table. Other devices ignore it.
  virtual void use(const cuda::Tuning& /*tuning*/) {}

  // ── Memory ──

  /// Uninitialised memory for a tensor. If the device has too little, throws std::bad_alloc on the CPU, and
  /// on a GPU std::runtime_error with the sizes.
  virtual Tensor allocate(DType dtype, const Shape& shape) = 0;

  /// Copies all of `source` to the start of `destination`.
  virtual void copy_from_host(std::span<const std::int32_t> source, Tensor& destination) = 0;

  /// The same for a float32 tensor.
  void copy_from_host(std::span<const float> source, Tensor& destination) {
    Tensor bits = destination.viewed_as(DType::kInt32, destination.shape());
    copy_from_host(std::span(reinterpret_cast<const std::int32_t*>(source.data()), source.size()), bits);
  }

  /// Copies the first destination.size() bytes of a tensor to the host.
  virtual void copy_to_host(const Tensor& source, std::span<std::byte> destination) = 0;

  /// The same for the first destination.size() elements of a float32 tensor.
  void copy_to_host(const Tensor& source, std::span<float> destination) {
    copy_to_host(source, std::as_writable_bytes(destination));
  }

  /// The elements of a float32 tensor, for the host to read: in place if possible, otherwise
  /// copied into `memory`, which grows if it is too small.
  virtual std::span<const float> to_host(const Tensor& source, Tensor& memory) = 0;

  /// The same for an int32 tensor.
  std::span<const std::int32_t> ints_to_host(const Tensor& source, Tensor& memory) {
    const std::span<const float> bits = to_host(source.viewed_as(DType::kFloat32, source.shape()), memory);
    return {reinterpret_cast<const std::int32_t*>(bits.data()), bits.size()};
  }

  /// Starts the same copy, and returns what waits for it alone. Operations that follow may change `source`
  /// and run meanwhile, if the device has given(). `memory` must not change before they have come.
  virtual std::function<std::span<const std::int32_t>()> start_to_host(const Tensor& source, Tensor& memory) {
    return [this, source, &memory] { return ints_to_host(source, memory); };
  }

  /// How many operations and copies to the device it has been given, if they may still run after their call
  /// has returned. Then it gains from the next ones before the host has the results of the last.
  virtual std::optional<std::uint64_t> given() const { return {}; }

  /// A float32 copy of a vector or a small table (biases, norms, positions): [columns] for one row, otherwise
  /// [rows, columns].
  virtual Tensor load(const HostArray& array) = 0;

  /// A weight matrix, converted to `dtype` and to the device's own layout in one pass. In int8 a weight is
  /// round(weight / scale), with scale = the largest magnitude of its group (kGroup) / 127. In int4 the scale
  /// is the weight furthest from zero of its group (kInt4Group), the first of several, / -8 in bfloat16, and
  /// more than 7 becomes 7. No number of the matrix may exceed the largest of `dtype`, in int8 and int4 that
  /// of bfloat16. Throws std::runtime_error for a type that the device does not multiply.
  Weight load_weight(const HostArray& matrix, WeightOrder order, DType dtype) {
    return load_weight(std::span(&matrix, 1), order, dtype);
  }

  /// The same for several matrices with the same inputs, which may be stored in different types: the outputs
  /// of the first part, then those of the next. With the order kInputFirst, there is only one part.
  virtual Weight load_weight(std::span<const HostArray> parts, WeightOrder order, DType dtype) = 0;

  // ── Operations ──

  /// The type in which `linear` takes its operand x fastest, with that many rows and weights of type
  /// `weights`. Data that only a product reads, such as the results of attention and of GELU, is best stored
  /// in it from the start.
  virtual DType operand_dtype([[maybe_unused]] std::int64_t rows, [[maybe_unused]] DType weights) const {
    return DType::kFloat32;
  }

  /// Whether keys and values of that type, with heads of that size, are written and read here.
  virtual bool keeps(DType dtype, std::int64_t /*head_size*/) const {
    return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  }

  /// Does the operations that `work` calls. A device that needs time to start each of them may record them,
  /// and launch them together when a later `work` calls the same ones on the same tensors. Their contents may
  /// differ. So `work` must call only operations, without copies from or to the host, and may be called more
  /// than once to record them. A device learns what `work` calls from calling it, unless there is a `key`:
  /// calls with equal keys are of the same operations on the same tensors.
  virtual void run(const std::function<void()>& work, std::span<const std::uint64_t> /*key*/ = {}) { work(); }

  /// out[t] = token_table[tokens[t]] + position_table[position of t], for every token t of the batch.
  /// token_table is [width, vocab_size] as a Weight (it may be the output layer as well), position_table
  /// [n_positions, width], or empty for none, out [n_tokens, width].
  virtual void embedding(const Batch& batch, const Weight& token_table, const Tensor& position_table,
                         Tensor& out) = 0;

  /// out[r] = norm(x[r]) for each row. x and out [rows, width].
  virtual void normalize(const Tensor& x, const Norm& norm, Tensor& out) = 0;

  /// out[r] += norm(x[r]): the residual connection of a family that normalizes what it adds. The norm is not
  /// kNone; shapes as above.
  virtual void add_normalized(const Tensor& x, const Norm& norm, Tensor& out) = 0;

  /// out = epilogue(norm(x) W + b). x [rows, in_features], out [rows, out_features] (fewer with a gate: see
  /// kGateColumns), bias [out_features] or an empty tensor for none. If W has 16 bits, the product may
  /// take norm(x) rounded to its type as well. If it has fewer, norm(x) may be rounded in groups of a row
  /// like the groups of an output, or both W and norm(x) may be taken in 16 bits. The sums of floats are
  /// always float32. Besides float32, x may have any type that operand_dtype names for W, unless it has a
  /// norm, and out too, unless it is added to. The norm is part of the product because a GPU, for a few rows,
  /// takes longer to launch a separate kernel for it than to compute it.
  virtual void linear(const Tensor& x, const Norm& norm, const Weight& weight, const Tensor& bias,
                      Epilogue epilogue, Tensor& out) = 0;

  /// The products of several matrices with a few rows each, as of the experts of a mixture: with W of
  /// weights[i], rows firsts[i] to firsts[i + 1] - 1 of out = epilogue(x W). firsts has one number more than
  /// weights, all of one shape and type; x and out are as in `linear`, bit for bit.
  virtual void linear_groups(const Tensor& x, std::span<const std::int64_t> firsts,
                             std::span<const Weight* const> weights, Epilogue epilogue, Tensor& out) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::int64_t count = firsts[i + 1] - firsts[i];
      Tensor rows = out.rows(firsts[i], count);
      if (count > 0) linear(x.rows(firsts[i], count), {}, *weights[i], {}, epilogue, rows);
    }
  }

  /// Whether it computes groups of this many rows in total faster than `linear` does one by one.
  virtual bool joins_groups(std::int64_t /*rows*/) const { return false; }

  /// out[r] += Σ_k scales[k] (x[r] · down[k]) up[k] over the ranks k of the adapter of row r, which is
  /// adapters[r] or kNoAdapter (Hu et al. 2021, section 4.1). Rows of different adapters need no order. x
  /// [rows, in] has any type that operand_dtype names, adapters [rows] int32, out [rows, out] float32.
  virtual void add_low_rank(const Tensor& x, const Tensor& adapters, const LowRank& change, Tensor& out) = 0;

  /// out = epilogue(x), as `linear` finishes its products: for those that something is added to first. x
  /// [rows, width] is float32. out has the shape and the type that `linear` allows for that epilogue, but not
  /// kAdd.
  virtual void activate(const Tensor& x, Epilogue epilogue, Tensor& out) = 0;

  /// [q | k | v] = norm(x) W + b in one product as in `linear`, where W is [width, 3 width], with as many key
  /// heads as query heads. The bias, [3 width], is never empty. The queries go to `queries` [n_tokens,
  /// width]; keys and values go straight to the row and position of each token, rounded to their dtype. No
  /// two tokens may have the same position in a row.
  virtual void query_key_value(const Batch& batch, const Tensor& x, const Norm& norm, const Weight& weight,
                               const Tensor& bias, Tensor& queries, KeysValues& keys_values) = 0;

  /// The same from an existing product, [q | k | v] of each token: projected [n_tokens, (n_head + 2
  /// n_kv_head) head_size]. Queries and keys pass through `rule` on the way, in float32. queries [n_tokens,
  /// n_head head_size].
  virtual void split_heads(const Batch& batch, const Tensor& projected, const HeadRule& rule, Tensor& queries,
                           KeysValues& keys_values) = 0;

  /// Causal attention (Vaswani et al. 2017, section 3.2): the query at position p of a sequence sees the keys
  /// 0 .. p of its row. With a window of w it sees only p - w + 1 .. p (Beltagy et al. 2020, section 3.1);
  /// the keys before that weigh nothing, and most of them are not read. For each head, out = softmax(q Kᵀ /
  /// sqrt(head_size)) V. Only a few rows of scores exist at a time, never a matrix of all positions by all
  /// positions. Neighbouring query heads share a head of keys and values: head h uses h / (n_head /
  /// n_kv_head) (Ainslie et al. 2023, section 2.2: grouped queries). queries and out [n_tokens, n_head
  /// head_size]; out may have any type that operand_dtype names. If keys and values have 16 bits, queries and
  /// softmax may be rounded to their type before they are multiplied; the sums are float32 in any case. In
  /// int8 the integers are multiplied as they are: a scale multiplies the score of its key, and the weight of
  /// its values. The result does not depend, to the bit, on where the blocks are or on whether there are any,
  /// as long as a row has room for the same number of positions.
  virtual void attention(const Batch& batch, const Tensor& queries, const KeysValues& keys_values,
                         Tensor& out) = 0;

  /// Names the weights of the two products that follow the next attention. A GPU fetches them into its cache
  /// meanwhile, on multiprocessors that have no keys to read. Changes no result; other devices ignore it.
  virtual void announce(const Weight& /*first*/, const Weight& /*second*/) {}

  /// to[r, h, to_first + p] = from[r, h, from_first + p] for p < count, in every row r and head h. Copies
  /// keys or values from one cache to another or, inside one, towards its start (then from_first >=
  /// to_first). Both are [n_rows, n_kv_head, capacity, head_size], of the same dtype; their capacities may
  /// differ. In int8 the scales go with their positions.
  void copy_positions(const Tensor& from, std::int64_t from_first, std::int64_t count, Tensor& to,
                      std::int64_t to_first) {
    do_copy_positions(from, from_first, count, to, to_first);
    if (copy_watcher_) copy_watcher_(from, from_first, count, to, to_first);
  }

  /// Gets the arguments of copy_positions.
  using CopyWatcher = std::function<void(const Tensor& from, std::int64_t from_first, std::int64_t count,
                                         const Tensor& to, std::int64_t to_first)>;

  /// Calls the watcher for each copy_positions from now on, which costs no copy.
  void watch_copies(CopyWatcher watcher) { copy_watcher_ = std::move(watcher); }

  /// out[i] = x[indices[i]]. x [rows, width], indices [n] int32, out [n, width] of the type of x, which may
  /// be any.
  virtual void gather_rows(const Tensor& x, const Tensor& indices, Tensor& out) = 0;

  /// A router's choice in a mixture of experts (Shazeer et al. 2017, section 2.1). Each row of `scores`
  /// [rows, n_experts] chooses as many experts as `chosen` [rows, k] int32 has columns: those with the
  /// largest scores, the largest first and of equal ones the lowest index. k is at most n_experts. shares[r,
  /// j] = exp(scores[r, chosen[r, j]]) / Σ exp(scores[r, e]), the sum over all experts e, or over the chosen
  /// ones (Jiang et al. 2024, section 2.1). shares [rows, k]. A NaN is chosen last, and no index is twice in
  /// a row; the shares of numbers that are not finite may be NaN.
  virtual void choose_experts(const Tensor& scores, RouterSoftmax softmax, Tensor& chosen,
                              Tensor& shares) = 0;

  /// The sum of what a row's k experts made of it, each by its share (Shazeer et al. 2017, equation 1).
  /// out[r] = Σ_j shares[r, j] · x[places[r, j]], added in the order of j. With kAdd instead of kStore, that
  /// is added to out[r]. x [n, width], places [rows, k] int32, shares [rows, k], out [rows, width]; all but
  /// places are float32.
  virtual void combine_rows(const Tensor& x, const Tensor& places, const Tensor& shares, Epilogue epilogue,
                            Tensor& out) = 0;

  /// out[r] = the index of the largest number of x[r], the lowest one among equals, or -1 if any number of
  /// x[r] is infinite or NaN. x [rows, width] float32, out [rows] int32. A batch of one token for each row
  /// becomes the next one of these sequences: its tokens are those of `out`, with 0 for -1, and each start is
  /// larger by 1.
  virtual void argmax(const Tensor& x, Tensor& out, Batch* batch) = 0;
  void argmax(const Tensor& x, Tensor& out) { argmax(x, out, nullptr); }

  /// Part of a row of logits, from which a token can be drawn. out[r] = [the indices of the k largest numbers
  /// of x[r] in falling order, the lowest one of equals first | these k numbers | log Σ_i exp(x[r, i])]. All
  /// but the indices are the bits of float32 numbers. If any number of x[r] is infinite or NaN, the first
  /// index is -1, and the rest means nothing. x [rows, width] float32, out [rows, 2 k + 1] int32, k from 1 to
  /// the width and to kMostLargest.
  virtual void k_largest(const Tensor& x, std::int64_t k, Tensor& out) = 0;

  /// Whether k_largest takes less time than to bring rows of that width to the host and to search them there.
  virtual bool is_worth_searching(std::int64_t /*k*/, std::int64_t /*width*/) const { return true; }

  // ── Several devices ──

  /// Whether devices of this kind exchange tensors without the host. If not, the host does it for them.
  virtual bool can_join() const { return false; }

  /// Links this device to those of all other ranks, for the calls below. Every rank makes the same calls in
  /// the same order, but for send and receive, and outside of run(). A device that is linked stays so. Throws
  /// std::runtime_error where the link fails, and std::logic_error unless can_join().
  virtual void join(const DeviceRank& /*own*/) { throw_alone(); }

  /// Whether `join` has linked it.
  virtual bool is_linked() const { return false; }

  /// Each number of x, which is float32, becomes its sum over all ranks, added in the order of the ranks:
  /// every rank gets the same bits, in every run. Returns how many bytes came from other ranks.
  virtual std::size_t all_reduce(Tensor& /*x*/) { throw_alone(); }

  /// The columns of all ranks side by side: all[r, k · count + c] = own[r, c] of rank k, for each c < count,
  /// up to the width of `all`. own [rows, count or more], all [rows, count · ranks or fewer], both float32.
  /// Returns how many bytes came from other ranks.
  virtual std::size_t all_gather(const Tensor& /*own*/, std::int64_t /*count*/, Tensor& /*all*/) {
    throw_alone();
  }

  /// Sends x, which is float32, to another rank, and returns at once. Operations that follow may wait until
  /// it has gone there.
  virtual void send(const Tensor& /*x*/, int /*to*/) { throw_alone(); }

  /// x, which is float32, becomes what rank `from`, another one, sends: as many numbers. Returns how many
  /// bytes came.
  virtual std::size_t receive(Tensor& /*x*/, int /*from*/) { throw_alone(); }

  /// Call when a pass has failed on one rank. Its operations may wait for the others for ever, and so would a
  /// linked device that releases memory or its link. From now on it keeps both until the process ends.
  /// Devices that are not linked ignore it.
  virtual void abandon() {}

 protected:
  /// Memory for intermediate results of an operation, kept from call to call. Growing it loses its contents.
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

/// The index of the largest value on the host, the lowest one among equals. `values` must not be empty or
/// hold NaN.
int argmax(std::span<const float> values);

/// Whether no value on the host is infinite or NaN.
bool all_finite(std::span<const float> values);

/// x becomes exp(x) / Σ exp(x) on the host, a distribution; -infinity becomes 0. Returns false, and leaves x
/// undefined, if there is none: all values are -infinity, or one is +infinity or NaN.
bool softmax_in_place(std::span<float> x);

/// The CPU, with that many threads. The SIMD instructions are chosen when the program starts.
std::unique_ptr<Device> make_cpu_device(int threads);

/// The first NVIDIA GPU. Throws std::runtime_error with the reason if none is usable: this program was built
/// without CUDA, there is no driver or no GPU, or it is too old. Where the GPU can, a kernel begins before
/// the previous one has ended, unless `may_overlap` is false. That changes no bit of a result.
std::unique_ptr<Device> make_cuda_device(bool may_overlap = true);

/// The number of processors that this process may use.
int available_processors();

}  // namespace staircase
