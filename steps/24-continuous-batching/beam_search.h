// Beam search (Lowerre 1976; for neural networks Sutskever et al. 2014, section 3.2): looks for the likeliest
// text, where the greedy choice looks for the likeliest token.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "beam_tree.h"
#include "common/base/message.h"
#include "common/program/output.h"
#include "generate.h"

namespace staircase {

/// When the search stops, once num_beams texts have ended.
enum class EarlyStopping {
  kFalse,  ///< when the best text that grows would score no better if it ended here: a guess, but a good one
  kTrue,   ///< at once
  kNever,  ///< when no text that grows can score better, however long it becomes
};

struct BeamOptions {
  int num_beams = 1;
  float length_penalty = 1.0f;  ///< above 0 it favours long texts
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  bool show_beams = false;
};

/// A text that grows, or has ended.
struct Beam {
  std::vector<int> tokens;  ///< the prompt and what follows it
  double sum = 0.0;         ///< of the log-probabilities of what follows
  StopFilter filter;
  std::vector<Token> chosen = {};  ///< what follows
  int node = 0;                    ///< its place in the tree
  std::optional<FinishReason> finished = {};
  double score = 0.0;  ///< once it has ended
};

/// One more token behind a beam.
struct Continuation {
  int beam = 0, token = 0;
  double sum = 0.0;
};

/// The `count` best continuations of all beams, where scores [beams.size(), vocab_size] has the
/// log-probability of each token behind each of them. Among equals those of the first beam come first, and
/// then the lowest id.
inline std::vector<Continuation> best_continuations(std::span<const Beam> beams,
                                                    std::span<const float> scores, int count) {
  const int vocab_size = static_cast<int>(scores.size() / beams.size());
  std::vector<Continuation> all;
  for (int beam = 0; beam < std::ssize(beams); ++beam) {
    // Only the best of each beam can be among the best of all.
    const std::span<const float> own = scores.subspan(beam * vocab_size, vocab_size);
    for (const int token : highest(own, count)) {
      if (own[token] != kMasked) all.push_back({beam, token, beams[beam].sum + own[token]});
    }
  }
  const auto end = all.begin() + std::min<std::ptrdiff_t>(count, std::ssize(all));
  std::partial_sort(all.begin(), end, all.end(), [](const Continuation& a, const Continuation& b) {
    if (a.sum != b.sum) return a.sum > b.sum;
    return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  });
  all.erase(end, all.end());
  return all;
}

/// The score of a text of `length` new tokens: each token makes the sum smaller, and without a penalty the
/// shortest text would win (Wu et al. 2016, section 7; in the simpler form of Hugging Face).
inline double score(double sum, int length, float length_penalty) {
  return sum / std::pow(length, length_penalty);
}

/// Whether a text that grows, with the best `sum` after `length` tokens, may yet beat one that has ended.
inline bool can_beat(double ended_score, double sum, int length, int max_new_tokens,
                     const BeamOptions& search) {
  if (search.early_stopping == EarlyStopping::kTrue) return false;
  // The sum only falls, so a score is at its best without another token, unless it is divided by more.
  const bool later = search.early_stopping == EarlyStopping::kNever && search.length_penalty > 0.0f;
  return score(sum, later ? max_new_tokens : length, search.length_penalty) > ended_score;
}

/// Gives each new beam a row of the cache, where parents[i] is the row of beam i's parent: result[row] is the
/// beam. The first child of a parent takes its row, and nothing has to be copied; the others take rows that
/// nobody goes on with. So no row is overwritten that is needed, in whatever order the copies are made, and
/// their number is the smallest possible.
inline std::vector<int> assign_rows(std::span<const int> parents) {
  constexpr int kFree = -1;
  const int n = static_cast<int>(parents.size());
  std::vector<int> beams(n, kFree), waiting;
  for (int beam = 0; beam < n; ++beam) {
    const int row = parents[beam];
    if (row < n && beams[row] == kFree) {
      beams[row] = beam;
    } else {
      waiting.push_back(beam);
    }
  }
  auto beam = waiting.begin();
  for (int& place : beams) {
    if (place == kFree) place = *beam++;
  }
  return beams;
}

/// The beams in the order of their rows in the cache, each with the entries of its parent.
inline std::vector<Beam> into_rows(std::vector<Beam> beams, std::span<const int> parents,
                                   StaticKvCache* cache) {
  const std::vector<int> order = assign_rows(parents);
  std::vector<Beam> rows;
  for (int row = 0; row < std::ssize(order); ++row) {
    const int beam = order[row];
    if (cache != nullptr && parents[beam] != row) cache->copy_row(parents[beam], row);
    rows.push_back(std::move(beams[beam]));
  }
  return rows;
}

/// The num_beams best texts that the search finds behind the prompt, best first. Exactly the search of
/// Hugging Face: of the 2 num_beams best continuations those that end are taken out if they are among the
/// first num_beams, and of the others the first num_beams go on. The cache has num_beams rows.
inline std::vector<Beam> beam_search(Gpt2& model, const std::vector<int>& prompt,
                                     const GenerateOptions& options, const BeamOptions& search,
                                     StaticKvCache* cache, BeamTree& tree) {
  const int vocab_size = model.config().vocab_size, eos = model.config().eos_token_id;
  const int n = search.num_beams, max_new_tokens = options.max_new_tokens;
  if (cache != nullptr) cache->truncate(0, 0);
  // The prompt is one beam: it goes through the model once.
  std::vector<Beam> growing{{prompt, 0.0, StopFilter(options.stop)}}, ended;
  for (int length = 1; length <= max_new_tokens && !growing.empty(); ++length) {
    const std::span<float> logits = next_logits(model, growing, cache, options);
    std::vector<std::vector<float>> logprobs;  // the model's own
    for (int b = 0; b < std::ssize(growing); ++b) {
      const std::span<float> scores = logits.subspan(b * vocab_size, vocab_size);
      logprobs.push_back(log_softmax(scores));
      std::ranges::copy(logprobs.back(), scores.begin());
      if (length <= options.min_new_tokens) scores[eos] = kMasked;
      process(scores, growing[b].tokens, options.sampling);
    }

    std::vector<Beam> next;
    std::vector<int> parents;  // their rows in the cache
    int rank = 0;
    for (const auto& [parent, id, sum] : best_continuations(growing, logits, 2 * n)) {
      Beam beam = growing[parent];
      Token token{id};
      if (options.logprobs) token.logprobs = logprobs_of(id, logprobs[parent], *options.logprobs);
      beam.finished = end_of_text(token, beam.filter, eos, length == max_new_tokens, options);
      beam.tokens.push_back(id);
      beam.chosen.push_back(token);
      beam.sum = sum;
      beam.score = score(sum, length, search.length_penalty);
      const bool among_first = rank++ < n;
      if (beam.finished ? !among_first : std::ssize(next) == n) continue;
      beam.node = tree.add(beam.node, id, sum);
      if (beam.finished) {
        tree.end(beam.node, beam.score);
        ended.push_back(std::move(beam));
      } else {
        next.push_back(std::move(beam));
        parents.push_back(parent);
      }
    }
    std::ranges::stable_sort(ended, std::greater<>(), &Beam::score);
    if (std::ssize(ended) > n) ended.erase(ended.begin() + n, ended.end());
    const bool enough = std::ssize(ended) == n && !next.empty();
    if (enough && !can_beat(ended.back().score, next[0].sum, length, max_new_tokens, search)) break;
    growing = into_rows(std::move(next), parents, cache);
  }
  return ended;
}

/// Continues all prompts, one after the other; of each the best num_return_sequences texts are told.
inline void beam_search_all(Gpt2& model, const Prompts& prompts, const GenerateOptions& options,
                            const BeamOptions& search, Output& output) {
  const int wanted = options.num_return_sequences;
  output.expect(static_cast<int>(prompts.size()) * wanted);
  for (int p = 0; p < std::ssize(prompts); ++p) {
    std::optional<StaticKvCache> cache;
    if (options.use_cache) cache.emplace(model, search.num_beams);
    const OnRowToken on_token = output.on_row_token(std::vector<int>(wanted, p));
    BeamTree tree;
    const std::vector<Beam> found =
        beam_search(model, prompts[p], options, search, cache ? &*cache : nullptr, tree);
    std::vector<Generation> texts(wanted);
    for (int i = 0; i < std::min<int>(wanted, std::ssize(found)); ++i) {
      for (const Token& token : found[i].chosen) on_token(i, token);
      texts[i] = {found[i].tokens, *found[i].finished, {}, found[i].score};
    }
    output.finish(texts, cache ? cache->use() : CacheUse());
    if (search.show_beams) say("\n" + tree.text(output.tokenizer()));
  }
}

}  // namespace staircase
