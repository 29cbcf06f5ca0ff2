// The whole model: the names and shapes of its weights, and the way from tokens to logits.
#include "common/model/gpt2.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/model/safetensors.h"

namespace staircase {
namespace {

/// The largest number of a type that weights are kept in. Those of few bits come back from scales of 16, or
/// are widened to 16 for a product.
float largest_of(DType dtype) {
  if (dtype == DType::kFloat32) return std::numeric_limits<float>::max();
  return dtype == DType::kFloat16 ? 65504.0f : 0x1.FEp127f;
}

/// Whether no number is further from zero than the one with the bits `largest`; infinity and NaN are. `Bits`
/// is a number's, unsigned.
template <typename Bits>
bool all_within(std::span<const std::byte> bytes, Bits largest) {
  Bits broken = 0;  // of the numbers' own type, and without a branch: the compiler takes several at a time
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, &bytes[i], sizeof bits);
    constexpr Bits kSize = std::numeric_limits<Bits>::max() / 2;  // all but the sign
    broken |= static_cast<Bits>((bits & kSize) > largest);
  }
  return broken == 0;
}

bool all_within(const StoredTensor& tensor, float largest) {
  const auto bits = std::bit_cast<std::uint32_t>(largest);
  if (tensor.dtype == "F32") return all_within<std::uint32_t>(tensor.bytes, bits);
  // A bfloat16 is the upper half, and all types hold the largest float16.
  return all_within<std::uint16_t>(tensor.bytes, tensor.dtype == "F16" ? 0x7bff : bits >> 16);
}

/// Finds weights by name, checks what the file says about them and counts their bytes.
class WeightReader {
 public:
  WeightReader(const std::filesystem::path& file, Device& device, DType dtype)
      : file_(file), safetensors_(file), device_(device), dtype_(dtype) {}

  Weight weight(const std::string& name, WeightOrder order, std::int64_t rows, std::int64_t columns) {
    const StoredTensor& stored = find(name, {rows, columns});
    const DType dtype = order == WeightOrder::kOutputFirst ? embedding_dtype(dtype_) : dtype_;
    const Weight weight = device_.load_weight(array(stored), order, dtype);
    check_numbers(name, stored, dtype_);  // the device's threads have brought it from the file
    safetensors_.release(stored);
    bytes_ += weight.packed.bytes();
    return weight;
  }

  Tensor table(const std::string& name, const std::vector<std::int64_t>& shape) {
    const StoredTensor& stored = find(name, shape);
    check_numbers(name, stored, DType::kFloat32);
    const Tensor tensor = device_.load(array(stored));
    bytes_ += tensor.bytes();
    return tensor;
  }

  bool has(const std::string& name) { return look_up(name) != nullptr; }

  /// Whether two tensors that are there are the same, byte for byte.
  bool same(const std::string& name, const std::string& other) {
    const StoredTensor &one = *look_up(name), &two = *look_up(other);
    return one.dtype == two.dtype && one.shape == two.shape && std::ranges::equal(one.bytes, two.bytes);
  }

  /// Warns of tensors that nobody has asked for. Masks, which older files have, say nothing new.
  void warn_of_unused() const {
    std::vector<std::string> unused;
    for (const auto& [name, stored] : safetensors_.tensors()) {
      const bool mask = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
      if (!mask && !asked_.contains(name)) unused.push_back(name);
    }
    if (unused.empty()) return;
    warn("{}: a GPT-2 of the shape in config.json has no place for {}{}; the text is made without",
         file_.string(), unused[0],
         unused.size() == 1 ? "" : fmt::format(" and {} more tensors", unused.size() - 1));
  }

  std::size_t bytes() const { return bytes_; }

 private:
  /// The tensor, with or without the prefix, or nullptr.
  const StoredTensor* look_up(const std::string& name) {
    for (const std::string& written : {name, "transformer." + name}) {
      asked_.insert(written);
      if (const StoredTensor* stored = safetensors_.find(written)) return stored;
    }
    return nullptr;
  }

