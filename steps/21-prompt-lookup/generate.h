// The generation loop: one token after another.
#pragma once

#include <algorithm>
#include <vector>

#include "common/base/error.h"
#include "common/decoding/results.h"
#include "common/model/model.h"
#include "text_options.h"

namespace staircase {

/// How a run of the program continues its prompts.
struct RunOptions {
  int num_return_sequences = 1;
  bool use_cache = true;
};

inline void add_options(OptionSink& sink, RunOptions& run) {
  sink.add("--num-return-sequences", &run.num_return_sequences, "number of continuations to sample",
           at_least(1));
  sink.add("--use-cache", &run.use_cache, "keep the keys and values of earlier tokens");
}

/// Rejects several greedy texts of one prompt, which would all be the same.
inline void refuse_equal_texts(OptionSink& sink, const RunOptions& run, const TextOptions& options) {
  sink.rule([&run, &options] {
    if (run.num_return_sequences > 1 && !options.sampling.do_sample) {
      throw UsageError(
          "--num-return-sequences {} needs --do-sample: without it all of them would be the same",
          run.num_return_sequences);
    }
  });
}

/// A text that is growing.
struct Row {
  std::vector<int> tokens;
  std::mt19937 generator;
  std::optional<FinishReason> finished = {};
};

/// Continues all prompts together, each with one chosen token after another; `on_token` gets each one as it
/// is chosen. Each text has its own random numbers, so no text depends on the others. The cache has a row for
/// each text, which is cleared first.
inline std::vector<Generation> generate(Model& model, const Prompts& prompts, const TextOptions& options,
                                        KvCache& cache, const OnRowToken& on_token) {
  const std::size_t vocab_size = model.config().vocab_size;  // its product with a row may overflow an int
  std::vector<Row> rows;
  for (const std::vector<int>& prompt : prompts) {
    cache.truncate(static_cast<int>(rows.size()), 0);
    rows.push_back({prompt, std::mt19937(options.sampling.seed + static_cast<unsigned>(rows.size()))});
  }
  const auto grows = [](const Row& row) { return !row.finished; };
  for (int count = 1; count <= options.stopping.max_new_tokens && std::ranges::any_of(rows, grows); ++count) {
    std::vector<std::span<const int>> fed;
    for (int r = 0; r < std::ssize(rows); ++r)
      fed.push_back(tokens_to_feed(rows[r].tokens, model.config().n_positions, cache, r, options.overflow));
    const std::span<const float> batch = model.next_logits(fed, cache);  // [rows.size(), vocab_size]
    for (int r = 0; r < std::ssize(rows); ++r) {
      Row& row = rows[r];
      if (row.finished) continue;  // still computed with its batch; the result is ignored
      std::vector<float> logits = copy_of(batch.subspan(r * vocab_size, vocab_size));
      process(logits, row.tokens, options.sampling);
      const int next = choose(logits, options.sampling, row.generator);
      row.tokens.push_back(next);
      on_token(r, {next, likeliest(logits, options.sampling.show_candidates)});
      row.finished = finish_reason(next, count, model.config().end_tokens, options.stopping);
    }
  }
  std::vector<Generation> texts;
  for (Row& row : rows)
    texts.push_back({std::move(row.tokens), row.finished.value_or(FinishReason::kLength)});
  return texts;
}

}  // namespace staircase
