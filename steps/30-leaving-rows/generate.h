// The generation loop: one token after another.
#pragma once

#include <vector>

#include "common/base/error.h"
#include "common/decoding/results.h"
#include "common/model/model.h"
#include "row.h"
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

/// Continues all prompts together, each with one chosen token after another; `on_token` gets each one as it
/// is chosen. Each text has its own random numbers, so no text depends on the others. The cache has a row for
/// each text, which is cleared first.
inline std::vector<Generation> generate(Model& model, const Prompts& prompts, const TextOptions& options,
                                        KvCache& cache, const OnRowToken& on_token) {
  const std::size_t vocab_size = model.config().vocab_size;  // its product with a row may overflow an int
  std::vector<Generation> texts;
  std::vector<Row> rows;
  for (const std::vector<int>& prompt : prompts) {
    cache.truncate(static_cast<int>(rows.size()), 0);
    const int number = static_cast<int>(rows.size());
    texts.push_back({prompt, FinishReason::kLength});
    rows.push_back({prompt, std::mt19937(options.sampling.seed + static_cast<unsigned>(number)), number});
  }
  const auto move_row = [&](int from, int to) { cache.copy_row(from, to); };
  for (int count = 1; count <= options.stopping.max_new_tokens && !rows.empty(); ++count) {
    std::vector<std::span<const int>> fed;
    for (int r = 0; r < std::ssize(rows); ++r)
      fed.push_back(tokens_to_feed(rows[r].tokens, model.config().n_positions, cache, r, options.overflow));
    const std::span<const float> batch = model.next_logits(fed, cache);  // [rows.size(), vocab_size]
    for (int r = 0; r < std::ssize(rows); ++r) {
      Row& row = rows[r];
      std::vector<float> logits = copy_of(batch.subspan(r * vocab_size, vocab_size));
      process(logits, row.tokens, options.sampling);
      const int next = choose(logits, options.sampling, row.generator);
      row.tokens.push_back(next);
      on_token(row.number, {next, likeliest(logits, options.sampling.show_candidates)});
      row.finished = finish_reason(next, count, model.config().end_tokens, options.stopping);
    }
    remove_finished(rows, move_row, [&](Row& row) {
      texts[row.number] = {std::move(row.tokens), *row.finished};
    });
  }
  return texts;
}

}  // namespace staircase
