#include "bench/gpu.h"

#include <algorithm>

#include "bench/timing.h"
#include "bench/work.h"
#include "common/base/error.h"
#include "common/decoding/static_kv_cache.h"
#include "common/model/model.h"
#include "common/program/tuning_file.h"

namespace staircase::bench {
namespace {

using nlohmann::json;

constexpr int kDecodePrompt = 16;

/// Decodes one sequence, or several together, with one cache.
class Decoding {
 public:
  Decoding(Model& model, int batch, int new_tokens)
      : model_(model),
        cache_(model, batch),
        prompt_(some_tokens(kDecodePrompt, model.config().vocab_size)),
        next_(static_cast<std::size_t>(batch)),
        steps_(new_tokens - 1) {}

  /// Returns the seconds for one step of greedy decoding.
  double seconds_per_step() {
    set_lengths(cache_, static_cast<int>(next_.size()), 0);
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
    const Logits logits = model_.lazy_logits(sequences, cache_);
    const std::size_t width = logits.size() / next_.size();
    for (std::size_t s = 0; s < next_.size(); ++s) next_[s] = logits.subspan(s * width, width).argmax();
  }

  Model& model_;
  StaticKvCache cache_;
  std::vector<int> prompt_, next_;
  int steps_;
};

}  // namespace

json measure_gpu(const GpuOptions& options) {
  const std::shared_ptr<Device> device = make_cuda_device();
  use_tuning(*device);
  const ModelConfig config = read_config(options.model);
  if (options.prompt_tokens > config.n_positions || kDecodePrompt + options.new_tokens > config.n_positions) {
    throw Error("the context of {} has {} positions, too few for a prompt of {} or {} new tokens",
                options.model.filename().string(), config.n_positions, options.prompt_tokens,
                options.new_tokens);
  }
  if (options.new_tokens < 2) throw Error("at least 2 new tokens are needed to measure decoding");
  // The limits are measured before the model is loaded, so their matrices and its weights need not fit into
  // memory together.
  const double copy = copy_gb_per_s(*device, options.copy_bytes);
  const std::int64_t size = options.product_size;
  const DType operand = device->operand_dtype(size, options.dtype);
  const double cublas = cublas_tflop_per_s(*device, operand, size, {{"large", size, size}}, /*copies=*/1);
  const double cublas_block =
      cublas_tflop_per_s(*device, operand, options.prompt_tokens, block_products(config), config.n_layer);
  Model model = Model::load(options.model, device, options.dtype);

  const auto samples = [&](const auto& sample) {
    // The first call lets memory grow and libraries load. The second call then uses other memory, so the
    // device treats it as new work (kernels/cuda/run.cu). The third call records a graph, and all later calls
    // launch this graph.
    constexpr int kWarmUps = 3;
    for (int i = 0; i < kWarmUps; ++i) sample();
    Samples seconds;
    for (int i = 0; i < options.rounds; ++i) seconds.add(sample());
    return seconds.median();
  };
  const std::vector<int> prompt = some_tokens(options.prompt_tokens, config.vocab_size);
  const double first_token = samples([&] { return seconds_of([&] { model.next_logits(prompt); }); });
  const double prefill_tflop = prefill_operations(config, options.prompt_tokens) / 1e12;
  const double prefill = prefill_tflop / first_token;

  json decode = json::array();
  for (const int batch : options.batches) {
    Decoding decoding(model, batch, options.new_tokens);
    const double seconds = samples([&] { return decoding.seconds_per_step(); });
    // Every step reads the weights once for all sequences, and each sequence's own keys and values.
    const double context = kDecodePrompt + options.new_tokens / 2.0;
    const double gb_per_s =
        decode_bytes(config, model.weight_bytes(), model.kv_dtype(), context, batch) / seconds / 1e9;
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
          {"cublas_size", options.product_size},
          {"cublas_tflop_per_s", cublas},
          {"cublas_block_tflop_per_s", cublas_block},
          {"prompt_tokens", options.prompt_tokens},
          {"ttft_ms", 1e3 * first_token},
          {"prefill_tflop", prefill_tflop},
          {"prefill_tflop_per_s", prefill},
          {"prefill_percent_of_cublas", 100.0 * prefill / cublas},
          {"prefill_percent_of_cublas_block", 100.0 * prefill / cublas_block},
          {"decode", decode}};
}

}  // namespace staircase::bench
