#include "common/model/pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/error.h"

namespace staircase {
namespace {

/// A tensor in `memory`, which grows if it is too small; it may have held another type before. It always has
/// room for float32, so a model needs the same memory on every processor.
Tensor sized(Device& device, DType dtype, Tensor& memory, const Shape& shape) {
  if (memory.bytes() < bytes_of(DType::kFloat32, shape)) memory = device.allocate(DType::kFloat32, shape);
  return memory.viewed_as(dtype, shape);
}

void check_input(std::span<const int> tokens, int start, int count, const ModelConfig& config,
                 int vocabulary) {
  if (count < 1 || count > static_cast<int>(tokens.size())) {
    throw Error("logits after the last {} of {} tokens were requested", count, tokens.size());
  }
  if (start + static_cast<std::int64_t>(tokens.size()) > config.n_positions) {
    throw Error("{} tokens do not fit into the model's context of {} positions", start + tokens.size(),
                config.n_positions);
  }
  for (const int token : tokens) {
    if (token < 0 || token >= vocabulary) {
      throw Error("token {} is not in the model's vocabulary of {} tokens", token, vocabulary);
    }
  }
}

/// The rotations of all new tokens under each rotary in turn, [rotaries * n_tokens, size].
std::vector<float> rotations_of(const PackedTokens& packed, std::span<const Rotary> rotaries) {
  const auto width = static_cast<std::size_t>(rotaries[0].size());
  std::vector<float> all(rotaries.size() * packed.tokens.size() * width);
  std::span<float> rotations(all);
  for (const Rotary& rotary : rotaries) {
    for (std::size_t s = 0; s < packed.starts.size(); ++s) {
      const std::int32_t first = packed.offsets[s];
      for (std::int32_t t = first; t < packed.offsets[s + 1]; ++t) {
        rotary.rotation(packed.positions[s] + t - first,
                        rotations.subspan(static_cast<std::size_t>(t) * width, width));
      }
    }
    rotations = rotations.subspan(packed.tokens.size() * width);
  }
  return all;
}

/// The keys and values without the rows before `first`.
KeysValues rows_of(KeysValues all, std::int64_t first) {
  const auto rest = [&](const Tensor& rows) { return rows.rows(first, rows.dim(0) - first); };
  if (first == 0) return all;
  if (all.blocks.size() > 0) return {all.keys, all.values, rest(all.blocks)};
  return {rest(all.keys), rest(all.values)};
}

}  // namespace

std::array<const Tensor*, 23> PassMemory::on_device() const {
  return {&indices,       &rotations,       &x,
          &projected,     &queries,         &keys,
          &values,        &attended,        &hidden,
          &wanted_x,      &wanted_attended, &normed,
          &logits,        &own_logits,      &found,
          &router_scores, &chosen,          &shares,
          &expert_rows,   &expert_inputs,   &expert_outputs,
          &other_logits,  &adapted};
}

std::size_t PassMemory::bytes() const {
  std::size_t sum = 0;
  for (const Tensor* tensor : on_device()) sum += tensor->bytes();
  return sum;
}

PackedTokens::PackedTokens(std::span<const std::span<const int>> sequences, std::span<const int> counts,
                           const KvCache& cache, const ModelConfig& config, int vocabulary,
                           std::span<const std::int32_t> of_sequences) {
  for (const std::span<const int> sequence : sequences) {
    const int row = static_cast<int>(starts.size());
    const int count = counts[starts.size()];
    const int start = cache.length(row);
    const int slid = cache.slid(row);
    if (!sequence.empty()) check_input(sequence, start, count, config, vocabulary);
    for (const int token : sequence) tokens.push_back(std::min(token, config.vocab_size - 1));
    add_sequence(std::ssize(sequence), count, start, start + slid);
  }
  if (tokens.empty()) throw Error("the model needs at least one token to predict the next one");
  if (of_sequences.empty()) return;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    adapters.push_back(of_sequences[std::min(s, of_sequences.size() - 1)]);
  }
  if (std::ranges::count(adapters, kNoAdapter) == std::ssize(adapters)) adapters.clear();
}

