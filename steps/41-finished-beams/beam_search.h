// Beam search (Lowerre 1976; for neural networks Sutskever et al. 2014, section 3.2): looks for the most
// likely text, not the most likely token.
#pragma once

#include <algorithm>
#include <functional>

#include "common/decoding/beam_memory.h"
#include "common/model/model.h"
#include "generate.h"
#include "row.h"

namespace staircase {

struct BeamOptions {
  int num_beams = 1;
};

inline void add_options(OptionSink& sink, BeamOptions& search, const RowOptions& options,
                        const RunOptions& run) {
  sink.add("--num-beams", &search.num_beams, "number of texts that a search keeps", at_least(1));
  sink.refuse_if(
      [&search, &sampling = options.sampling, &run] {
        return search.num_beams > 1 && (run.num_return_sequences > 1 || sampling.do_sample ||
                                        reshapes(sampling) || sampling.show_candidates > 0);
      },
      "--num-beams searches for one text and does not sample: it cannot be combined with "
      "--num-return-sequences, --do-sample, --temperature, --top-k, --top-p or --show-candidates");
  limit_beams(sink, search.num_beams, options.stopping.max_new_tokens);
}

/// An unfinished or finished text.
struct Beam {
  std::vector<int> tokens;  ///< the prompt and the new tokens
  StopFilter filter;
  std::vector<Token> chosen = {};  ///< the new tokens
  double sum = 0.0;                ///< of the new tokens' log-probabilities
  double score = 0.0;              ///< sum / length: its score if it ends here
  std::optional<FinishReason> finished = {};
};

/// A beam continued by one more token.
struct Continuation {
  int beam, token;
  double sum;
};

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
    logprobs.push_back(log_softmax(logits.subspan(b * vocab_size, vocab_size)));
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
    beam.score = beam.sum / length;
    if (beam.finished ? rank >= n : std::ssize(next) == n) continue;
    (beam.finished ? ended : next).push_back(std::move(beam));
  }
  std::ranges::stable_sort(ended, std::greater<>(), &Beam::score);
  if (std::ssize(ended) > n) ended.erase(ended.begin() + n, ended.end());
  // The best unfinished text would be no better if it ended here: a good guess.
  if (std::ssize(ended) == n && !next.empty() && next[0].score <= ended.back().score) return {};
  return next;
}

/// The num_beams best texts that the search finds after the prompt, best first. This is exactly Hugging
/// Face's search.
inline std::vector<Beam> beam_search(Model& model, const Tokenizer& tokenizer, const std::vector<int>& prompt,
                                     const RowOptions& options, const BeamOptions& search) {
  const ModelConfig& config = model.config();
  NoCache no_cache;
  std::vector<Beam> growing{{prompt, StopFilter(options.stop, tokenizer)}}, ended;
  for (int length = 1; length <= options.stopping.max_new_tokens && !growing.empty(); ++length) {
    std::vector<std::span<const int>> fed;
    for (const Beam& beam : growing)
      fed.push_back(tokens_to_feed(beam.tokens, config.n_positions, no_cache, 0, options.overflow));
    const std::span<const float> logits = model.next_logits(fed);  // [growing.size(), vocab_size]
    growing = continue_beams(growing, logits, ended, config.end_tokens, options, search);
  }
  return ended;
}

}  // namespace staircase
