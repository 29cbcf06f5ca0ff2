// Separates the reasoning of an answer, which <think> and </think> enclose, from the rest.
#pragma once

#include <string>
#include <string_view>

namespace staircase {

/// A part of an answer.
struct SplitText {
  std::string reasoning = {}, content = {};
};

/// Takes an answer in pieces that may cut a marker. Reasoning counts only at the start of an answer: later
/// markers are content, because a model may write about them. White space next to a marker belongs to neither
/// part.
class ReasoningSplit {
 public:
  /// `begins_within`: the answer begins within the reasoning, because the prompt ends with the marker.
  explicit ReasoningSplit(bool begins_within) : begins_within_(begins_within) {}

  SplitText push(std::string_view text);

  /// Returns the rest at the end of the answer: the beginning of a marker that was never completed.
  SplitText finish();

 private:
  enum class Place { kBegin, kReasoning, kContent };

  bool begins_within_;
  Place place_ = Place::kBegin;
  bool skips_space_ = false;  // whether a marker came just before
  std::string held_ = {};     // possibly part of a marker, or the space before one
};

/// Whether a prompt ends with an open <think>, as some templates leave it.
bool ends_within_reasoning(std::string_view prompt);

}  // namespace staircase
