#include "common/model/model.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/model/adapter.h"
#include "common/model/checkpoint.h"
#include "common/model/family.h"
#include "common/model/fingerprint.h"
#include "common/model/share.h"

namespace staircase {
namespace {

void check_finite(std::span<const float> logits, const KvCache& cache, DType kept) {
  if (all_finite(logits)) return;
  std::string reason = cache.keeps() ? "the cache has lost a position or holds one that was never filled, or "
                                       "the model's weights are broken"
                                     : "its weights are broken";
  if (kept == DType::kFloat16) {  // weights with infinity are already rejected while loading
    reason = "a key or a value may be beyond ±65504, the largest float16; bfloat16 and float32 hold it";
  }
  throw Error("the model computed a logit of {}, so no token can be chosen: {}",
              *std::find_if_not(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }),
              reason);
}

/// Splits [rows, width] into [rows][width].
std::vector<std::vector<float>> rows_of(std::span<const float> numbers, std::size_t width) {
  std::vector<std::vector<float>> rows;
  for (; !numbers.empty(); numbers = numbers.subspan(width))
    rows.emplace_back(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(width));
  return rows;
}

/// A count of one for each sequence: logits only after its last token.
std::vector<int> one_each(std::size_t sequences) {
  return std::vector<int>(sequences, 1);
}

/// Whether each row of the cache has memory for one more position without an append. False for a ring, where
/// no row owns blocks: writing there could overwrite a position that a row still needs.
bool has_room(KvCache& cache, std::size_t rows, const ModelConfig& config) {
  const bool overwrites =
      cache.most_at_once() < std::numeric_limits<int>::max() && cache.row_blocks(0).empty();
  if (!cache.keeps() || overwrites) return false;
  for (int layer = 0; layer < config.n_layer; ++layer) {
    const KeysValues kept = cache.layer(layer);
    const std::int64_t size = kept.keys.dim(2);  // positions of a row or of a block
    for (int row = 0; row < static_cast<int>(rows); ++row) {
      const int length = cache.length(row);
      if (length >= config.n_positions) return false;
      if (kept.blocks.size() > 0 ? length % size == 0 : length >= size) return false;
    }
  }
  return true;
}

/// Lets the devices exchange data between ranks directly if all of them can. Otherwise the host exchanges it,
/// but only if ranks hold whole blocks: the results of a split matrix depend on the kind of device.
void join_devices(Device& device, Ranks& ranks, Split split) {
  const bool joins = device.can_join();
  const auto other = ranks.first_mismatch(joins ? 1 : 0);
  if (other && split == Split::kMatrices) {
    throw Error("rank {} uses a different kind of device than rank 0; run every rank with --device cpu",
                *other);
  }
  if (other || !joins) return;
  device.join({ranks.rank(), ranks.size(), [&](const std::string& text) { return ranks.broadcast(text); }});
}

/// Returns a new number that identifies the weights of one model, for the key of a pass.
std::uint64_t new_number() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
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

std::span<const DType> cache_dtypes() {
  static constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8,
                                      DType::kInt4};
  return kDTypes;
}

Model::Model() : memory_(std::make_unique<PassMemory>()) {}
Model::~Model() = default;

Model Model::load_like_this(const std::filesystem::path& path, DType dtype) const {
  Model model = load(path, device_, dtype, ranks_, split_);
  model.limit_context(config_.n_positions);
  if (config_.cache_dtype) model.use_cache_dtype(*config_.cache_dtype);
  return model;
}

Model Model::load_as(DType dtype) const {
  Model model = load_like_this(path_, dtype);
  model.fitted_vocabulary_ = fitted_vocabulary_;
  model.load_adapters(adapter_folders_);
  model.use_adapters(adapters_of_sequences_);
  return model;
}

void Model::use_cache_dtype(DType dtype) {
  if (!takes_heads(dtype, config_.head_size)) {
    throw UsageError("--cache-dtype {} needs a head size that is a multiple of {}, but {} has heads of {}",
                     to_string(dtype), head_multiple(dtype), path_.filename().string(), config_.head_size);
  }
  config_.cache_dtype = dtype;
}

Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

Model Model::load(const std::filesystem::path& path, std::shared_ptr<Device> device, DType dtype) {
  return load(path, std::move(device), dtype, nullptr, Split::kMatrices);
}