  const StoredTensor& find(const std::string& name, const std::vector<std::int64_t>& shape) {
    const StoredTensor* stored = look_up(name);
    if (stored == nullptr) {
      throw Error("{} has no tensor {}, which a GPT-2 of this shape needs", file_.string(), name);
    }
    if (stored->shape != shape) {
      throw Error("{}: tensor {} has shape {}, but config.json asks for {}", file_.string(), name,
                  to_string(stored->shape), to_string(shape));
    }
    if (!kReadable.contains(stored->dtype)) {
      throw Error("{}: tensor {} is stored as {}; F32, F16 and BF16 can be read", file_.string(), name,
                  stored->dtype);
    }
    return *stored;
  }

  void check_numbers(const std::string& name, const StoredTensor& stored, DType dtype) const {
    const float largest = largest_of(dtype);
    if (all_within(stored, largest)) return;
    if (!all_within(stored, largest_of(DType::kFloat32))) {
      throw Error("{}: tensor {} has a value that is no finite number", file_.string(), name);
    }
    throw Error("{}: tensor {} has a value beyond ±{}, the most that weights may be in {}; float32 holds it",
                file_.string(), name, largest, to_string(dtype));
  }

  static HostArray array(const StoredTensor& stored) {
    return {stored.bytes.data(), kReadable.at(stored.dtype), stored.shape.size() == 2 ? stored.shape[0] : 1,
            stored.shape.back()};
  }

  inline static const std::map<std::string, DType> kReadable{
      {"F32", DType::kFloat32}, {"F16", DType::kFloat16}, {"BF16", DType::kBFloat16}};

  std::filesystem::path file_;
  Safetensors safetensors_;
  Device& device_;
  DType dtype_;
  std::set<std::string, std::less<>> asked_;
  std::size_t bytes_ = 0;
};

/// A tensor in `memory`, which grows when it is too small; what it held before may have been of another type.
/// There is room for float32 in any case, so that no model needs more memory on one processor than on
/// another.
Tensor sized(Device& device, DType dtype, Tensor& memory, std::vector<std::int64_t> shape) {
  if (memory.bytes() < bytes_of(DType::kFloat32, shape)) memory = device.allocate(DType::kFloat32, shape);
  return memory.viewed_as(dtype, std::move(shape));
}

}  // namespace

std::span<const DType> weight_dtypes() {
  static constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8,
                                      DType::kInt4};
  return kDTypes;
}

DType weight_dtype(std::string_view name) {
  for (const DType dtype : weight_dtypes()) {
    if (name == to_string(dtype)) return dtype;
  }
  throw UsageError("--dtype {}: weights are kept in float32, float16, bfloat16, int8 or int4", name);
}

Gpt2 Gpt2::load(const std::filesystem::path& folder, std::shared_ptr<Device> device, DType dtype) {
  Gpt2 model;
  model.folder_ = folder;
  model.config_ = read_config(folder);
  model.device_ = std::move(device);
  model.dtype_ = dtype;
  const auto& config = model.config_;
  const std::int64_t n_embd = config.n_embd, n_inner = config.n_inner;

  WeightReader reader(folder / "model.safetensors", *model.device_, dtype);
  const auto layer_norm = [&](const std::string& name) {
    return Norm{NormKind::kLayer, reader.table(name + ".weight", {n_embd}),
                reader.table(name + ".bias", {n_embd}), config.layer_norm_epsilon};
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    return Linear{reader.weight(name + ".weight", WeightOrder::kInputFirst, in, out),
                  reader.table(name + ".bias", {out})};
  };
  model.token_embedding_ = reader.weight("wte.weight", WeightOrder::kOutputFirst, config.vocab_size, n_embd);
  model.position_embedding_ = reader.table("wpe.weight", {config.n_positions, n_embd});
  for (int l = 0; l < config.n_layer; ++l) {
    const std::string block = fmt::format("h.{}.", l);
    model.blocks_.push_back({.ln_1 = layer_norm(block + "ln_1"),
                             .attention_input = linear(block + "attn.c_attn", n_embd, 3 * n_embd),
                             .attention_output = linear(block + "attn.c_proj", n_embd, n_embd),
                             .ln_2 = layer_norm(block + "ln_2"),
                             .mlp_input = linear(block + "mlp.c_fc", n_embd, n_inner),
                             .mlp_output = linear(block + "mlp.c_proj", n_inner, n_embd)});
  }
  model.ln_f_ = layer_norm("ln_f");
  // The two are tied in every published GPT-2, and a file may have a copy all the same.
  model.output_layer_ = model.token_embedding_;
  if (!config.tie_word_embeddings ||
      (reader.has("lm_head.weight") && !reader.same("lm_head.weight", "wte.weight"))) {
    model.output_layer_ =
        reader.weight("lm_head.weight", WeightOrder::kOutputFirst, config.vocab_size, n_embd);
  }
  for (const std::string& name : config.without_effect) {
    warn("{} has {}, which has no effect here", (folder / "config.json").string(), name);
  }
  reader.warn_of_unused();
  model.weight_bytes_ = reader.bytes();
  return model;
}

