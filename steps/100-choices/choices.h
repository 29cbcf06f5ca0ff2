// Restricts an answer to one of a few texts.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "allowed_tokens.h"

namespace staircase {

struct ChoiceOptions {
  std::vector<std::string> choices = {};  ///< empty: any text is valid
};

inline void add_options(OptionSink& sink, ChoiceOptions& options, const RowOptions& row) {
  sink.add("--choice", &options.choices, "a text that the answer may be; repeatable");
  require_an_end(sink, "--choice", row, [&options] { return !options.choices.empty(); });
}

class Choices {
 public:
  /// The texts that may follow a part of a text: the rest of each choice that begins with this part.
  using States = std::set<std::string>;

  explicit Choices(const std::vector<std::string>& texts) : texts_(texts.begin(), texts.end()) {}

  States start() const { return texts_; }

  /// The rests after reading more bytes; empty if no choice begins so.
  States after(const States& rests, std::string_view text) const {
    States after;
    for (const std::string& rest : rests)
      if (rest.starts_with(text)) after.insert(rest.substr(text.size()));
    return after;
  }

  /// Whether the text is a choice.
  bool accepts(const States& rests) const { return rests.contains(""); }

 private:
  States texts_;
};

}  // namespace staircase