void PackedTokens::add_sequence(std::int64_t count, std::int64_t wanted, std::int32_t start,
                                std::int32_t position) {
  const auto end = static_cast<std::int32_t>(offsets.back() + count);
  offsets.push_back(end);
  starts.push_back(start);
  positions.push_back(position);
  for (std::int64_t i = wanted; i > 0; --i) {
    wanted_rows.push_back(std::max(end - static_cast<std::int32_t>(i), 0));
  }
  wanted_offsets.push_back(static_cast<std::int32_t>(wanted_rows.size()));
  wants_all = wants_all && count == wanted;
  longest = std::max(longest, count);
}

PackedTokens PackedTokens::part(Slice sequences) const {
  PackedTokens part;
  const std::size_t first = static_cast<std::size_t>(sequences.first),
                    end = first + static_cast<std::size_t>(sequences.count);
  part.tokens.assign(tokens.begin() + offsets[first], tokens.begin() + offsets[end]);
  for (std::size_t s = first; s < end; ++s) {
    part.add_sequence(offsets[s + 1] - offsets[s], wanted_offsets[s + 1] - wanted_offsets[s], starts[s],
                      positions[s]);
    if (!adapters.empty()) part.adapters.push_back(adapters[s]);
  }
  return part;
}

Pass::Pass(Device& device, DType dtype, const ModelConfig& config, const PassPart& part,
           std::span<const Rotary> rotaries, const PackedTokens& packed, KvCache& cache, PassMemory& memory,
           PassWatchers watchers, PassInput input)
    : device_(device),
      dtype_(dtype),
      config_(config),
      part_(part),
      rotaries_(rotaries),
      packed_(packed),
      cache_(cache),
      memory_(memory),
      watchers_(watchers) {
  // Copies all indices at once: a small copy takes as long as a larger one.
  std::vector<std::int32_t> indices, adapters, wanted_adapters;
  for (std::size_t s = 0; s < packed.adapters.size(); ++s) {
    adapters.insert(adapters.end(), static_cast<std::size_t>(packed.offsets[s + 1] - packed.offsets[s]),
                    packed.adapters[s]);
    wanted_adapters.insert(wanted_adapters.end(),
                           static_cast<std::size_t>(packed.wanted_offsets[s + 1] - packed.wanted_offsets[s]),
                           packed.adapters[s]);
  }
  const std::vector<std::int32_t>* const lists[] = {&packed.tokens,      &packed.offsets, &packed.starts,
                                                    &packed.wanted_rows, &adapters,       &wanted_adapters};
  for (const auto* list : lists) {
    indices.insert(indices.end(), list->begin(), list->end());
  }
  for (std::int32_t& token : std::span(indices).first(packed.tokens.size())) token = part_.share.row(token);
  Tensor uploaded =
      sized(device_, DType::kInt32, memory_.indices, {static_cast<std::int64_t>(indices.size())});
  if (input == PassInput::kFromHost) device_.copy_from_host(indices, uploaded);
  std::int64_t first = 0;
  const auto next = [&](const std::vector<std::int32_t>& list) {
    const auto size = static_cast<std::int64_t>(list.size());
    return uploaded.rows(std::exchange(first, first + size), size);
  };
  // Braces evaluate the parts in this order.
  batch_ = {next(packed.tokens), next(packed.offsets), next(packed.starts)};
  wanted_rows_ = next(packed.wanted_rows);
  adapters_ = next(adapters);
  wanted_adapters_ = next(wanted_adapters);
  if (!rotaries.empty()) {
    rotations_ = matrix(memory_.rotations, std::ssize(rotaries) * batch_.n_tokens(), rotaries[0].size());
    device_.copy_from_host(rotations_of(packed, rotaries), rotations_);
  }
  logits_ = matrix(memory_.logits, wanted_rows_.size(), config_.vocab_size);
}

