// What the checks of beam search compare with: small random models, and the search as Hugging Face writes it,
// in double precision and from scratch for each token.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "tests/tiny_model.h"

namespace staircase {

/// A model of random weights; its last token is the end of text, or each of its last `ends`.
inline Model random_model(std::uint32_t seed, int vocab_size, int n_positions = 37, int ends = 1) {
  const TemporaryFolder folder;
  TinyModel(seed, vocab_size, n_positions).write(folder.path());
  std::string others;
  for (int i = 1; i <= ends; ++i) others += (i > 1 ? ", " : "") + std::to_string(vocab_size - i);
  folder.write("generation_config.json", "{\"eos_token_id\": [" + others + "]}");
  return Model::load(folder.path(), make_cpu_device(1));
}

/// The same, where token 5 + i means and is all that token i is and means: of two texts that differ only
/// there neither is likelier.
inline Model model_of_twins(std::uint32_t seed) {
  TinyModel model(seed, 11);
  std::vector<float>& embeddings = model.tensors.at("wte.weight").values;
  std::copy_n(embeddings.begin(), 5 * model.n_embd, embeddings.begin() + 5 * model.n_embd);
  const TemporaryFolder folder;
  model.write(folder.path());
  return Model::load(folder.path(), make_cpu_device(1));
}

/// The new tokens of a text, and its score.
struct Scored {
  std::vector<int> tokens;
  double score = 0.0;
  bool operator<(const Scored& other) const { return score > other.score; }
};

struct PlainSearch {
  int num_beams = 1, max_new_tokens = 1;
  double length_penalty = 1.0;
  std::string early_stopping = "false";
  float repetition_penalty = 1.0f;
};

/// ln p of each token after prompt and text, as the penalty leaves them.
inline std::vector<double> plain_logprobs(Model& model, std::vector<int> tokens, const std::vector<int>& text,
                                          float repetition_penalty) {
  tokens.insert(tokens.end(), text.begin(), text.end());
  const auto context = static_cast<std::size_t>(model.config().n_positions);
  const std::span<const float> logits =
      model.next_logits(std::span<const int>(tokens).last(std::min(context, tokens.size())));
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  std::vector<double> logprobs;
  for (const float logit : logits) logprobs.push_back(logit - std::log(sum));
  // All are negative: the penalty multiplies each of them.
  for (const int token : std::set<int>(tokens.begin(), tokens.end())) logprobs[token] *= repetition_penalty;
  return logprobs;
}

/// The search as Hugging Face writes it: arrays of fixed sizes, and -1e9 for what is not there.
inline std::vector<Scored> plain_beam_search(Model& model, const std::vector<int>& prompt,
                                             const PlainSearch& search) {
  const EndTokens& ends_of_text = model.config().end_tokens;
  const auto n = static_cast<std::size_t>(search.num_beams);
  const std::size_t kept =
      std::max<std::size_t>(2, 1 + std::distance(ends_of_text.begin(), ends_of_text.end())) * n;
  std::vector<Scored> running(n, {{}, -1e9}), ended(n, {{}, -1e9});
  running[0].score = 0.0;
  for (int length = 1; length <= search.max_new_tokens; ++length) {
    std::vector<Scored> all;
    for (const Scored& beam : running) {
      const auto logprobs = plain_logprobs(model, prompt, beam.tokens, search.repetition_penalty);
      for (int token = 0; token < std::ssize(logprobs); ++token) {
        all.push_back({beam.tokens, beam.score + logprobs[token]});
        all.back().tokens.push_back(token);
      }
    }
    std::stable_sort(all.begin(), all.end());
    all.resize(std::min(kept, all.size()));
    running.clear();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool ends = ends_of_text.contains(all[i].tokens.back()) || length == search.max_new_tokens;
      if (!ends && running.size() < n) running.push_back(all[i]);
      if (ends && i < n)
        ended.push_back({all[i].tokens, all[i].score / std::pow(length, search.length_penalty)});
    }
    std::stable_sort(ended.begin(), ended.end());
    ended.resize(n);
    if (running.empty()) break;
    const bool full = ended.back().score > -1e8;
    const bool longest = search.early_stopping == "never" && search.length_penalty > 0;
    const double hope =
        running[0].score / std::pow(longest ? search.max_new_tokens : length, search.length_penalty);
    if (full && (search.early_stopping == "true" || hope <= ended.back().score)) break;
  }
  return ended;
}

/// Every text of up to `depth` tokens after the prompt, best first: those that end earlier are shorter.
inline std::vector<Scored> all_texts(Model& model, const std::vector<int>& prompt, int depth,
                                     double length_penalty) {
  std::vector<Scored> all;
  const std::function<void(std::vector<int>, double)> grow = [&](std::vector<int> text, double sum) {
    const int length = static_cast<int>(text.size());
    if (length == depth || (length > 0 && model.config().end_tokens.contains(text.back()))) {
      all.push_back({text, sum / std::pow(length, length_penalty)});
      return;
    }
    const std::vector<double> logprobs = plain_logprobs(model, prompt, text, 1.0f);
    text.push_back(0);
    for (int token = 0; token < std::ssize(logprobs); ++token) {
      text.back() = token;
      grow(text, sum + logprobs[token]);
    }
  };
  grow({}, 0.0);
  std::stable_sort(all.begin(), all.end());
  return all;
}

/// Empty if the beams are these texts with these scores, in this order; otherwise the first that is not.
inline std::string difference_from_texts(const auto& beams, const std::vector<Scored>& want) {
  if (beams.size() != want.size()) return std::to_string(beams.size()) + " texts";
  for (std::size_t i = 0; i < want.size(); ++i) {
    std::vector<int> tokens;
    for (const auto& token : beams[i].chosen) tokens.push_back(token.id);
    if (tokens != want[i].tokens) return "other tokens in text " + std::to_string(i);
    if (std::abs(beams[i].score - want[i].score) >= 1e-4) return "another score of text " + std::to_string(i);
  }
  return "";
}

}  // namespace staircase
