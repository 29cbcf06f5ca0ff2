// Any bytes as text for GPT-2's tokenizer: they come back as they were, however they are decoded.
#include "common/text/tokenizer.h"

#include <cstdint>
#include <string_view>

#include "tests/fuzz/round_trip.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace staircase;
  static const Tokenizer tokenizer = Tokenizer::load(STAIRCASE_SOURCE_TREE "/tests/reference/gpt2-tokenizer");
  require_round_trip(tokenizer, {reinterpret_cast<const char*>(data), size});
  return 0;
}
