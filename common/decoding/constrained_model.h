// Restricts a model to the tokens that a constraint allows, for any code that decodes one sequence.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/decoding/constraint.h"
#include "common/model/model.h"

namespace staircase {

/// Masks the logits of each pass over a single sequence, before any other option chooses a token. It derives
/// the text from the tokens fed, so each row of logits is masked for the text up to it, drafts included. When
/// the cache is truncated, the state goes back with it. A target and its draft model each need one of these,
/// with the same constraint.
///
/// The cache may slide, but must not be refilled with a window, which would lose the text's beginning.
class ConstrainedModel {
 public:
  /// `model` must outlive this object, and this object must outlive all passes of the model.
  ConstrainedModel(Model& model, std::shared_ptr<Constraint> constraint);

  ConstrainedModel(const ConstrainedModel&) = delete;
  ConstrainedModel& operator=(const ConstrainedModel&) = delete;

  /// Starts a new text: the first logits of the next pass are those after its prompt. The first text needs no
  /// call.
  void begin();

 private:
  void mask(std::span<float> logits, const FedTokens& fed);

  const EndTokens ends_;
  const std::size_t vocab_size_;
  const std::shared_ptr<Constraint> constraint_;
  std::vector<int> text_ = {};                // the prompt, then the new tokens
  std::optional<std::size_t> prompt_ = {};    // the prompt's length
  std::vector<Constraint::Place> places_{1};  // the place after 0, 1, 2 … new tokens
};

}  // namespace staircase
