// Separates the reasoning of an answer, which <think> and </think> enclose, from the rest.
#pragma once

#include <string>
#include <string_view>

namespace staircase {

/// A part of an answer.
struct SplitText {
  std::string reasoning = {}, content = {};
};

/// Takes an answer in pieces that may cut a marker. Only an answer that begins with reasoning has some:
/// markers after that are content, since a model may write about them. White space next to the markers
/// belongs to neither part.
class ReasoningSplit {
 public:
  /// Whether the answer begins within the reasoning, and the marker is the prompt's.
  explicit ReasoningSplit(bool begins_within) : begins_within_(begins_within) {}

  SplitText push(std::string_view text);

  /// The rest, at the end of the answer: the beginning of a marker that never came.
  SplitText finish();

 private:
  enum class Place { kBegin, kReasoning, kContent };

  bool begins_within_;
  Place place_ = Place::kBegin;
  bool skips_space_ = false;  // after a marker
  std::string held_ = {};     // perhaps a part of a marker, or space before it
};

/// Whether a prompt ends with an open <think>, as some templates leave it.
bool ends_within_reasoning(std::string_view prompt);

}  // namespace staircase
