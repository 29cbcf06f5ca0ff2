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
  std::optional<FinishReason> finished = {};
};

/// The num_beams most likely texts that the search finds after the prompt, best first. A finished text stays
/// among them unchanged until num_beams others are more likely.
inline std::vector<Beam> beam_search(Model& model, const Tokenizer& tokenizer, const std::vector<int>& prompt,
                                     const RowOptions& options, const BeamOptions& search) {
  const ModelConfig& config = model.config();
  const std::int64_t vocab_size = config.vocab_size, n = search.num_beams;  // products overflow an int
  const EndTokens& ends = config.end_tokens;
  NoCache no_cache;
  std::vector<Beam> beams{{prompt, StopFilter(options.stop, tokenizer)}};
  for (int length = 1; length <= options.stopping.max_new_tokens; ++length) {
    std::vector<Beam> growing, next;
    for (const Beam& beam : beams) (beam.finished ? next : growing).push_back(beam);
    if (growing.empty()) break;
    std::vector<std::span<const int>> fed;
    for (const Beam& beam : growing)
      fed.push_back(tokens_to_feed(beam.tokens, config.n_positions, no_cache, 0, options.overflow));
    const std::span<const float> logits = model.next_logits(fed);  // [growing.size(), vocab_size]
    for (int b = 0; b < std::ssize(growing); ++b) {
      const std::vector<float> logprobs = log_softmax(logits.subspan(b * vocab_size, vocab_size));
      std::vector<float> scores = logprobs;  // the options change these scores, not the model's own
      forbid_early_end(scores, length - 1, ends, options.length);
      process(scores, growing[b].tokens, options.sampling, prompt.size());
      for (const int id : highest(scores, n)) {  // no other token can be among the overall best
        if (scores[id] == kMasked) continue;
        Token token{id};
        if (options.logprobs.count) token.logprobs = logprobs_of(id, logprobs, *options.logprobs.count);
        Beam& beam = next.emplace_back(growing[b]);
        beam.finished = end_of_text(token, beam.filter, length, ends, options);
        beam.tokens.push_back(id);
        beam.chosen.push_back(token);
        beam.sum += scores[id];
      }
      // Ties keep their order: finished texts first, then by beam, then by id.
      std::ranges::stable_sort(next, std::greater<>(), &Beam::sum);
      if (std::ssize(next) > n) next.erase(next.begin() + n, next.end());
    }
    beams = std::move(next);
  }
  return beams;
}

}  // namespace staircase