std::span<float> Gpt2::next_logits(std::span<const int> tokens) {
  return last_logits(tokens, 1);
}

std::span<float> Gpt2::next_logits(std::span<const int> tokens, KvCache& cache) {
  return last_logits(tokens, 1, &cache);
}

std::span<float> Gpt2::last_logits(std::span<const int> tokens, int count, KvCache* cache) {
  return forward({&tokens, 1}, count, cache);
}

std::span<float> Gpt2::next_logits(std::span<const std::span<const int>> sequences, KvCache* cache) {
  return forward(sequences, 1, cache);
}

std::span<float> Gpt2::forward(std::span<const std::span<const int>> sequences, int count, KvCache* cache) {
  const Packed packed = pack(sequences, count, cache);
  // Only now that every sequence is known to be good does the cache change.
  if (cache != nullptr) {
    int row = 0;
    for (const std::span<const int> sequence : sequences) {
      cache->append(row++, static_cast<int>(sequence.size()));
    }
  }
  if (attention_) attention_->begin(sequences, packed.starts);
  const std::span<float> logits = device_->to_host(run(upload(packed), cache), memory_.host_logits);
  check_finite(logits, cache);
  if (watcher_) {
    const auto attention = attention_ ? attention_->weights() : std::span<const AttentionWeights>();
    watcher_({sequences, packed.starts, count, logits, cache, attention});
  }
  return logits;
}

void Gpt2::watch(std::function<void(const ForwardPass&)> watcher, std::optional<AttentionHead> head) {
  watcher_ = std::move(watcher);
  attention_.reset();
  if (head) attention_.emplace(*head);
}

Gpt2::Packed Gpt2::pack(std::span<const std::span<const int>> sequences, int count,
                        const KvCache* cache) const {
  Packed packed;
  for (const std::span<const int> sequence : sequences) {
    const int start = cache == nullptr ? 0 : cache->length(static_cast<int>(packed.starts.size()));
    if (!sequence.empty()) check_input(sequence, start, count);
    packed.tokens.insert(packed.tokens.end(), sequence.begin(), sequence.end());
    const auto end = static_cast<std::int32_t>(packed.tokens.size());
    packed.offsets.push_back(end);
    packed.starts.push_back(start);
    for (int i = count; i > 0; --i) packed.wanted_rows.push_back(std::max(end - i, 0));
    packed.wants_all = packed.wants_all && std::ssize(sequence) == count;
    packed.longest = std::max<std::int64_t>(packed.longest, std::ssize(sequence));
  }
  if (packed.tokens.empty()) throw Error("the model needs at least one token to say what comes next");
  return packed;
}

void Gpt2::check_input(std::span<const int> tokens, int start, int count) const {
  if (count < 1 || count > static_cast<int>(tokens.size())) {
    throw Error("logits after the last {} of {} tokens were asked for", count, tokens.size());
  }
  if (start + static_cast<std::int64_t>(tokens.size()) > config_.n_positions) {
    throw Error("{} tokens do not fit into the model's context of {} positions", start + tokens.size(),
                config_.n_positions);
  }
  for (const int token : tokens) {
    if (token < 0 || token >= config_.vocab_size) {
      throw Error("token {} is not in the model's vocabulary of {} tokens", token, config_.vocab_size);
    }
  }
}

