// The generation loop: one token after another.
#pragma once

#include <vector>

#include "common/base/error.h"
#include "common/decoding/results.h"
#include "common/model/model.h"
#include "row.h"

namespace staircase {

/// How a run of the program continues its prompts.
struct RunOptions {
  int num_return_sequences = 1;
  bool use_cache = true;
  int max_batch_size = 32;
};

inline void add_options(OptionSink& sink, RunOptions& run) {
  sink.add("--num-return-sequences", &run.num_return_sequences, "number of continuations to sample",
           at_least(1));
  sink.add("--use-cache", &run.use_cache, "keep the keys and values of earlier tokens");
  sink.add("--max-batch-size", &run.max_batch_size, "maximum number of sequences in the batch", at_least(1));
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

/// Continues all prompts, as many at a time as the batch has slots; when a text ends, the next one takes its
/// slot. `on_token` gets each token as it is chosen. Each text has its own random numbers, so no text depends
/// on the others. The cache has a row for each slot.
inline std::vector<Generation> generate(Model& model, const Prompts& prompts, const TextOptions& options,
                                        int slots, KvCache& cache, const OnRowToken& on_token) {
  const std::size_t vocab_size = model.config().vocab_size;  // its product with a row may overflow an int
  const EndTokens& ends = model.config().end_tokens;
  std::vector<Generation> texts;
  for (const std::vector<int>& prompt : prompts) texts.push_back({prompt, FinishReason::kLength});
  if (options.stopping.max_new_tokens == 0) return texts;
  std::vector<Row> rows;
  const auto move_row = [&](int from, int to) { cache.copy_row(from, to); };
  int waiting = 0;  // the first text without a slot
  while (waiting < std::ssize(texts) || !rows.empty()) {
    for (; waiting < std::ssize(texts) && std::ssize(rows) < slots; ++waiting) {
      cache.truncate(static_cast<int>(rows.size()), 0);
      const unsigned seed = options.sampling.seed + static_cast<unsigned>(waiting);
      rows.push_back({waiting, prompts[waiting], options, std::mt19937(seed)});
    }
    std::vector<std::span<const int>> fed;
    for (int r = 0; r < std::ssize(rows); ++r)
      fed.push_back(tokens_to_feed(rows[r].tokens, model.config().n_positions, cache, r, options.overflow));
    const std::span<const float> batch = model.next_logits(fed, cache);  // [rows.size(), vocab_size]
    for (int r = 0; r < std::ssize(rows); ++r)
      on_token(rows[r].number, take_token(rows[r], batch.subspan(r * vocab_size, vocab_size), ends));
    remove_finished(rows, move_row, [&](Row& row) {
      texts[row.number] = {std::move(row.tokens), *row.finished};
    });
  }
  return texts;
}

}  // namespace staircase