Model Model::load(const std::filesystem::path& path, std::shared_ptr<Device> device, DType dtype,
                  Ranks& ranks, Split split) {
  return load(path, std::move(device), dtype, ranks.size() > 1 ? &ranks : nullptr, split);
}

Model Model::load(const std::filesystem::path& path, std::shared_ptr<Device> device, DType dtype,
                  Ranks* ranks, Split split) {
  const Settings settings = read_settings(path);
  Model model;
  model.path_ = path;
  model.config_ = read_config(settings, path);
  model.device_ = std::move(device);
  model.dtype_ = dtype;
  model.ranks_ = ranks;
  model.split_ = split;
  const Family& family = *find_family(model.config_.family);
  Checkpoint checkpoint = Checkpoint::open(path);
  if (ranks != nullptr) {
    checkpoint.read_parts_only();
    if (const auto other = ranks->first_mismatch(fingerprint(path, checkpoint, dtype))) {
      throw Error("{}: rank {} has a different model from rank 0; all ranks need the same files and --dtype",
                  settings.file(), *other);
    }
    join_devices(*model.device_, *ranks, split);
  }
  const int rank = ranks != nullptr ? ranks->rank() : 0, size = ranks != nullptr ? ranks->size() : 1;
  model.share_ = std::make_unique<Share>(split == Split::kBlocks ? Share::of_blocks(model.config_, rank, size)
                                                                 : Share(model.config_, rank, size, dtype));
  model.config_ = model.share_->part_of(model.config_);
  WeightReader weights(std::move(checkpoint), *model.device_, dtype, std::string(family.prefix),
                       *model.share_);
  model.network_ = family.load(settings, model.config_, weights);
  weights.require_whole_files();
  for (const std::string& remark : model.config_.remarks) warn("{}: {}", settings.file(), remark);
  // A rank that holds only some blocks does not know which tensors the other ranks use.
  if (ranks == nullptr || split == Split::kMatrices) weights.warn_of_unused(family.buffers);
  model.weight_bytes_ = weights.bytes();
  model.number_ = new_number();
  return model;
}

void Model::load_adapters(std::span<const std::filesystem::path> folders) {
  if (folders.empty() && adapter_folders_.empty()) return;
  if (ranks_ != nullptr) throw Error("adapters cannot be split between ranks; run the model on one rank");
  std::vector<Adapter> adapters;
  for (const std::filesystem::path& folder : folders) {
    adapters.push_back(read_adapter(folder, *network_, find_family(config_.family)->prefix));
  }
  weight_bytes_ -= adapter_bytes_;
  adapter_bytes_ = set_adapters(*network_, *device_, adapters);
  weight_bytes_ += adapter_bytes_;
  adapter_folders_.assign(folders.begin(), folders.end());
  adapters_of_sequences_.clear();
  number_ = new_number();
}

void Model::use_adapters(std::vector<std::int32_t> of_sequences) {
  for (const std::int32_t adapter : of_sequences) {
    if (adapter != kNoAdapter && (adapter < 0 || adapter >= std::ssize(adapter_folders_))) {
      throw Error("adapter {} is not among the {} of the model", adapter, adapter_folders_.size());
    }
  }
  adapters_of_sequences_ = std::move(of_sequences);
}

std::int32_t Model::window(int layer) const {
  return config_.window(static_cast<int>(share_->blocks.first) + layer);
}

std::size_t Model::activation_bytes() const {
  return memory_->bytes();
}

std::span<const float> Model::next_logits(std::span<const int> tokens) {
  return last_logits(tokens, 1);
}

std::span<const float> Model::next_logits(std::span<const int> tokens, KvCache& cache) {
  return last_logits(tokens, 1, cache);
}

std::span<const float> Model::last_logits(std::span<const int> tokens, int count) {
  NoCache none;
  return last_logits(tokens, count, none);
}

std::span<const float> Model::last_logits(std::span<const int> tokens, int count, KvCache& cache) {
  const auto position = static_cast<std::size_t>(cache.slid(0) + cache.length(0));
  const std::span<const float> logits = forward({&tokens, 1}, {&count, 1}, cache, Copy::kAtOnce);
  if (!edit_) return logits;
  edited_logits_.assign(logits.begin(), logits.end());
  edit_(edited_logits_, {tokens, position});
  return edited_logits_;
}

