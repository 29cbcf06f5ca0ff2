#include "common/decoding/constrained_model.h"

#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "sampling.h"

namespace staircase {

ConstrainedModel::ConstrainedModel(Model& model, std::shared_ptr<Constraint> constraint)
    : ends_(model.config().end_tokens),
      vocab_size_(static_cast<std::size_t>(model.config().vocab_size)),
      constraint_(std::move(constraint)) {
  model.edit_logits([this](std::span<float> logits, const FedTokens& fed) { mask(logits, fed); });
}

void ConstrainedModel::begin() {
  prompt_.reset();
  places_ = {Constraint::Place()};
}

void ConstrainedModel::mask(std::span<float> logits, const FedTokens& fed) {
  text_.resize(fed.position);
  text_.insert(text_.end(), fed.tokens.begin(), fed.tokens.end());
  const std::size_t rows = logits.size() / vocab_size_, first = text_.size() + 1 - rows;
  if (!prompt_) prompt_ = first;
  if (first < *prompt_) throw Error("a text is shorter than the prompt before it: begin() is missing");
  // Rejected tokens have left the text, so the places after them go too.
  if (fed.position >= *prompt_) places_.resize(std::min(places_.size(), fed.position - *prompt_ + 1));
  const auto is_end = [&](int token) { return ends_.contains(token); };
  for (std::size_t r = 0; r < rows; ++r) {
    const auto text = std::span<const int>(text_).subspan(*prompt_, first + r - *prompt_);
    // No token after an end-of-text token or a forbidden draft will be kept.
    if (std::ranges::any_of(text, is_end)) return;
    if (r > 0 && logits[(r - 1) * vocab_size_ + static_cast<std::size_t>(text.back())] == kMasked) return;
    Constraint::Place place = places_.back();
    constraint_->keep_allowed(logits.subspan(r * vocab_size_, vocab_size_), text, place);
    places_.resize(text.size() + 1, place);
  }
}

}  // namespace staircase
