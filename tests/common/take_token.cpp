// Choosing a token without reading the logits gives the token that reading them gives, and is done only where
// no option needs another logit than the largest.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/decoding/engine.h"
#include "common/text/tokenizer.h"

namespace staircase {
namespace {

const std::filesystem::path kSource = STAIRCASE_SOURCE_TREE;

/// In the last pair, both are equal once divided by 3.
const std::vector<float> kRows[] = {{0.0f, 3.0f, -1.0f, 3.0f, 2.9f},
                                    {-4.0f, -5.0f, -4.5f, -6.0f, -7.0f},
                                    {0.0f, 0.99999994f, 1.0f, 0.5f, 0.2f}};

/// The row that has chosen one token of `text` already, under options that `set` has changed.
Row row_with(const std::function<void(RowOptions& options)>& set) {
  static const Tokenizer tokenizer = Tokenizer::load(kSource / "models/tales-1m");
  RowOptions options;
  set(options);
  Row row{0, {1, 3, 4}, options, std::mt19937(7), StopFilter(options.stop, tokenizer)};
  row.new_tokens = 1;
  return row;
}

/// Whether the row reads other logits than the largest; the token and the end must be those from all logits.
bool reads(const std::function<void(RowOptions& options)>& set) {
  bool any = false;
  const EndTokens ends = 4;
  for (const std::vector<float>& logits : kRows) {
    Row own = row_with(set), want = own;
    const std::vector<std::int32_t> largest = {argmax(logits)};
    bool read = false;
    const Token token =
        take_token(own, Logits(largest, 0, logits.size(), {[&](std::size_t, std::size_t, bool) {
                                 read = true;
                                 return std::span<const float>(logits);
                               }}),
                   ends);
    const Token expected = take_token(want, std::span<const float>(logits), ends);
    CHECK(token.id == expected.id);
    CHECK(token.text == expected.text);
    CHECK(token.candidates.size() == expected.candidates.size());
    CHECK(token.logprobs.has_value() == expected.logprobs.has_value());
    CHECK(own.tokens == want.tokens);
    CHECK(own.new_tokens == want.new_tokens);
    CHECK(own.finished == want.finished);
    any = any || read;
  }
  return any;
}

TEST_CASE("a greedy row reads no logits, wherever its text may end") {
  CHECK_FALSE(reads([](RowOptions&) {}));
  CHECK_FALSE(reads([](RowOptions& o) { o.stopping = {.max_new_tokens = 2, .ignore_eos = true}; }));
  CHECK_FALSE(reads([](RowOptions& o) { o.stop.sequences = {"the", "a"}; }));
  CHECK_FALSE(reads([](RowOptions& o) { o.length.min_new_tokens = 1; }));  // and has one
  CHECK_FALSE(reads([](RowOptions& o) { o.sampling.seed = 5; }));
}

TEST_CASE("a row whose temperature leaves one token reads no logits, drawn or not") {
  for (const bool drawn : {false, true}) {
    CHECK_FALSE(reads([&](RowOptions& o) {
      o.sampling.do_sample = drawn;
      o.sampling.temperature = 0.0f;
      o.sampling.top_k = 3;
      o.sampling.top_p = 0.5f;
    }));
  }
}

TEST_CASE("a row reads the logits if any option needs one besides the largest") {
  CHECK(reads([](RowOptions& o) { o.sampling.do_sample = true; }));
  CHECK(reads([](RowOptions& o) { o.sampling.temperature = 3.0f; }));
  CHECK(reads([](RowOptions& o) { o.sampling.top_k = 3; }));
  CHECK(reads([](RowOptions& o) { o.sampling.top_p = 0.3f; }));
  CHECK(reads([](RowOptions& o) { o.sampling.presence_penalty = 2.0f; }));
  CHECK(reads([](RowOptions& o) { o.sampling.frequency_penalty = -2.0f; }));
  CHECK(reads([](RowOptions& o) { o.sampling.repetition_penalty = 3.0f; }));
  CHECK(reads([](RowOptions& o) { o.sampling.show_candidates = 1; }));
  CHECK(reads([](RowOptions& o) { o.length.min_new_tokens = 2; }));
  CHECK(reads([](RowOptions& o) { o.logprobs.count = 0; }));
  CHECK(reads([](RowOptions& o) {
    o.edit_raw_logits = [](std::span<float> logits, std::span<const int>) { logits[1] = kMasked; };
  }));
  CHECK(reads(
      [](RowOptions& o) { o.edit_final_logits = [](std::span<float> logits) { logits[1] = kMasked; }; }));
}

TEST_CASE("logprobs are those of the model, whatever the options make of its logits") {
  const std::vector<float> logits = {0.0f, 3.0f, -1.0f, 3.5f, 2.9f};
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  Row row = row_with([](RowOptions& o) {
    o.logprobs.count = 5;
    o.sampling.temperature = 0.5f;
    o.edit_raw_logits = [](std::span<float> edited, std::span<const int>) { edited[3] = kMasked; };
  });
  const Token token = take_token(row, std::span<const float>(logits), 4);
  REQUIRE(token.logprobs);
  CHECK(token.id == 1);
  CHECK(static_cast<double>(*token.logprobs->own) == doctest::Approx(3.0 - std::log(sum)));
  CHECK(token.logprobs->likeliest.front().token_id == 3);  // which was forbidden
}

TEST_CASE("the largest logit of each row is known without reading any") {
  const std::vector<float> two = {0.0f, 1.0f, 2.0f, 5.0f, 4.0f, 5.0f};
  const std::vector<std::int32_t> largest = {2, 0};
  int reads = 0;
  const LogitsUse use{[&](std::size_t first, std::size_t count, bool expected) {
    CHECK(expected);
    ++reads;
    return std::span<const float>(two).subspan(first, count);
  }};
  const Logits plain(two), watched(std::span<const float>(two), use), on_device(largest, 0, 3, use);
  for (const Logits& logits : {plain, watched, on_device}) {
    CHECK(logits.size() == 6);
    CHECK(logits.subspan(0, 3).argmax() == 2);
    CHECK(logits.subspan(3, 3).argmax() == 0);
  }
  CHECK(reads == 0);
  for (const Logits& logits : {plain, watched, on_device}) {
    const std::span<const float> last = logits.subspan(3, 3);
    CHECK(last.data() == two.data() + 3);
    CHECK(last.size() == 3);
  }
  CHECK(reads == 2);
}

/// An engine that takes no drafts.
class PlainEngine : public Engine {
 public:
  const EndTokens& ends() const override { return ends_; }
  std::span<const int> prepare(const Row& row, int) override { return row.tokens; }
  Logits forward(std::span<const std::span<const int>>) override { return Logits(std::span<const float>()); }
  void move_row(int, int) override {}
  void clear_row(int) override {}

 private:
  EndTokens ends_ = 0;
};

TEST_CASE("an engine that takes no drafts refuses the first of any row") {
  PlainEngine engine;
  DelegatingEngine watched(engine);
  CHECK_NOTHROW(watched.expect({}));
  CHECK_NOTHROW(watched.expect({0, 0}));
  for (const std::vector<int>& drafts : {std::vector<int>{1}, {0, 1}, {2, 0}}) {
    CHECK_THROWS_AS(engine.expect(drafts), std::logic_error);
    CHECK_THROWS_AS(watched.expect(drafts), std::logic_error);
  }
}

}  // namespace
}  // namespace staircase
