// Ends a text at a stop sequence.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/options.h"
#include "common/text/tokenizer.h"

namespace staircase {

struct StopOptions {
  std::vector<std::string> sequences = {};  ///< none of them empty
};

inline void add_options(OptionSink& sink, StopOptions& options) {
  sink.add("--stop", &options.sequences, "stop before this string; repeatable", at_least(1));
}

/// Looks for stop sequences in a text that arrives token by token. It searches the text, not the tokens: a
/// sequence may begin in the middle of a token and end in the middle of another.
class StopFilter {
 public:
  StopFilter(StopOptions options, const Tokenizer& tokenizer)
      : options_(std::move(options)), tokenizer_(&tokenizer) {}

  /// The text to show for `token`: all of it, or only the part before a stop sequence that `token` completes.
  /// The part of the sequence in earlier tokens has already been shown.
  std::string push(int token) {
    const std::size_t shown = text_.size();
    text_ += tokenizer_->bytes(token);
    std::size_t cut = text_.npos;
    for (const std::string& stop : options_.sequences) cut = std::min(cut, text_.find(stop));
    found_ = cut != text_.npos;
    return text_.substr(shown, std::max(cut, shown) - shown);
  }

  bool found() const { return found_; }

 private:
  StopOptions options_;
  const Tokenizer* tokenizer_;
  std::string text_;
  bool found_ = false;
};

}  // namespace staircase
