// Ends a text at a stop sequence.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/options.h"
#include "common/text/tokenizer.h"
#include "common/text/utf8.h"

namespace staircase {

struct StopOptions {
  std::vector<std::string> sequences = {};  ///< none of them empty
};

inline void add_options(OptionSink& sink, StopOptions& options) {
  sink.add("--stop", &options.sequences, "stop before this string; repeatable", at_least(1));
}

/// Looks for stop sequences in a text that arrives token by token, and withholds text that may become one. A
/// sequence may begin in the middle of a token and end in the middle of another.
class StopFilter {
 public:
  StopFilter(StopOptions options, const Tokenizer& tokenizer)
      : options_(std::move(options)), tokenizer_(&tokenizer) {}

  /// Adds `token` and returns the text that can now be shown, never a part of a stop sequence.
  std::string push(int token) {
    bytes_ += tokenizer_->bytes(token);
    held_ += take_complete_utf8(bytes_);
    std::size_t cut = first_stop(held_);
    found_ = cut != held_.npos;
    if (!found_) cut = held_.size() - longest_beginning();
    std::string certain = held_.substr(0, cut);
    held_ = found_ ? "" : held_.substr(cut);
    return certain;
  }

  bool found() const { return found_; }

  /// The withheld text, for a text that ends without a stop sequence.
  std::string rest() const {
    const std::string text = found_ ? "" : held_ + to_valid_utf8(bytes_);
    return text.substr(0, first_stop(text));
  }

 private:
  std::size_t first_stop(const std::string& text) const {
    std::size_t first = text.npos;
    for (const std::string& stop : options_.sequences) first = std::min(first, text.find(stop));
    return first;
  }

  /// The length of the longest suffix of the text that a stop sequence starts with.
  std::size_t longest_beginning() const {
    std::size_t longest = 0;
    for (const std::string& stop : options_.sequences) {
      for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > longest; --length) {
        if (held_.ends_with(stop.substr(0, length))) longest = length;
      }
    }
    return longest;
  }

  StopOptions options_;
  const Tokenizer* tokenizer_;
  std::string bytes_;  // of an incomplete character: sequences consist of characters
  std::string held_;
  bool found_ = false;
};

}  // namespace staircase
