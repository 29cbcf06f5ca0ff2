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
  sink.require_at_least({"--max-batch-size", &run.max_batch_size},
                        {"--num-return-sequences", &run.num_return_sequences});
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

/// Continues all prompts, each `copies` times, with as many texts at a time as the batch has slots, at least
/// `copies`. When texts end, the next ones take their slots. `on_token` gets each token as it is chosen. Text
/// i belongs to prompt i / copies and has its own random numbers, so no text depends on the others. The cache
/// has a row for each slot.
inline std::vector<Generation> generate(Model& model, const Tokenizer& tokenizer, const Prompts& prompts,
                                        int copies, const RowOptions& options, int slots, KvCache& cache,
                                        const OnRowToken& on_token) {
  const std::size_t vocab_size = model.config().vocab_size;  // its product with a row may overflow an int
  const EndTokens& ends = model.config().end_tokens;
  std::vector<Generation> texts(prompts.size() * copies);
  const auto new_row = [&](int number) {
    const unsigned seed = options.sampling.seed + static_cast<unsigned>(number);
    return Row{number, prompts[number / copies], options, std::mt19937(seed),
               StopFilter(options.stop, tokenizer)};
  };
  for (int i = 0; i < std::ssize(texts); ++i) texts[i] = {prompts[i / copies], FinishReason::kLength};
  if (options.stopping.max_new_tokens == 0) return texts;
  std::vector<Row> rows;
  const auto move_row = [&](int from, int to) { cache.copy_row(from, to); };
  int waiting = 0;  // the first text without a slot
  while (waiting < std::ssize(texts) || !rows.empty()) {
    int taken = static_cast<int>(rows.size());  // slots; the copies of a prompt join after its prefill
    for (; waiting < std::ssize(texts) && taken <= slots - copies; waiting += copies, taken += copies) {
      cache.truncate(static_cast<int>(rows.size()), 0);
      rows.push_back(new_row(waiting));
    }
    std::vector<std::span<const int>> fed;
    for (int r = 0; r < std::ssize(rows); ++r)
      fed.push_back(tokens_to_feed(rows[r].tokens, model.config().n_positions, cache, r, options.overflow));
    const std::span<const float> batch = model.next_logits(fed, cache);  // [rows.size(), vocab_size]
    for (int r = 0, fed_rows = static_cast<int>(fed.size()); r < fed_rows; ++r) {
      const std::span<const float> logits = batch.subspan(r * vocab_size, vocab_size);
      const bool first = rows[r].new_tokens == 0;
      on_token(rows[r].number, take_token(rows[r], logits, ends));
      for (int copy = 1; first && copy < copies; ++copy) {
        cache.copy_row(r, static_cast<int>(rows.size()));
        rows.push_back(new_row(rows[r].number + copy));
        on_token(rows.back().number, take_token(rows.back(), logits, ends));
      }
    }
    remove_finished(rows, move_row, [&](Row& row) {
      texts[row.number] = {std::move(row.tokens), *row.finished};
    });
  }
  return texts;
}

}  // namespace staircase
