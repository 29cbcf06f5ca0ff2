// A beam search over more logits than an int can number. With the log-probabilities they would take 17 GB;
// here all rows share the memory of one, and so do all vectors of a whole vocabulary.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "beam_search.h"
#include "tests/huge_model.h"
#include "tests/step.h"

namespace {

std::array<void*, 2 * staircase::kHugeRows> shared_vectors{};

}  // namespace

// Inlined, GCC takes free() for the wrong end of an operator new.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (bytes != staircase::kHugeRowBytes) {
    if (void* const memory = std::malloc(std::max<std::size_t>(bytes, 1))) return memory;
    throw std::bad_alloc();
  }
  static const staircase::SharedRow row;
  void** const free = std::ranges::find(shared_vectors, nullptr);
  if (free == shared_vectors.end()) throw std::bad_alloc();
  return *free = row.map(1);
}

[[gnu::noinline]] void operator delete(void* memory) noexcept {
  void** const shared = std::ranges::find(shared_vectors, memory);
  if (memory == nullptr || shared == shared_vectors.end()) return std::free(memory);
  staircase::SharedRow::unmap(std::exchange(*shared, nullptr), 1);
}

[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

using namespace staircase;

TEST_CASE("a beam search may have more logits than an int can number") {
  Model model = huge_model(true);
  RowOptions options;
  options.stopping = {.max_new_tokens = 2, .ignore_eos = true};
  NoCache none;
  const std::vector<Beam> beams =
      beam_search(model, tales_tokenizer(), {0}, options, {.num_beams = kHugeRows}, none, [](const Beam&) {});
  // A token costs its id: two of them have the sum 0 in one way, 1 in two ways, and so on.
  std::vector<int> sums;
  for (int sum = 0; std::ssize(sums) < kHugeRows; ++sum) sums.insert(sums.end(), sum + 1, sum);
  REQUIRE(beams.size() == kHugeRows);
  for (int b = 0; b < kHugeRows; ++b) CHECK(beams[b].tokens[1] + beams[b].tokens[2] == sums[b]);
}
