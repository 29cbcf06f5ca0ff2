// A model that is offered only the tokens of a constraint: whatever decodes one text with it, obeys.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/decoding/constraint.h"
#include "common/model/model.h"

namespace staircase {

/// Masks the logits of each pass of a single sequence, before all else that chooses a token. It knows the
/// text from what is fed. So each row of a pass is masked for the text up to it, drafts included, and a cache
/// that was cut back takes the state back with it. A target and its draft model each have one of these, with
/// the same constraint.
///
/// The cache may slide, but must not be filled with a window anew: then the text has lost its beginning.
class ConstrainedModel {
 public:
  /// `model` must outlive this object, and this object all passes of the model.
  ConstrainedModel(Model& model, std::shared_ptr<Constraint> constraint);

  ConstrainedModel(const ConstrainedModel&) = delete;
  ConstrainedModel& operator=(const ConstrainedModel&) = delete;

  /// The next pass is the first of a new text: its first logits are those after the prompt. To begin with, it
  /// is so.
  void begin();

 private:
  void mask(std::span<float> logits, const FedTokens& fed);

  const EndTokens ends_;
  const std::size_t vocab_size_;
  const std::shared_ptr<Constraint> constraint_;
  std::vector<int> text_ = {};                // the prompt, and after it the new tokens
  std::optional<std::size_t> prompt_ = {};    // its length
  std::vector<Constraint::Place> places_{1};  // after the first 0, 1, 2 … new tokens
};

}  // namespace staircase