void Pass::run_part(Slice sequences, const std::function<void(Pass& part)>& run) const {
  const PackedTokens packed = packed_.part(sequences);
  const auto first = packed_.wanted_offsets[static_cast<std::size_t>(sequences.first)],
             end = packed_.wanted_offsets[static_cast<std::size_t>(sequences.first + sequences.count)];
  Tensor logits = logits_.rows(first, end - first);
  if (packed.tokens.empty()) {  // these logits mean nothing, but must be finite
    device_.copy_from_host(std::vector<float>(static_cast<std::size_t>(logits.size())), logits);
    return;
  }
  Pass part(device_, dtype_, config_, part_, rotaries_, packed, cache_, memory_, watchers_);
  part.first_row_ = first_row_ + sequences.first;
  part.logits_ = logits;
  run(part);
}

Tensor Pass::residual() const {
  return matrix(memory_.x, batch_.n_tokens(), config_.n_embd);
}

Tensor Pass::projected() const {
  return matrix(memory_.projected, batch_.n_tokens(), config_.query_width() + 2 * config_.key_width());
}

Tensor Pass::queries() const {
  return matrix(memory_.queries, batch_.n_tokens(), config_.query_width());
}

Tensor Pass::attended() const {
  return operand(memory_.attended, batch_.n_tokens(), config_.query_width());
}

Tensor Pass::added(const Tensor& x) const {
  return matrix(memory_.normed, x.dim(0), config_.n_embd);
}

Tensor Pass::hidden(const Tensor& x, std::int64_t width) const {
  return operand(memory_.hidden, x.dim(0), width);
}

Mixture Pass::mixture(const Tensor& x) const {
  const std::int64_t rows = x.dim(0), width = config_.n_embd, k = config_.experts_per_token;
  return {.normed = matrix(memory_.normed, rows, width),
          .scores = matrix(memory_.router_scores, rows, config_.n_experts),
          .chosen = matrix(memory_.chosen, rows, k, DType::kInt32),
          .shares = matrix(memory_.shares, rows, k),
          .inputs = matrix(memory_.expert_inputs, rows * k, width),
          .outputs = matrix(memory_.expert_outputs, rows * k, width)};
}

ExpertRows Pass::sort_by_expert(int layer, const Tensor& chosen) const {
  const std::span<const std::int32_t> experts = device_.ints_to_host(chosen, memory_.host_chosen);
  const auto count = static_cast<std::int64_t>(experts.size()), k = chosen.dim(1);
  if (watchers_.experts != nullptr) {
    watchers_.experts->push_back(
        {static_cast<int>(first_block()) + layer, static_cast<int>(k), {experts.begin(), experts.end()}});
  }
  ExpertRows sorted;
  sorted.firsts.resize(static_cast<std::size_t>(config_.n_experts) + 1);
  for (const std::int32_t expert : experts) ++sorted.firsts[static_cast<std::size_t>(expert) + 1];
  std::partial_sum(sorted.firsts.begin(), sorted.firsts.end(), sorted.firsts.begin());
  std::vector<std::int64_t> next = sorted.firsts;
  std::vector<std::int32_t> indices(static_cast<std::size_t>(2 * count));  // sources, then places
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t place = next[static_cast<std::size_t>(experts[static_cast<std::size_t>(i)])]++;
    indices[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(i / k);
    indices[static_cast<std::size_t>(count + i)] = static_cast<std::int32_t>(place);
  }
  Tensor uploaded = sized(device_, DType::kInt32, memory_.expert_rows, {2 * count});
  device_.copy_from_host(indices, uploaded);
  sorted.sources = uploaded.rows(0, count);
  sorted.places = uploaded.rows(count, count).reshaped({chosen.dim(0), k});
  return sorted;
}

