// Texts of which only a part was written by the program: the rest is from anybody.
#pragma once

#include <string_view>
#include <vector>

#include "common/text/tokenizer.h"

namespace staircase {

/// As Tokenizer::encode_with_special_tokens(), but special tokens are found only where `own`, a flag for each
/// byte, is set for all of their bytes. What stands between two of them is encoded in one piece, whoever
/// wrote it, as in the training of the model.
std::vector<int> encode_with_own_special_tokens(const Tokenizer& tokenizer, std::string_view text,
                                                const std::vector<bool>& own);

}  // namespace staircase
