// Scores prompts in parts, one after each pass, so that other texts keep growing.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/decoding/conversation_cache.h"
#include "common/decoding/results.h"
#include "common/model/model.h"
#include "logprobs.h"

namespace staircase {

/// Computes in passes of `chunk` tokens what `score` (step 37) computes in one pass; if layers have a window,
/// a pass has at most Model::kPart. It keeps the last prompt's scores, so consecutive texts with equal
/// prompts share them.
class PromptScorer {
 public:
  PromptScorer(Model& model, std::optional<int> chunk) : model_(model), chunk_(chunk) {}

  /// The tokens of the prompt with their log-probabilities, and the `likeliest` most likely tokens at each
  /// position. While some are missing, it computes the next part instead and returns nullptr.
  std::shared_ptr<const std::vector<Token>> operator()(const std::vector<int>& prompt, int likeliest) {
    if (prompt != prompt_ || likeliest != likeliest_) begin(prompt, likeliest);
    if (scored_->size() == prompt.size()) return scored_;
    if (!cache_) cache_ = std::make_shared<ConversationCache>(model_);
    const int done = static_cast<int>(scored_->size()) - 1, rest = static_cast<int>(prompt_.size()) - done;
    const int count = std::min({rest, chunk_.value_or(rest), cache_->most_at_once()});
    const auto fed = std::span<const int>(prompt_).subspan(done, count);
    model_.use_adapters({});  // a request with an adapter is never scored
    const std::span<const float> logits = model_.last_logits(fed, count, *cache_);  // [count, vocab_size]
    const std::size_t vocab_size = logits.size() / count;
    for (int i = 0; i < count && scored_->size() < prompt_.size(); ++i) {
      const int id = prompt_[scored_->size()];
      const std::vector<float> logprobs = log_softmax(logits.subspan(i * vocab_size, vocab_size));
      scored_->push_back({.id = id, .logprobs = logprobs_of(id, logprobs, likeliest)});
    }
    return nullptr;
  }

 private:
  void begin(const std::vector<int>& prompt, int likeliest) {
    prompt_ = prompt;
    likeliest_ = likeliest;
    // No token precedes the first one, so it has no probability.
    scored_ = std::make_shared<std::vector<Token>>(1, Token{.id = prompt.front(), .logprobs = Logprobs()});
    if (cache_) cache_->truncate(0, 0);
  }

  Model& model_;
  std::optional<int> chunk_;
  std::shared_ptr<ConversationCache> cache_ = {};  // of one row; most servers never need it
  std::vector<int> prompt_ = {};
  int likeliest_ = 0;
  std::shared_ptr<std::vector<Token>> scored_ = {};
};

}  // namespace staircase