std::vector<std::vector<float>> Model::hidden_states() {
  if (ranks_ != nullptr)
    throw Error("hidden states are not available for a model on several ranks; run it on one rank");
  if (!hidden_rows_) throw Error("hidden states are kept by next_logits and last_logits, not by lazy_logits");
  const auto width = static_cast<std::size_t>(config_.n_embd);
  std::vector<float> states(*hidden_rows_ * width);
  if (!states.empty()) device_->copy_to_host(memory_->normed, states);
  return rows_of(states, width);
}

std::vector<std::vector<float>> Model::output_logits(std::span<const std::vector<float>> states) {
  if (ranks_ != nullptr) throw Error("the output layer is split between ranks; run the model on one rank");
  const std::int64_t width = config_.n_embd, rows = std::ssize(states);
  std::vector<float> numbers;
  for (const std::vector<float>& state : states) {
    if (std::ssize(state) != width)
      throw Error("a hidden state has {} numbers, but those of this model have {}", state.size(), width);
    numbers.insert(numbers.end(), state.begin(), state.end());
  }
  if (rows == 0) return {};
  const Tensor x = device_->load({numbers.data(), DType::kFloat32, rows, width}).reshaped({rows, width});
  Tensor output = device_->allocate(DType::kFloat32, {rows, config_.vocab_size}), on_host;
  device_->linear(x, {}, network_->output_layer(), Tensor(), Epilogue::kStore, output);
  const std::span<const float> logits = device_->to_host(output, on_host);
  if (!all_finite(logits))
    throw Error("the output layer computed a logit that is not finite from these hidden states");
  const std::span<const float> all = fitted(logits);
  return rows_of(all, all.size() / states.size());
}

std::span<const float> Model::next_logits(std::span<const std::span<const int>> sequences) {
  NoCache none;
  return next_logits(sequences, none);
}

std::span<const float> Model::next_logits(std::span<const std::span<const int>> sequences, KvCache& cache) {
  return forward(sequences, one_each(sequences.size()), cache, Copy::kAtOnce);
}

Logits Model::lazy_logits(std::span<const std::span<const int>> sequences, KvCache& cache) {
  return lazy_logits(sequences, one_each(sequences.size()), cache);
}

Logits Model::lazy_logits(std::span<const std::span<const int>> sequences, std::span<const int> counts,
                          KvCache& cache) {
  return forward(sequences, counts, cache, Copy::kOnceRead);
}

Logits Model::forward(std::span<const std::span<const int>> sequences, std::span<const int> counts,
                      KvCache& cache, Copy copy) {
  const PackedTokens packed(sequences, counts, cache, config_,
                            fitted_vocabulary_.value_or(config_.vocab_size), adapters_of_sequences_);
  // Only after the checks above, since a rejected input must leave the cache unchanged.
  if (check_ && cache.keeps() && sequences.size() == 1 && std::ssize(packed.tokens) >= kPart + counts[0]) {
    const std::span<const int> part = sequences[0].first(kPart), rest = sequences[0].subspan(kPart);
    forward({&part, 1}, one_each(1), cache, copy);
    check_();
    return forward({&rest, 1}, counts, cache, copy);
  }
  if (packed.longest > cache.most_at_once()) return forward_in_parts(sequences, counts, cache, copy);
  try {
    return compute(sequences, counts, packed, cache, copy);
  } catch (...) {
    device_->abandon();
    // The cache has room for these tokens, but their keys and values are missing.
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      cache.truncate(static_cast<int>(s), packed.starts[s]);
    }
    throw;
  }
}

Logits Model::forward_in_parts(std::span<const std::span<const int>> sequences, std::span<const int> counts,
                               KvCache& cache, Copy copy) {
  const auto most = static_cast<std::size_t>(cache.most_at_once());
  const int count = std::ranges::max(counts);
  if (static_cast<std::size_t>(count) > most) {
    throw Error("logits after the last {} tokens were requested, but this cache takes {} tokens at once",
                count, most);
  }
  // The last pass feeds tokens of all sequences: `most` tokens of every longer one.
  std::vector<std::span<const int>> parts, rests(sequences.begin(), sequences.end());
  const auto is_long = [&](const std::span<const int> rest) { return rest.size() > most; };
  while (std::ranges::any_of(rests, is_long)) {
    parts.clear();
    for (std::span<const int>& rest : rests) {
      const std::size_t size = is_long(rest) ? std::min(most, rest.size() - most) : 0;
      parts.push_back(rest.first(size));
      rest = rest.subspan(size);
    }
    forward(parts, one_each(parts.size()), cache, copy);
  }
  return forward(rests, counts, cache, copy);
}