Gpt2::Input Gpt2::upload(const Packed& packed) {
  // All in one copy: a small one takes as long as a larger one.
  std::vector<std::int32_t> indices;
  for (const auto* part : {&packed.tokens, &packed.offsets, &packed.starts, &packed.wanted_rows}) {
    indices.insert(indices.end(), part->begin(), part->end());
  }
  Tensor uploaded =
      sized(*device_, DType::kInt32, memory_.indices, {static_cast<std::int64_t>(indices.size())});
  device_->copy_from_host(indices, uploaded);
  std::int64_t first = 0;
  const auto next = [&](const std::vector<std::int32_t>& part) {
    const auto size = static_cast<std::int64_t>(part.size());
    return uploaded.rows(std::exchange(first, first + size), size);
  };
  // Braces: the parts are taken in this order.
  return {{next(packed.tokens), next(packed.offsets), next(packed.starts)},
          next(packed.wanted_rows),
          packed.longest,
          packed.wants_all};
}

Tensor Gpt2::run(const Input& input, KvCache* cache) {
  Tensor logits = matrix(memory_.logits, input.wanted_rows.size(), config_.vocab_size);
  const auto work = [&] { compute(input, cache, logits); };
  if (observer_ || attention_) {
    work();  // they copy intermediate results to the host
  } else {
    device_->run(work);
  }
  return logits;
}

void Gpt2::compute(const Input& input, KvCache* cache, Tensor& logits) {
  Device& device = *device_;
  const Batch& batch = input.batch;
  const std::int64_t n_tokens = batch.n_tokens(), n_wanted = logits.dim(0), n_embd = config_.n_embd;
  Tensor x = matrix(memory_.x, n_tokens, n_embd);  // the residual stream
  Tensor queries = matrix(memory_.queries, n_tokens, n_embd);
  Tensor attended = operand(memory_.attended, n_tokens, n_embd);
  Tensor hidden = operand(memory_.hidden, n_tokens, config_.n_inner);
  KeysValues keys_values;
  if (cache == nullptr) {  // the layers take turns in one pair of buffers
    const std::vector<std::int64_t> shape{batch.n_sequences(), config_.n_head, input.longest,
                                          config_.head_size()};
    const DType dtype = device.operand_dtype(n_tokens, dtype_);
    keys_values = {sized(device, dtype, memory_.keys, shape), sized(device, dtype, memory_.values, shape)};
  }

  device.embedding(batch, token_embedding_, position_embedding_, x);
  show("embeddings", x);
  for (int l = 0; l < config_.n_layer; ++l) {
    const Block& block = blocks_[static_cast<std::size_t>(l)];
    if (cache != nullptr) keys_values = cache->layer(l);

    device.query_key_value(batch, x, block.ln_1, block.attention_input.weight, block.attention_input.bias,
                           queries, keys_values);
    if (attention_ && attention_->layer() == l) attention_->look(device, queries, keys_values);
    device.attention(batch, queries, keys_values, attended);
    if (l + 1 == config_.n_layer && !input.wants_all) {
      // No later layer asks for the keys and values of the other rows: from here on only the wanted ones
      // matter.
      const auto keep_wanted = [&](Tensor& tensor, Tensor& memory) {
        Tensor kept = matrix(memory, n_wanted, n_embd, tensor.dtype());
        device.gather_rows(tensor, input.wanted_rows, kept);
        tensor = kept;
      };
      keep_wanted(x, memory_.wanted_x);
      keep_wanted(attended, memory_.wanted_attended);
      hidden = operand(memory_.hidden, n_wanted, config_.n_inner);
    }
    linear(attended, {}, block.attention_output, Epilogue::kAdd, x);
    linear(x, block.ln_2, block.mlp_input, Epilogue::kGelu, hidden);
    linear(hidden, {}, block.mlp_output, Epilogue::kAdd, x);
    if (observer_) show(fmt::format("block.{}", l), x);
  }
  Tensor normed = matrix(memory_.normed, n_wanted, n_embd);
  device.normalize(x, ln_f_, normed);
  show("ln_f", normed);
  device.linear(normed, {}, output_layer_, Tensor(), Epilogue::kStore, logits);
}

void Gpt2::check_finite(std::span<const float> logits, const KvCache* cache) {
  const auto largest = std::bit_cast<std::uint32_t>(largest_of(DType::kFloat32));
  if (all_within<std::uint32_t>(std::as_bytes(logits), largest)) return;
  throw Error("the model computed a logit of {}, so no token can be chosen: {}",
              *std::find_if_not(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }),
              cache == nullptr ? "its weights are broken"
                               : "the cache has lost a position or holds one that was never filled, or the "
                                 "model's weights are broken");
}

