// Speculation in a batch: each row drafts as many tokens as pay off, and one pass verifies all rows.
#pragma once

#include "common/decoding/copied_tokens.h"
#include "common/decoding/pass_rate.h"
#include "priorities.h"

namespace staircase {

/// Rows draw tokens as they would without drafts, and keep a draft if they draw the same token. This equals
/// verify() with q = 1: a draft stays with probability p, and its replacement is drawn from the other tokens.
/// So for each seed, a text is the same as alone.
class DraftingScheduler : public PriorityScheduler {
 public:
  using PriorityScheduler::PriorityScheduler;
  LookupOptions lookup;
  PassRate rate;
  std::int64_t drafted = 0, accepted = 0;  ///< tokens, summed over all texts

 protected:
  /// A growing row also feeds its drafts.
  Feed feed(int r, int& budget) override {
    if (r == 0) rate.begin_pass();
    drafts_.resize(rows_.size());
    drafts_[r].clear();
    if (rows_[r].new_tokens > 0) draft(rows_[r], r);
    return Scheduler::feed(r, budget);
  }

  void grow(std::span<const Feed> feeds) override {
    std::vector<std::span<const int>> fed;
    std::vector<int> counts;
    for (int r = 0; r < std::ssize(feeds); ++r) {
      fed.push_back(feeds[r].tokens);
      counts.push_back(static_cast<int>(drafts_[r].size()));
    }
    const std::vector<std::vector<Logits>> logits = forward_drafts(engine_, fed, counts);
    int tokens = 0, wanted = 0, grown = 0;
    for (int r = 0; r < std::ssize(feeds); ++r) {
      tokens += static_cast<int>(fed[r].size());
      wanted += 1 + counts[r];
      if (feeds[r].completes) grown += take(r, logits[r]);
    }
    if (tokens == wanted) rate.end_pass(tokens, grown);  // the pass fed no prompt
  }

  /// Returns up to `count` tokens that may follow row r.
  virtual std::vector<int> propose(int r, int count) {
    return copied_tokens(rows_[r].tokens, lookup.ngram, count);
  }

 private:
  void draft(Row& row, int r) {
    row.options.extras.chance += 0.005 * (1.0 - row.options.extras.chance);  // so drafting resumes eventually
    const int left = row.options.stopping.max_new_tokens - row.new_tokens - 1;
    int count = std::min(lookup.num_tokens.value_or(0), left);
    while (count > 0 && !rate.pays(row.options.extras.chance, count - 1)) --count;
    for (const int token : propose(r, count)) {
      row.tokens.push_back(token);
      if (!engine_.make_room(row, r)) return row.tokens.pop_back();
      drafts_[r].push_back(row.tokens.back());
    }
  }

  /// Takes tokens of a row until one differs from its draft. Returns how many tokens it took.
  int take(int r, std::span<const Logits> logits) {
    Row& row = rows_[r];
    const std::vector<int>& drafts = drafts_[r];
    row.tokens.resize(row.tokens.size() - drafts.size());
    int kept = 0, taken = 0;
    for (bool same = true; same && !row.finished; kept += same) {
      on_token_(row.number, take_token(row, logits[taken++], engine_.ends()));
      same = kept < std::ssize(drafts) && row.tokens.back() == drafts[kept];
      if (kept < std::ssize(drafts)) row.options.extras.chance += 0.2 * (same - row.options.extras.chance);
    }
    engine_.keep(r, drafts, kept);
    drafted += std::ssize(drafts);
    accepted += kept;
    if (row.finished) on_finished_(row.number, {std::move(row.tokens), *row.finished});
    return taken;
  }

  std::vector<std::vector<int>> drafts_;  // of each row in this pass
};

}  // namespace staircase