KeysValues Pass::keys_values(int layer) const {
  const std::int32_t window = config_.window(static_cast<int>(first_block()) + layer);
  if (cache_.keeps()) {
    KeysValues kept = rows_of(cache_.layer(layer), first_row_);
    kept.window = window;
    return kept;
  }
  const Shape shape{batch_.n_sequences(), config_.n_kv_head, packed_.longest, config_.head_size};
  const DType dtype = device_.operand_dtype(batch_.n_tokens(), dtype_);
  return {
      sized(device_, dtype, memory_.keys, shape), sized(device_, dtype, memory_.values, shape), {}, window};
}

void Pass::linear(const Tensor& x, const Norm& norm, const Linear& layer, Epilogue epilogue,
                  Tensor& out) const {
  if (!adapts(layer)) return device_.linear(x, norm, layer.weight, layer.bias, epilogue, out);
  Tensor input = x, products = out;
  if (norm.kind != NormKind::kNone) {
    input = matrix(memory_.normed, x.dim(0), x.dim(1));
    device_.normalize(x, norm, input);
  }
  const bool adds = epilogue == Epilogue::kAdd, activates = !adds && epilogue != Epilogue::kStore;
  if (activates) products = matrix(memory_.adapted, x.dim(0), layer.weight.out_features);
  device_.linear(input, {}, layer.weight, layer.bias, adds ? epilogue : Epilogue::kStore, products);
  device_.add_low_rank(input, only_wanted_ ? wanted_adapters_ : adapters_, layer.adapters, products);
  if (activates) device_.activate(products, epilogue, out);
}

void Pass::query_key_value(const Tensor& x, const Norm& norm, const Linear& layer, Tensor& queries,
                           KeysValues& keys_values) const {
  if (!adapts(layer)) {
    return device_.query_key_value(batch_, x, norm, layer.weight, layer.bias, queries, keys_values);
  }
  Tensor products = projected();
  linear(x, norm, layer, Epilogue::kStore, products);
  device_.split_heads(batch_, products, {}, queries, keys_values);
}

bool Pass::adapts(const Linear& layer) const {
  return !packed_.adapters.empty() && layer.adapters.down.size() > 0;
}

void Pass::attend(int layer, const Tensor& queries, const KeysValues& keys_values, Tensor& x,
                  Tensor& attended) {
  if (watchers_.probe != nullptr && watchers_.probe->layer() == layer) {
    watchers_.probe->compute(device_, queries, keys_values);
  }
  device_.attention(batch_, queries, keys_values, attended);
  if (layer + 1 < config_.n_layer || !part_.share.has_last_block() || packed_.wants_all) return;
  only_wanted_ = true;
  const auto keep_wanted = [&](Tensor& tensor, Tensor& memory) {
    Tensor kept = matrix(memory, wanted_rows_.size(), tensor.dim(1), tensor.dtype());
    device_.gather_rows(tensor, wanted_rows_, kept);
    tensor = kept;
  };
  keep_wanted(x, memory_.wanted_x);
  keep_wanted(attended, memory_.wanted_attended);
}

void Pass::finish(const Tensor& x, const Norm& norm, const Weight& output_layer) const {
  if (!part_.share.has_last_block()) return;
  Tensor normed = matrix(memory_.normed, x.dim(0), config_.n_embd), logits = logits_;
  device_.normalize(x, norm, normed);
  show("ln_f", normed);
  if (!part_.share.whole) logits = matrix(memory_.own_logits, x.dim(0), part_.share.rows());
  device_.linear(normed, {}, output_layer, Tensor(), Epilogue::kStore, logits);
  if (!part_.share.whole) gather_logits(logits);
}

Tensor Pass::found(std::int64_t k) const {
  const std::int64_t rows = logits_.dim(0);
  return sized(device_, DType::kInt32, memory_.found, k > 0 ? Shape{rows, 2 * k + 1} : Shape{rows});
}