Logits Model::compute(std::span<const std::span<const int>> sequences, std::span<const int> counts,
                      const PackedTokens& packed, KvCache& cache, Copy copy) {
  unread_ = Tensor();
  read_ = {};
  read_rows_.clear();
  hidden_rows_ = 0;
  // The cache changes only now that every sequence is known to be valid.
  int row = 0;
  for (const std::span<const int> sequence : sequences) {
    if (cache.length(row) == 0) cache.begin_row(row);
    cache.append(row++, static_cast<int>(sequence.size()));
  }
  const std::size_t rows = packed.wanted_rows.size();
  const std::optional<NextPass> next = std::exchange(next_, {});
  const bool guessed =
      next && next->cache == &cache && next->tokens == packed.tokens && next->starts == packed.starts;
  // The device may have done other work since, for example on the same cache.
  const bool has_begun = guessed && next->started.found && next->given == device_->given();
  guessed_ = guessed && (has_begun || !next->started.found) ? guessed_ + 1 : 0;
  if (before_pass_) before_pass_({sequences, packed.starts, counts, {}, cache, {}});
  if (attention_) attention_->begin(sequences, packed.starts);
  if (ranks_ != nullptr && split_ == Split::kBlocks && !run_) {
    throw Error(
        "each rank has only some blocks of the model, but no pass was set that runs through all ranks");
  }
  const bool lazy = copy == Copy::kOnceRead;
  if (lazy) hidden_rows_.reset();
  const std::size_t asked = std::exchange(asked_, 0);
  const std::vector<bool> wanted = lazy ? std::exchange(wanted_, {}) : std::vector<bool>();
  const bool at_once = !wanted.empty() && 2 * std::ranges::count(wanted, true) >= std::ssize(wanted);
  const bool stay = lazy && !at_once && !after_pass_ && !fitted_vocabulary_;
  const std::int64_t k = stay ? largest_to_find(asked) : 0;
  const bool is_greedy = stay && k == 0 && packed.one_each() && may_run_ahead();
  const Started started =
      is_greedy && has_begun ? next->started : start(packed, cache, PassInput::kFromHost, stay, k);
  if (stay) {
    Started after;
    if (is_greedy && guessed_ >= kSureAfter && has_room(cache, packed.starts.size(), config_)) {
      after = start_next(packed.starts.size(), cache);
    }
    const auto found = started.found();
    bool finite = true;
    for (auto row = found; !row.empty(); row = row.subspan(2 * static_cast<std::size_t>(k) + 1)) {
      finite = finite && row[0] >= 0;
    }
    if (finite) {
      unread_ = started.logits;
      if (is_greedy) {
        next_ = {&cache, {found.begin(), found.end()}, packed.starts, device_->given(), after};
        for (std::int32_t& position : next_->starts) ++position;
      }
      read_rows_.resize(rows);
      return Logits(found, static_cast<std::size_t>(k), static_cast<std::size_t>(config_.vocab_size),
                    use(rows));
    }
  }
  const std::span<const float> logits = device_->to_host(started.logits, memory_->host_logits);
  check_finite(logits, cache, kv_dtype());
  if (after_pass_) {
    const auto attention = attention_ ? attention_->weights() : std::span<const AttentionWeights>();
    after_pass_({sequences, packed.starts, counts, logits, cache, attention, chosen_experts_});
  }
  read_ = fitted(logits);
  if (!lazy) hidden_rows_ = rows;
  return lazy ? Logits(read_, use(rows)) : Logits(read_);
}

