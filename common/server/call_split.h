// Separates the function calls in an answer from the rest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/server/call_form.h"

namespace staircase {

/// The start of a call, which has a name, or more of its arguments.
struct CallPart {
  int index;  ///< of the call in its answer
  std::string name = {}, arguments = {};
};

struct SplitCalls {
  std::string content = {};
  std::vector<CallPart> calls = {};
};

/// Takes an answer that follows answer_rules, in pieces cut anywhere. Drops white space next to a call, and
/// any call that ends before its arguments begin.
class CallSplit {
 public:
  explicit CallSplit(CallForm form) : form_(std::move(form)) {}

  SplitCalls push(std::string_view text);

  /// Returns the rest at the end of the answer: the beginning of a marker that was never completed.
  std::string finish();

  /// Whether a call has begun.
  bool calls() const { return index_ >= 0; }

 private:
  enum class Place { kContent, kRest, kBegin, kName, kArguments, kBetween };

  bool read_on(SplitCalls& parts);
  bool read_content(SplitCalls& parts);
  bool read_arguments(SplitCalls& parts);
  bool has_between() const;
  bool skip(const std::string& text, Place next);

  CallForm form_;
  Place place_ = Place::kContent;
  int index_ = -1;         // of the latest call
  std::string held_ = {};  // not yet read
  int depth_ = 0;          // open braces and brackets of the arguments
  bool in_string_ = false, is_escaped_ = false;
};

}  // namespace staircase