void Pass::all_reduce(Tensor& x) const {
  if (part_.share.whole) return;
  if (device_.is_linked()) {
    ranks().count_received(device_.all_reduce(x));
    return;
  }
  std::vector<float> numbers(static_cast<std::size_t>(x.size()));
  device_.copy_to_host(x, numbers);
  ranks().all_reduce(numbers);
  device_.copy_from_host(numbers, x);
}

void Pass::send(const Tensor& x, int to) const {
  ranks().check_other(to);
  if (device_.is_linked()) return device_.send(x, to);
  std::vector<float> numbers(static_cast<std::size_t>(x.size()));
  device_.copy_to_host(x, numbers);
  ranks().send(numbers, to);
}

void Pass::receive(Tensor& x, int from) const {
  ranks().check_other(from);
  if (device_.is_linked()) {
    ranks().count_received(device_.receive(x, from));
    return;
  }
  std::vector<float> numbers(static_cast<std::size_t>(x.size()));
  ranks().receive(numbers, from);
  device_.copy_from_host(numbers, x);
}

void Pass::gather_logits(const Tensor& own) const {
  Tensor logits = logits_;
  if (device_.is_linked()) {
    ranks().count_received(device_.all_gather(own, part_.share.tokens, logits));
    return;
  }
  const auto rows = static_cast<std::size_t>(own.dim(0)), width = static_cast<std::size_t>(own.dim(1)),
             tokens = static_cast<std::size_t>(part_.share.tokens),
             vocabulary = static_cast<std::size_t>(config_.vocab_size);
  std::vector<float> part(rows * width), parts(part.size() * static_cast<std::size_t>(ranks().size())),
      all(rows * vocabulary);
  device_.copy_to_host(own, part);
  ranks().all_gather(part, parts);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t rank = 0, first = 0; first < vocabulary; ++rank, first += tokens) {
      std::copy_n(parts.begin() + static_cast<std::ptrdiff_t>((rank * rows + row) * width),
                  std::min(tokens, vocabulary - first),
                  all.begin() + static_cast<std::ptrdiff_t>(row * vocabulary + first));
    }
  }
  device_.copy_from_host(all, logits);
}

void Pass::show(std::string_view name, const Tensor& values) const {
  if (!watchers_.on_stage) return;
  std::vector<float> host(static_cast<std::size_t>(values.size()));
  device_.copy_to_host(values, host);
  watchers_.on_stage(name, host);
}

std::vector<std::uint64_t> Pass::key() const {
  std::vector<std::uint64_t> key;
  key.reserve(32 + 16 * static_cast<std::size_t>(config_.n_layer));
  const auto add = [&](auto number) { key.push_back(static_cast<std::uint64_t>(number)); };
  const auto add_place = [&](const Tensor& tensor) {
    add(reinterpret_cast<std::uintptr_t>(tensor.data<void>()));
  };
  add(packed_.tokens.size());
  add(packed_.starts.size());
  add(packed_.wanted_rows.size());
  add(packed_.longest);
  add(packed_.wants_all);
  add(packed_.adapters.empty());
  for (const Tensor* tensor : memory_.on_device()) add_place(*tensor);
  for (int layer = 0; cache_.keeps() && layer < config_.n_layer; ++layer) {
    const KeysValues kept = cache_.layer(layer);
    for (const Tensor* tensor : {&kept.keys, &kept.values, &kept.blocks}) {
      add_place(*tensor);
      add(tensor->dtype());
      add(tensor->shape().size());
      for (const std::int64_t dim : tensor->shape()) add(dim);
    }
  }
  return key;
}

Tensor Pass::matrix(Tensor& memory, std::int64_t rows, std::int64_t columns, DType dtype) const {
  return sized(device_, dtype, memory, {rows, columns});
}

Tensor Pass::operand(Tensor& memory, std::int64_t rows, std::int64_t columns) const {
  return matrix(memory, rows, columns, device_.operand_dtype(rows, dtype_));
}

}  // namespace staircase