Model::Started Model::start(const PackedTokens& packed, KvCache& cache, PassInput input, bool stay,
                            std::int64_t k) {
  SingleRank alone;
  chosen_experts_.clear();
  Pass pass(*device_, dtype_, config_, {ranks_ ? *ranks_ : alone, *share_}, network_->rotaries(), packed,
            cache, *memory_,
            {on_stage_, attention_ ? &*attention_ : nullptr, after_pass_ ? &chosen_experts_ : nullptr},
            input);
  const auto run = [&] {
    pass.begin();
    if (run_) {
      run_(pass);
    } else {
      network_->run(pass);
    }
    if (!stay) return;
    Tensor found = pass.found(k);
    Batch batch = pass.batch();
    if (k > 0) return device_->k_largest(pass.logits(), k, found);
    device_->argmax(pass.logits(), found, packed.one_each() && device_->given() ? &batch : nullptr);
  };
  if (on_stage_ || attention_ || ranks_ || split_ == Split::kBlocks || config_.n_experts > 0) {
    run();  // the pass also does work outside the device
  } else {
    std::vector<std::uint64_t> key;
    if (!run_) {
      key = pass.key();
      key.push_back(number_);
      key.push_back(stay);
      key.push_back(static_cast<std::uint64_t>(k));
    }
    device_->run(run, key);
  }
  if (!stay) return {pass.logits(), {}};
  return {pass.logits(), device_->start_to_host(pass.found(k), memory_->host_found)};
}

bool Model::may_run_ahead() const {
  return device_->given() && !on_stage_ && !attention_ && !before_pass_ && !run_ && !ranks_ &&
         split_ != Split::kBlocks && config_.n_experts == 0 && adapter_folders_.empty();
}

// The logits of the previous pass may still be read, and its found tokens are on their way to the host. So
// this pass writes both to other memory.
Model::Started Model::start_next(std::size_t rows, KvCache& cache) {
  std::swap(memory_->logits, memory_->other_logits);
  std::swap(memory_->host_found, memory_->other_host_found);
  const int unknown = 0;
  const std::vector<std::span<const int>> sequences(rows, {&unknown, 1});
  const PackedTokens packed(sequences, one_each(rows), cache, config_, config_.vocab_size);
  return start(packed, cache, PassInput::kOnDevice, true, 0);
}

std::int64_t Model::largest_to_find(std::size_t asked) const {
  // Rounded up, so that different numbers of requested logits share one graph.
  constexpr std::size_t kLeast = 64;
  if (asked == 0) return 0;
  const std::int64_t vocab_size = config_.vocab_size;
  const std::int64_t k =
      std::min({static_cast<std::int64_t>(std::bit_ceil(std::max(asked, kLeast))), kMostLargest, vocab_size});
  return device_->is_worth_searching(k, vocab_size) ? k : 0;
}

LogitsUse Model::use(std::size_t rows) {
  wanted_.resize(rows);
  const auto read = [this, rows](std::size_t first, std::size_t count, bool expected) {
    const std::size_t width =
        (read_.empty() ? static_cast<std::size_t>(unread_.size()) : read_.size()) / rows;
    for (std::size_t row = first / width; expected && row * width < first + count; ++row) wanted_[row] = true;
    return this->read(first, count);
  };
  return {read, [this](std::size_t count) { asked_ = std::max(asked_, count); }};
}

std::span<const float> Model::read(std::size_t first, std::size_t count) {
  const auto width = static_cast<std::size_t>(config_.vocab_size);
  if (read_.empty() && count == width && unread_.dim(0) > 1) {
    const std::size_t row = first / width;
    std::vector<Tensor>& memory = memory_->host_rows;
    memory.resize(std::max(memory.size(), row + 1));
    if (read_rows_[row].empty()) {
      read_rows_[row] = device_->to_host(unread_.rows(static_cast<std::int64_t>(row), 1), memory[row]);
    }
    return read_rows_[row];
  }
  if (read_.empty()) read_ = device_->to_host(unread_, memory_->host_logits);
  return read_.subspan(first, count);
}

std::span<const float> Model::fitted(std::span<const float> logits) {
  const auto size = static_cast<std::size_t>(config_.vocab_size),
             wanted = static_cast<std::size_t>(fitted_vocabulary_.value_or(config_.vocab_size));
  if (size == wanted) return logits;
  fitted_logits_.assign(logits.size() / size * wanted, -std::numeric_limits<float>::infinity());
  for (std::span<float> to = fitted_logits_; !to.empty();
       to = to.subspan(wanted), logits = logits.subspan(size)) {
    std::ranges::copy(logits.first(std::min(size, wanted)), to.begin());
  }
  return fitted_logits_;
}

void Model::after_pass(std::function<void(const ForwardPass&)> after, std::optional<AttentionHead> head) {
  after_pass_ = std::move(after);
  attention_.reset();
  if (head) attention_.emplace(*head);
}

}  // namespace staircase
