#include "bench/gpu.h"

#include <algorithm>

#include "bench/timing.h"
#include "bench/work.h"
#include "common/error.h"
#include "common/gpt2.h"

namespace staircase::bench {
namespace {

using nlohmann::json;

constexpr int kDecodePrompt = 16;

/// Keys and values of some sequences, allocated once.
class BatchCache final : public KvCache {
 public:
  BatchCache(Device& device, const Gpt2Config& config, int rows, int capacity)
      : lengths_(static_cast<std::size_t>(rows)) {
    for (int l = 0; l < config.n_layer; ++l) {
      const std::vector<std::int64_t> shape{rows, config.n_head, capacity, config.head_size()};
      layers_.push_back({device.allocate(DType::kFloat32, shape), device.allocate(DType::kFloat32, shape)});
    }
  }

  int length(int row) const override { return lengths_[static_cast<std::size_t>(row)]; }
  void append(int row, int count) override { lengths_[static_cast<std::size_t>(row)] += count; }
  KeysValues layer(int index) override { return layers_[static_cast<std::size_t>(index)]; }
  void truncate(int row, int length) override { lengths_[static_cast<std::size_t>(row)] = length; }
  void truncate_all(int length) { std::fill(lengths_.begin(), lengths_.end(), length); }
  std::size_t bytes() const override {
    std::size_t sum = 0;
    for (const KeysValues& layer : layers_) sum += layer.keys.bytes() + layer.values.bytes();
    return sum;
  }

 private:
  std::vector<KeysValues> layers_;
  std::vector<int> lengths_;
};

/// Any tokens do: no product is faster or slower for them.
std::vector<int> some_tokens(int count, int vocab_size) {
  std::vector<int> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 7919 + 13) % vocab_size);
  return tokens;
}

/// The new tokens of one sequence, or of each of several, with their cache.
class Decoding {
 public:
  Decoding(Gpt2& model, int batch, int new_tokens)
      : model_(model),
        cache_(model.device(), model.config(), batch, kDecodePrompt + new_tokens),
        prompt_(some_tokens(kDecodePrompt, model.config().vocab_size)),
        next_(static_cast<std::size_t>(batch)),
        steps_(new_tokens - 1) {}

  /// Seconds for one step of greedy decoding.
  double seconds_per_step() {
    cache_.truncate_all(0);
    forward(std::vector<std::span<const int>>(next_.size(), prompt_));
    std::vector<std::span<const int>> newest;
    for (const int& token : next_) newest.emplace_back(&token, 1);
    return seconds_of([&] {
             for (int i = 0; i < steps_; ++i) forward(newest);
           }) /
           steps_;
  }

 private:
  void forward(const std::vector<std::span<const int>>& sequences) {
    const std::span<const float> logits = model_.next_logits(sequences, &cache_);
    const std::size_t width = logits.size() / next_.size();
    for (std::size_t s = 0; s < next_.size(); ++s) next_[s] = argmax(logits.subspan(s * width, width));
  }

  Gpt2& model_;
  BatchCache cache_;
  std::vector<int> prompt_, next_;
  int steps_;
};

}  // namespace

json measure_gpu(const GpuOptions& options) {
  const std::shared_ptr<Device> device = make_cuda_device();
  Gpt2 model = Gpt2::load(options.model, device, options.dtype);
  const Gpt2Config& config = model.config();
  if (options.prompt_tokens > config.n_positions || kDecodePrompt + options.new_tokens > config.n_positions) {
    throw Error("the context of {} has {} positions, too few for a prompt of {} or {} new tokens",
                options.model.filename().string(), config.n_positions, options.prompt_tokens,
                options.new_tokens);
  }
  if (options.new_tokens < 2) throw Error("at least 2 new tokens are needed to measure decoding");
  const double copy = copy_gb_per_s(options.copy_bytes);

  const auto samples = [&](const auto& sample) {
    sample();  // warms up: memory grows, libraries load, graphs are made
    Samples seconds;
    for (int i = 0; i < options.rounds; ++i) seconds.add(sample());
    return seconds.median();
  };
  const std::vector<int> prompt = some_tokens(options.prompt_tokens, config.vocab_size);
  const double first_token = samples([&] { return seconds_of([&] { model.next_logits(prompt); }); });

  json decode = json::array();
  for (const int batch : options.batches) {
    Decoding decoding(model, batch, options.new_tokens);
    const double seconds = samples([&] { return decoding.seconds_per_step(); });
    // The weights once for all sequences, and each sequence's own keys and values.
    const double context = kDecodePrompt + options.new_tokens / 2.0;
    const double weights = decode_bytes(config, model.weight_bytes(), -1.0);
    const double cache = decode_bytes(config, model.weight_bytes(), context) - weights;
    const double gb_per_s = (weights + batch * cache) / seconds / 1e9;
    decode.push_back({{"batch", batch},
                      {"tokens_per_s", batch / seconds},
                      {"ms_per_step", 1e3 * seconds},
                      {"gb_per_s", gb_per_s},
                      {"percent_of_copy", 100.0 * gb_per_s / copy}});
  }
  return {{"device", device->description()},
          {"dtype", to_string(options.dtype)},
          {"weight_bytes", model.weight_bytes()},
          {"copy_gb_per_s", copy},
          {"prompt_tokens", options.prompt_tokens},
          {"ttft_ms", 1e3 * first_token},
          {"decode", decode}};
}

}  // namespace staircase::bench
