// Changes a text before it is cut.
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
  /// Throws Error for normal form C where the build lacks it.
  explicit Normalizer(std::vector<Normalization> steps);

  /// `text` after all changes. Bytes that are no valid UTF-8 stay as they are.
  std::string normalize(std::string_view text) const;

  /// Whether it never changes anything.
  bool empty() const { return steps_.empty(); }

 private:
  std::vector<Normalization> steps_;
};

}  // namespace staircase
