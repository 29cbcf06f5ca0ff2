// Heads that draft (Cai et al. 2024, section 2.1): one hidden state of the target predicts several tokens.
#pragma once

#include "common/model/draft_heads.h"
#include "speculative.h"

namespace staircase {

/// h + SiLU(W h + b), [n_embd], where SiLU(x) = x / (1 + exp(-x)).
inline std::vector<float> further_state(const DraftHead& head, std::span<const float> h) {
  std::vector<float> y = head.bias;
  for (std::size_t i = 0; i < head.weight.size(); ++i) y[i % y.size()] += h[i / y.size()] * head.weight[i];
  for (std::size_t o = 0; o < y.size(); ++o) y[o] = h[o] + y[o] / (1.0f + std::exp(-y[o]));
  return y;
}

/// Proposes one token per head, all from the same state.
struct HeadDrafter : Drafter {
  HeadDrafter(Model& target, std::vector<DraftHead> heads) : target_(target), heads_(std::move(heads)) {}
  Distributions propose(std::vector<int>& text, int count, const SamplingOptions& options,
                        std::mt19937& generator) override {
    // State i of the last pass follows i accepted drafts. Before the first pass there is no state.
    const std::size_t row = text.size() - std::exchange(length_, text.size()) - 1;
    const std::vector<std::vector<float>> states = target_.hidden_states();  // [1 + drafts][n_embd]
    if (row >= states.size()) return {};
    std::vector<std::vector<float>> further;
    for (const DraftHead& head : std::span(heads_).first(std::min<std::size_t>(count, heads_.size())))
      further.push_back(further_state(head, states[row]));
    Distributions q;
    for (std::vector<float>& logits : target_.output_logits(further)) {
      q.push_back(distribution(logits, text, options));
      text.push_back(draw(q.back(), generator));
    }
    return q;
  }

 private:
  Model& target_;
  std::vector<DraftHead> heads_;
  std::size_t length_ = 0;  // length of the text at the last call
};

}  // namespace staircase
