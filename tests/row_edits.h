// The check of what a program may add to a row's chain of options. Include it after the step's files.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "tests/step.h"

namespace staircase {

/// The first edit comes before top-k, which keeps the token that it lifts; the last one comes after it. Both
/// see all logits, and the first also what the row has chosen so far.
inline void check_row_edits() {
  const std::vector<float> logits = {0.0f, 5.0f, 1.0f, 4.0f, 2.0f};
  RowOptions options;
  options.sampling.top_k = 2;
  options.stopping.ignore_eos = true;
  std::vector<std::vector<int>> chosen;
  std::vector<std::ptrdiff_t> kept;
  options.edit_raw_logits = [&](std::span<float> all, std::span<const int> text) {
    chosen.emplace_back(text.begin(), text.end());
    all[2] += 100.0f;
  };
  options.edit_final_logits = [&](std::span<float> all) {
    kept.push_back(std::ranges::count_if(all, [](float one) { return one != kMasked; }));
    all[chosen.size() == 1 ? 1 : 2] = kMasked;
  };
  Row row{0, {3, 3}, options, {}, StopFilter({}, tales_tokenizer())};
  CHECK(take_token(row, logits, {}).id == 2);
  CHECK(take_token(row, logits, {}).id == 1);
  CHECK(take_token(row, logits, {}).id == 1);
  CHECK(chosen == std::vector<std::vector<int>>{{}, {2}, {2, 1}});
  CHECK(kept == std::vector<std::ptrdiff_t>(3, 2));
}

}  // namespace staircase