std::size_t Gpt2::Memory::bytes() const {
  std::size_t sum = 0;
  for (const Tensor* tensor : {&indices, &x, &queries, &keys, &values, &attended, &hidden, &wanted_x,
                               &wanted_attended, &normed, &logits}) {
    sum += tensor->bytes();
  }
  return sum;
}

Tensor Gpt2::matrix(Tensor& memory, std::int64_t rows, std::int64_t columns, DType dtype) const {
  return sized(*device_, dtype, memory, {rows, columns});
}

Tensor Gpt2::operand(Tensor& memory, std::int64_t rows, std::int64_t columns) const {
  return matrix(memory, rows, columns, device_->operand_dtype(rows, dtype_));
}

void Gpt2::linear(const Tensor& x, const Norm& norm, const Linear& layer, Epilogue epilogue,
                  Tensor& out) const {
  device_->linear(x, norm, layer.weight, layer.bias, epilogue, out);
}

template <typename Model, typename Visit>
void Gpt2::visit_weights(Model& model, const Visit& visit) {
  visit("wte.weight", model.token_embedding_);
  for (std::size_t l = 0; l < model.blocks_.size(); ++l) {
    auto& block = model.blocks_[l];
    visit(fmt::format("h.{}.attn.c_attn.weight", l), block.attention_input.weight);
    visit(fmt::format("h.{}.attn.c_proj.weight", l), block.attention_output.weight);
    visit(fmt::format("h.{}.mlp.c_fc.weight", l), block.mlp_input.weight);
    visit(fmt::format("h.{}.mlp.c_proj.weight", l), block.mlp_output.weight);
  }
  if (!model.is_tied()) visit("lm_head.weight", model.output_layer_);
}

void Gpt2::for_each_matrix(const std::function<void(const WeightMatrix& matrix)>& look) const {
  visit_weights(*this, [&](const std::string& name, const Weight& weight) { look(unpacked(name, weight)); });
}

Gpt2 Gpt2::with_matrices(const std::function<std::vector<float>(const WeightMatrix& matrix)>& change) const {
  Gpt2 changed = load_as(dtype_);
  const bool tied = changed.is_tied();
  visit_weights(changed, [&](const std::string& name, Weight& weight) {
    const std::vector<float> values = change(unpacked(name, weight));
    weight = device_->load_weight({values.data(), DType::kFloat32, weight.out_features, weight.in_features},
                                  WeightOrder::kOutputFirst, weight.packed.dtype());
    if (tied) changed.output_layer_ = changed.token_embedding_;
  });
  return changed;
}

bool Gpt2::is_tied() const {
  return output_layer_.packed.data<void>() == token_embedding_.packed.data<void>();
}

WeightMatrix Gpt2::unpacked(std::string name, const Weight& weight) const {
  // The embeddings of all outputs, each a text of its own, at a position of -0: that changes no number, and 0
  // would make a 0 of -0.
  const std::int64_t outputs = weight.out_features, inputs = weight.in_features;
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(outputs + 1));
  std::iota(numbers.begin(), numbers.end(), 0);
  Tensor ascending = device_->allocate(DType::kInt32, {outputs + 1});
  Tensor starts = device_->allocate(DType::kInt32, {outputs});
  Tensor embedded = device_->allocate(DType::kFloat32, {outputs, inputs});
  device_->copy_from_host(numbers, ascending);
  device_->copy_from_host(std::vector<std::int32_t>(static_cast<std::size_t>(outputs)), starts);
  const std::vector<float> nothing(static_cast<std::size_t>(inputs), -0.0f);
  device_->embedding({ascending.rows(0, outputs), ascending, starts}, weight,
                     device_->load({nothing.data(), DType::kFloat32, 1, inputs}), embedded);
  std::vector<float> values(static_cast<std::size_t>(embedded.size()));
  device_->copy_to_host(embedded, values);
  return {std::move(name), static_cast<std::size_t>(inputs), std::move(values)};
}

void Gpt2::show(std::string_view name, const Tensor& values) const {
  if (!observer_) return;
  std::vector<float> host(static_cast<std::size_t>(values.size()));
  device_->copy_to_host(values, host);
  observer_(name, host);
}

}  // namespace staircase
