// Measures what smaller weights cost in quality (how far probabilities move) and gain in memory and speed.
#pragma once

#include <cmath>

#include "common/base/message.h"
#include "common/measure/measurement.h"
#include "common/model/weight_matrices.h"
#include "generate.h"
#include "quantize.h"
#include "static_kv_cache.h"

namespace staircase {

struct BenchmarkOptions {
  std::string folder = {};  ///< folder for the results; empty: no benchmark
};

inline void add_options(OptionSink& sink, BenchmarkOptions& options) {
  sink.add("--benchmark", Path{&options.folder},
           "measure all data types on the prompt and write the "
           "results to this folder");
}

struct Quality {
  double perplexity, divergence;  ///< the mean of KL(exact ‖ model) after each token, in nats
};

/// Measures how well a model predicts a text, and how close it is to the exact model. The text is cut into
/// windows as long as the context; the first token of each has no probability.
inline Quality quality(Model& model, Model& exact, std::span<const int> text) {
  const std::size_t context = model.config().n_positions, vocab_size = model.config().vocab_size;
  double surprise = 0.0, divergence = 0.0, count = 0.0;
  for (std::size_t first = 0; first + 1 < text.size(); first += context) {
    const std::span<const int> window = text.subspan(first, std::min(context, text.size() - first));
    const std::span<const float> want = exact.last_logits(window, static_cast<int>(window.size()));
    const std::span<const float> got = model.last_logits(window, static_cast<int>(window.size()));
    for (std::size_t i = 0; i + 1 < window.size(); ++i, ++count) {  // row i predicts token i + 1
      const std::vector<float> q = softmax(got.subspan(i * vocab_size, vocab_size));
      surprise -= std::log(std::max(q[window[i + 1]], 1e-30f));
      divergence += kl_divergence(softmax(want.subspan(i * vocab_size, vocab_size)), q);
    }
  }
  return {std::exp(surprise / count), divergence / count};
}

struct Variant {
  std::string name;
  Model model;
  std::size_t saved = 0;  ///< bytes that this form saves where it is not simulated in float32
};

/// The types that the device multiplies; then weights rounded to 8 bits and converted back to float32, where
/// 32, 64, 128 or all inputs of an output share a scale.
inline std::vector<Variant> variants(const Model& exact) {
  std::vector<Variant> found;
  for (const DType dtype : weight_dtypes()) {
    try {
      found.push_back({std::string(to_string(dtype)), exact.load_as(dtype)});
    } catch (const std::runtime_error& error) {
      warn("{} is left out: {}", to_string(dtype), error.what());
    }
  }
  for (const std::size_t size : {32, 64, 128, 0}) {
    std::size_t saved = 0;
    Model model = with_matrices(exact, [&](const WeightMatrix& matrix) {
      const auto groups = quantize(matrix.values, matrix.inputs, size > 0 ? size : matrix.inputs);
      for (const Int8Group& group : groups) saved += group.values.size() * sizeof(float) - group.bytes();
      return dequantize(groups);
    });
    found.push_back(
        {size > 0 ? fmt::format("rounded by {}", size) : "rounded by output", std::move(model), saved});
  }
  return found;
}

/// Compares all forms of the weights with float32 on a text. Writes quality.csv, .json and .svg.
inline void benchmark_quality(const Model& model, std::span<const int> text, TextOptions options,
                              const std::string& folder) {
  if (text.size() < 2) throw UsageError("--benchmark needs a --prompt of two tokens or more");
  make_folder(folder);
  Model exact = model.load_as(DType::kFloat32);
  std::vector<Variant> ways = variants(exact);
  options.stopping.ignore_eos = true;  // the same number of tokens everywhere
  const auto rates = take_turns(ways.size(), 5, [&](std::size_t way, bool) {
    StaticKvCache cache(ways[way].model);
    std::mt19937 generator(options.sampling.seed);
    const auto start = Clock::now();
    generate(ways[way].model, {text[0]}, options, cache, generator, [](const Token&) {});
    return options.stopping.max_new_tokens / std::chrono::duration<double>(Clock::now() - start).count();
  });
  Table table({"weights", "MiB", "perplexity", "change %", "KL mnats", "tokens/s", "speed-up"});
  Plot plot{"Quality against size", "MiB of weights", "KL divergence from float32, 1/1000 nats"};
  const double perplexity = quality(exact, exact, text).perplexity;
  for (std::size_t way = 0; way < ways.size(); ++way) {
    auto& [name, rounded, saved] = ways[way];
    const Quality found = quality(rounded, exact, text);
    const double mebibytes = static_cast<double>(rounded.weight_bytes() - saved) / (1 << 20);
    const double change = 100 * (found.perplexity / perplexity - 1), divergence = 1000 * found.divergence;
    std::vector<Table::Cell> row{name, mebibytes, found.perplexity, change, divergence};
    row.insert(row.end(), {spread(rates[way]).median, speedup(rates[way], rates[0]).median});
    if (saved > 0) row[5] = row[6] = "–";  // float32's
    table.add(row);
    plot.series.push_back({name, {{mebibytes, divergence}}});
  }
  write_results(folder, "quality", table, plot);
}

}  // namespace staircase
