// What a text copies from itself, beside the drafter of step 21.
#include "common/decoding/copied_tokens.h"

#include <doctest/doctest.h>

#include <random>

namespace staircase {
namespace {

TEST_CASE("a text copies what the drafter of step 21 proposes, also where the copy runs into itself") {
  std::mt19937 generator(2);
  const auto random = [&](int count) { return static_cast<int>(generator() % static_cast<unsigned>(count)); };
  int none = 0, some = 0;
  for (int round = 0; round < 500; ++round) {
    CAPTURE(round);
    std::vector<int> text(static_cast<std::size_t>(1 + random(12)));
    for (int& token : text) token = random(4);
    const int ngram = 1 + random(4), count = random(20);
    std::vector<int> grown = text;
    PromptLookup(ngram, 4).propose(grown, count, {}, generator);
    const std::vector<int> copied = copied_tokens(text, ngram, count);
    CHECK(copied == std::vector<int>(grown.begin() + std::ssize(text), grown.end()));
    (copied.empty() ? none : some) += 1;
  }
  CHECK(none > 20);
  CHECK(some > 20);
}

TEST_CASE("no token is copied for a count of 0 or below, whatever the text is") {
  CHECK(copied_tokens(std::vector<int>{1, 1, 1}, 2, 0).empty());
  CHECK(copied_tokens(std::vector<int>{1, 1, 1}, 2, -1).empty());
  CHECK(copied_tokens(std::vector<int>{1, 1, 1}, 2, 2) == std::vector<int>{1, 1});
}

}  // namespace
}  // namespace staircase
