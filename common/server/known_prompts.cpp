#include "common/server/known_prompts.h"

#include "common/decoding/known_tokens.h"

namespace staircase {

namespace {
constexpr std::size_t kMaxKept = 256;
}

KnownPrompts::KnownPrompts(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), known_(std::make_unique<KnownTokens>(kMaxKept)) {}

KnownPrompts::~KnownPrompts() = default;

std::vector<int> KnownPrompts::encode(const Rendered& prompt) {
  return known_->encode(tokenizer_, prompt);
}

void KnownPrompts::answered(const Rendered& prompt, const std::vector<int>& prompt_tokens,
                            const std::vector<int>& answer) {
  known_->remember(tokenizer_, prompt, prompt_tokens, answer);
}

}  // namespace staircase
