// Any bytes as vocab.json and merges.txt: an Error, or a tokenizer that loses nothing.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "common/text/tokenizer.h"
#include "common/text/vocabulary_reader.h"
#include "tests/fuzz/round_trip.h"

namespace {

/// The 256 bytes and the end-of-text, without which nothing is a vocabulary; ids 0 to 256.
std::string smallest_vocabulary() {
  std::string json = "\"<|endoftext|>\":256";
  int other = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    char escaped[32];
    std::snprintf(escaped, sizeof escaped, ",\"\\u%04x\":%d", prints ? byte : other++, byte);
    json += escaped;
  }
  return json;
}

}  // namespace

// The input: vocab.json, a zero byte, merges.txt, a zero byte, a text. If vocab.json starts with a comma, it
// goes on from the smallest vocabulary; to find those 257 tokens by chance would take forever.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace staircase;
  static const std::string smallest = smallest_vocabulary();
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto next = [&rest] {
    const std::string_view part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    return part;
  };
  std::string vocab(next());
  if (vocab.starts_with(',')) vocab = "{" + smallest + vocab + "}";
  const std::string_view merges = next();
  try {
    require_round_trip(Tokenizer(read_vocab_and_merges(vocab, merges, "vocab.json", "merges.txt"), "folder"),
                       rest);
  } catch (const Error&) {
  }
  return 0;
}
