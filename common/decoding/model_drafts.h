// Draft models for a batch: all rows that draft go through the draft model in the same passes.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/model/model.h"
#include "drafts.h"
#include "ring_kv_cache.h"

namespace staircase {

/// Proposes tokens for the rows of a batch.
class RowDrafter {
 public:
  virtual ~RowDrafter() = default;

  /// Proposes up to counts[r] tokens that may follow the text of row r; `rows` is the whole batch. A row may
  /// hold any text: the part it shares with the last text of the same number need not be recomputed, and
  /// rejected drafts are dropped.
  virtual std::vector<std::vector<int>> propose(std::span<const Row> rows, std::span<const int> counts) = 0;
};

/// A smaller model with the vocabulary of the target (Model::fit_vocabulary). It proposes its most likely
/// token under the row's penalties, one token per row in each pass.
class RowDraftModel : public RowDrafter {
 public:
  /// Serves up to `slots` rows at a time, each with room for the draft model's whole context, but in a layer
  /// with a window only for what later tokens see.
  RowDraftModel(Model& model, int slots)
      : model_(model), cache_(model, slots, Model::kPart), places_(slots) {}

  /// Memory that its cache uses.
  CacheUse use() const { return cache_.use(); }

  std::vector<std::vector<int>> propose(std::span<const Row> rows, std::span<const int> counts) override {
    const std::vector<int> places = find_places(rows);
    std::vector<std::vector<int>> drafts(rows.size());
    while (true) {
      std::vector<std::span<const int>> fed(places_.size());
      bool drafts_more = false;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        std::vector<int>& text = places_[places[r]].text;
        if (std::ssize(drafts[r]) >= counts[r] || std::ssize(text) > model_.config().n_positions) continue;
        fed[places[r]] = std::span(text).subspan(cache_.length(places[r]));
        drafts_more = true;
      }
      if (!drafts_more) return drafts;
      const Logits logits = model_.lazy_logits(fed, cache_);  // [places, vocab_size]
      const std::size_t vocab_size = logits.size() / fed.size();
      for (std::size_t r = 0; r < rows.size(); ++r) {
        if (fed[places[r]].empty()) continue;
        std::vector<int>& text = places_[places[r]].text;
        const Logits own = logits.subspan(places[r] * vocab_size, vocab_size);
        drafts[r].push_back(likeliest(own, text, rows[r].options.sampling));
        text.push_back(drafts[r].back());
      }
    }
  }

 private:
  /// A cache row and the number of its text. Places stay while the rows of the batch move.
  struct Place {
    std::optional<int> number = {};
    std::vector<int> text = {};  // the tokens in the cache, and possibly more
  };

  /// Finds each row's place. Its cache row keeps only the longest common prefix with the row's text, without
  /// the text's last token.
  std::vector<int> find_places(std::span<const Row> rows) {
    const auto is_of = [](const Row& row) {
      return [&row](const Place& place) { return place.number == row.number; };
    };
    for (Place& place : places_) {
      if (std::ranges::none_of(rows, [&](const Row& row) { return place.number == row.number; }))
        place.number.reset();
    }
    std::vector<int> found;
    for (const Row& row : rows) {
      auto place = std::ranges::find_if(places_, is_of(row));
      if (place == places_.end())
        place = std::ranges::find_if(places_, [](const Place& one) { return !one.number; });
      found.push_back(static_cast<int>(place - places_.begin()));
      const auto shared = std::ranges::mismatch(place->text, row.tokens).in1 - place->text.begin();
      const auto longest = std::min<std::ptrdiff_t>(shared, std::ssize(row.tokens) - 1);
      cache_.truncate(found.back(), std::min(cache_.length(found.back()), static_cast<int>(longest)));
      *place = {row.number, row.tokens};
    }
    return found;
  }

  static int likeliest(const Logits& logits, std::span<const int> text, const SamplingOptions& options) {
    const bool penalized = options.presence_penalty != 0.0f || options.frequency_penalty != 0.0f ||
                           options.repetition_penalty != 1.0f;
    if (!penalized) return logits.argmax();
    std::vector<float> changed = copy_of(std::span<const float>(logits));
    process(changed, text, options);
    return argmax(changed);
  }

  Model& model_;
  RingKvCache cache_;
  std::vector<Place> places_;
};

/// A DraftingScheduler whose rows draft with a RowDrafter if it has one, up to lookup.num_tokens each.
/// Drafting counts as time of the pass, so a row drafts as many tokens as pay off for both models.
class ModelDraftingScheduler : public DraftingScheduler {
 public:
  using DraftingScheduler::DraftingScheduler;
  RowDrafter* drafter = nullptr;  ///< must outlive the scheduler; without it, rows draft by look-up

 protected:
  std::vector<int> propose(int r, int count) override {
    if (!drafter) return DraftingScheduler::propose(r, count);
    if (proposed_.empty()) proposed_ = drafter->propose(rows_, counts_that_pay());
    if (r >= std::ssize(proposed_)) return {};  // the row joined in this pass
    std::vector<int>& own = proposed_[r];
    own.resize(std::min<std::size_t>(own.size(), std::max(count, 0)));
    return own;
  }

  void grow(std::span<const Feed> feeds) override {
    proposed_.clear();
    if (drafter) read_prompts(feeds);
    DraftingScheduler::grow(feeds);
  }

 private:
  /// How many drafts pay off for each growing row. A draft model always proposes something, and the rate
  /// could not learn the cost of drafts from passes that are all alike. So one pass in kPassesToCompare has
  /// no drafts, and only one row drafts until the rate knows a cost.
  std::vector<int> counts_that_pay() {
    std::vector<int> counts(rows_.size());
    if (passes_++ % kPassesToCompare == 0) return counts;
    const bool is_known = rate.slope() > 0.0;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      const Row& row = rows_[r];
      if (row.new_tokens == 0) continue;
      counts[r] =
          std::min(lookup.num_tokens.value_or(0), row.options.stopping.max_new_tokens - row.new_tokens - 1);
      while (counts[r] > 0 && !rate.pays(row.options.extras.chance, counts[r] - 1)) --counts[r];
      if (!is_known && counts[r] > 0) break;
    }
    return counts;
  }

  /// The draft model reads a prompt in the same pass as the target; the rate does not count this time.
  void read_prompts(std::span<const Feed> feeds) {
    std::vector<int> counts;
    for (std::size_t r = 0; r < feeds.size(); ++r)
      counts.push_back(lookup.num_tokens && feeds[r].completes && rows_[r].new_tokens == 0 ? 1 : 0);
    if (std::ranges::count(counts, 1) > 0) drafter->propose(rows_, counts);
  }

  static constexpr int kPassesToCompare = 16;
  int passes_ = 0;                          // passes whose rows might draft
  std::vector<std::vector<int>> proposed_;  // for the rows of this pass
};

}  // namespace staircase
