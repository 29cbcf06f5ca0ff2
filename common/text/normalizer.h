// Changes a text before it is split.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/text/tokenizer_description.h"

namespace staircase {

/// `text` with every `from`, which is not empty, replaced by `to`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

class Normalizer {
 public:
  /// Throws Error for normal form C if the build lacks it.
  explicit Normalizer(std::vector<Normalization> steps);

  /// `text` after all changes. Invalid UTF-8 stays unchanged.
  std::string normalize(std::string_view text) const;

  /// Whether it never changes anything.
  bool empty() const { return steps_.empty(); }

 private:
  std::vector<Normalization> steps_;
};

}  // namespace staircase
