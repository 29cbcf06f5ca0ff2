// Beam search (Lowerre 1976; for neural networks Sutskever et al. 2014, section 3.2): looks for the most
// likely text, not the most likely token.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/base/error.h"
#include "common/decoding/beam_memory.h"
#include "common/model/model.h"
#include "generate.h"
#include "row.h"

namespace staircase {

/// When the search stops after num_beams texts are finished.
enum class EarlyStopping {
  kFalse,  ///< when the best unfinished text would not score better if it ended here: a good guess
  kTrue,   ///< immediately
  kNever,  ///< when no unfinished text can score better, however long it gets
};

struct BeamOptions {
  int num_beams = 1;
  float length_penalty = 1.0f;  ///< above 0 it favours long texts
  EarlyStopping early_stopping = EarlyStopping::kFalse;
};

inline void add_options(OptionSink& sink, BeamOptions& search, const RowOptions& options,
                        const RunOptions& run) {
  sink.add("--num-beams", &search.num_beams, "number of texts that a search keeps", at_least(1));
  sink.add("--length-penalty", &search.length_penalty, "above 0: favour long texts, below 0: short ones",
           between(-10, 10));
  sink.add("--early-stopping",
           one_of(&search.early_stopping, {{"false", EarlyStopping::kFalse},
                                           {"true", EarlyStopping::kTrue},
                                           {"never", EarlyStopping::kNever}}),
           "after --num-beams finished texts, stop by estimate, immediately, or when certain");
  sink.require_at_least({"--max-batch-size", &run.max_batch_size}, {"--num-beams", &search.num_beams});
  sink.refuse_if(
      [&search, &sampling = options.sampling] {
        return search.num_beams > 1 &&
               (sampling.do_sample || reshapes(sampling) || sampling.show_candidates > 0);
      },
      "--num-beams does not sample: it cannot be combined with --do-sample, --temperature, --top-k, "
      "--top-p or --show-candidates");
  limit_beams(sink, search.num_beams, options.stopping.max_new_tokens);
  sink.rule([&search, &run] {
    if (search.num_beams > 1 && run.num_return_sequences > search.num_beams) {
      throw UsageError("--num-return-sequences is {}, but it must be at most {}, the value of --num-beams",
                       run.num_return_sequences, search.num_beams);
    }
  });
  sink.rule([&search, &options, &run] {
    if (search.num_beams == 1 && !options.sampling.do_sample && run.num_return_sequences > 1) {
      throw UsageError(
          "--num-return-sequences {} needs --do-sample or --num-beams: without them all would be the same",
          run.num_return_sequences);
    }
  });
  sink.warn_if(
      [&search] {
        return search.num_beams == 1 &&
               (search.length_penalty != 1.0f || search.early_stopping != EarlyStopping::kFalse);
      },
      "--length-penalty and --early-stopping do nothing without --num-beams");
}

/// An unfinished or finished text.
struct Beam {
  std::vector<int> tokens;  ///< the prompt and the new tokens
  StopFilter filter;
  std::vector<Token> chosen = {};  ///< the new tokens
  double sum = 0.0;                ///< of the new tokens' log-probabilities
  double score = 0.0;              ///< its score if it ends here
  std::optional<FinishReason> finished = {};
  int row = 0;  ///< in the cache: its parent's row until it gets its own
};

/// A beam continued by one more token.
struct Continuation {
  int beam, token;
  double sum;
};

/// The score of a text of `length` new tokens. Each token makes the sum smaller, so without a penalty the
/// shortest text would win (Wu et al. 2016, section 7; in the simpler form of Hugging Face).
inline double beam_score(double sum, int length, float length_penalty) {
  return sum / std::pow(length, length_penalty);
}

/// Whether an unfinished text, with the best `sum` after `length` tokens, may still beat a finished one.
inline bool can_beat(double ended_score, double sum, int length, int max_new_tokens,
                     const BeamOptions& search) {
  if (search.early_stopping == EarlyStopping::kTrue) return false;
  // Unless a penalty rewards tokens, the sum only falls, so only a larger divisor can raise the score later.
  const bool later = search.early_stopping == EarlyStopping::kNever && search.length_penalty > 0.0f;
  return beam_score(sum, later ? max_new_tokens : length, search.length_penalty) > ended_score;
}

/// Chooses a cache row for each new beam; parents[i] is the row of beam i's parent. A parent's first child
/// takes over its row, and its other children get copies in rows that no beam continues. This needs the
/// fewest copies, and their order does not matter: none overwrites a row that another one reads.
inline std::vector<int> assign_rows(std::span<const int> parents) {
  std::vector<int> rows(parents.size(), -1);
  std::vector<bool> taken(parents.size());
  for (std::size_t beam = 0; beam < parents.size(); ++beam) {
    const std::size_t row = parents[beam];
    if (row >= taken.size() || taken[row]) continue;
    rows[beam] = parents[beam];
    taken[row] = true;
  }
  for (int free = 0; int& row : rows) {
    if (row != -1) continue;
    while (taken[free]) ++free;
    row = free++;
  }
  return rows;
}

/// Gives each new beam a cache row that holds its parent's entries.
inline void into_rows(std::vector<Beam>& beams, KvCache& cache) {
  std::vector<int> parents;
  for (const Beam& beam : beams) parents.push_back(beam.row);
  const std::vector<int> rows = assign_rows(parents);
  for (std::size_t b = 0; b < beams.size(); ++b) {
    if (rows[b] != parents[b]) cache.copy_row(parents[b], rows[b]);
    beams[b].row = rows[b];
  }
}

/// One step of Hugging Face's search, with the logits after each growing beam, [growing.size(), vocab_size].
/// Among the num_beams · (1 + end tokens) best continuations, those that end are set aside in `ended` if they
/// are in the first num_beams. Returns the first num_beams of the others, or none when the search is over.
inline std::vector<Beam> continue_beams(const std::vector<Beam>& growing, std::span<const float> logits,
                                        std::vector<Beam>& ended, const EndTokens& ends,
                                        const RowOptions& options, const BeamOptions& search) {
  const std::int64_t n = search.num_beams;  // products overflow an int
  const std::int64_t vocab_size = logits.size() / growing.size();
  const std::int64_t looked_at = std::max<std::int64_t>(2, 1 + std::distance(ends.begin(), ends.end())) * n;
  const std::size_t prompt_size = growing[0].tokens.size() - growing[0].chosen.size();
  const int length = static_cast<int>(growing[0].chosen.size()) + 1;
  std::vector<Continuation> all;
  std::vector<std::vector<float>> logprobs;  // the model's own log-probabilities
  for (int b = 0; b < std::ssize(growing); ++b) {
    logprobs.push_back(log_softmax(logits.subspan(growing[b].row * vocab_size, vocab_size)));
    std::vector<float> scores = logprobs[b];
    forbid_early_end(scores, length - 1, ends, options.length);
    process(scores, growing[b].tokens, options.sampling, prompt_size);
    for (const int token : highest(scores, looked_at)) {  // no other token can be among the overall best
      if (scores[token] != kMasked) all.push_back({b, token, growing[b].sum + scores[token]});
    }
  }
  // Ties keep their order: by beam, then by token id.
  std::ranges::stable_sort(all, std::greater<>(), &Continuation::sum);
  std::vector<Beam> next;
  for (int rank = 0; rank < std::min<std::int64_t>(looked_at, std::ssize(all)); ++rank) {
    Beam beam = growing[all[rank].beam];
    Token token{all[rank].token};
    if (options.logprobs.count)
      token.logprobs = logprobs_of(token.id, logprobs[all[rank].beam], *options.logprobs.count);
    beam.finished = end_of_text(token, beam.filter, length, ends, options);
    beam.tokens.push_back(token.id);
    beam.chosen.push_back(token);
    beam.sum = all[rank].sum;
    beam.score = beam_score(beam.sum, length, search.length_penalty);
    if (beam.finished ? rank >= n : std::ssize(next) == n) continue;
    (beam.finished ? ended : next).push_back(std::move(beam));
  }
  std::ranges::stable_sort(ended, std::greater<>(), &Beam::score);
  if (std::ssize(ended) > n) ended.erase(ended.begin() + n, ended.end());
  const bool enough = std::ssize(ended) == n && !next.empty();
  if (enough && !can_beat(ended.back().score, next[0].sum, length, options.stopping.max_new_tokens, search))
    return {};
  return next;
}

/// The num_beams best texts that the search finds after the prompt, best first. This is exactly Hugging
/// Face's search. The cache has num_beams rows.
inline std::vector<Beam> beam_search(Model& model, const Tokenizer& tokenizer, const std::vector<int>& prompt,
                                     const RowOptions& options, const BeamOptions& search, KvCache& cache) {
  const ModelConfig& config = model.config();
  std::vector<Beam> growing{{prompt, StopFilter(options.stop, tokenizer)}}, ended;
  cache.truncate(0, 0);
  for (int length = 1; length <= options.stopping.max_new_tokens && !growing.empty(); ++length) {
    std::vector<std::span<const int>> fed(growing.size());
    for (const Beam& beam : growing)
      fed[beam.row] = tokens_to_feed(beam.tokens, config.n_positions, cache, beam.row, options.overflow);
    const std::span<const float> logits = model.next_logits(fed, cache);  // [growing.size(), vocab_size]
    growing = continue_beams(growing, logits, ended, config.end_tokens, options, search);
    into_rows(growing, cache);
  }
  return ended;
}

}  // namespace staircase
