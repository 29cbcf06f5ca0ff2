#include "bench/changes.h"

#include <cmath>
#include <list>

#include "bench/timing.h"
#include "bench/work.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/decoding/memory_estimate.h"
#include "common/decoding/probabilities.h"
#include "common/decoding/static_kv_cache.h"
#include "common/model/model.h"

namespace staircase::bench {
namespace {

using nlohmann::json;
using Texts = std::vector<std::vector<int>>;

struct Change {
  const char* model;
  const char* text;
};

constexpr Change kChanges[] = {
    {"tales-gpt2-1m", "GPT-2"},
    {"tales-neox-1m", "+ rotary positions"},
    {"tales-olmo-1m", "+ gated MLP, no biases"},
    {"tales-llama-1m", "+ RMS norm"},
    {"tales-gqa-1m", "+ grouped queries"},
    {"tales-qwen-1m", "+ QK norm"},
    {"tales-window-1m", "+ QK norm, windows"},
    {"tales-moe-1m", "+ QK norm, experts"},
};
constexpr int kPrompt = 512;
constexpr int kContext = 480, kDecodeSteps = 16;

Texts read_texts(const std::filesystem::path& file) {
  return parse_json_object(read_file(file), file.string()).at("texts").get<Texts>();
}

/// The loss in nats per token: the mean of -log p over all tokens except the first of each text.
double loss(Model& model, const Texts& texts) {
  const std::size_t vocab_size = model.config().vocab_size;
  double sum = 0.0;
  std::size_t count = 0;
  for (const std::vector<int>& text : texts) {
    const std::span<const float> logits = model.last_logits(text, static_cast<int>(text.size()));
    for (std::size_t t = 0; t + 1 < text.size(); ++t, ++count) {
      const std::vector<float> p = softmax(logits.subspan(t * vocab_size, vocab_size));
      sum -= std::log(p[text[t + 1]]);
    }
  }
  return sum / count;
}

/// One of the models, with its measurements.
struct Candidate {
  Candidate(const Change& change, const ChangesOptions& options)
      : what(change.text),
        model(Model::load(options.models / change.model, make_cpu_device(options.threads))),
        cache(model) {
    const std::vector<int> tokens = some_tokens(kPrompt, model.config().vocab_size);
    prefill.sample = [this, tokens] { return seconds_per_call(0.02, [&] { model.next_logits(tokens); }); };
    decode.sample = [this, tokens] {
      cache.truncate(0, 0);
      model.next_logits(std::span(tokens).first(kContext), cache);
      int token = 0;
      const auto steps = [&] {
        for (int i = 0; i < kDecodeSteps; ++i) token = argmax(model.next_logits({&token, 1}, cache));
      };
      return seconds_of(steps) / kDecodeSteps;
    };
  }

  const char* what;
  Model model;
  StaticKvCache cache;
  Task prefill, decode;
};

}  // namespace

json measure_changes(const ChangesOptions& options) {
  const Texts texts = read_texts(options.texts);
  std::list<Candidate> candidates;  // a list never moves its elements, and tasks point to them
  for (const Change& change : kChanges) candidates.emplace_back(change, options);
  std::vector<Task*> tasks;
  for (Candidate& one : candidates) tasks.insert(tasks.end(), {&one.prefill, &one.decode});
  measure_in_rounds(tasks, options.rounds);

  json result = json::array();
  fmt::print("{:<24}{:>12}{:>16}{:>16}{:>14}{:>12}\n", "", "parameters", "cached numbers", "nats per token",
             "prefill 512", "decode");
  fmt::print("{:<24}{:>12}{:>16}{:>16}{:>14}{:>12}\n", "", "", "per token", "unseen tales", "ms", "ms");
  for (Candidate& one : candidates) {
    const ModelConfig& config = one.model.config();
    const std::size_t parameters = weight_bytes(config, DType::kFloat32) / sizeof(float);
    const std::size_t cached = cache_bytes(config, DType::kFloat32, 1) / sizeof(float);
    const json row{{"change", one.what},
                   {"parameters", parameters},
                   {"cached_numbers", cached},
                   {"nats_per_token", loss(one.model, texts)},
                   {"prefill_ms", 1e3 * one.prefill.seconds.median()},
                   {"decode_ms", 1e3 * one.decode.seconds.median()}};
    fmt::print("{:<24}{:>12}{:>16}{:>16.3f}{:>14.2f}{:>12.3f}\n", one.what, parameters, cached,
               row["nats_per_token"].get<double>(), row["prefill_ms"].get<double>(),
               row["decode_ms"].get<double>());
    result.push_back(row);
  }
  return result;
}

}  // namespace staircase::bench
