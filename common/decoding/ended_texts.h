// Keeps the cache rows of texts that have ended, so a conversation continues at its very last token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/decoding/windowed_kv_cache.h"
#include "paged_engine.h"

namespace staircase {

/// The number of blocks that the option sets, or enough for a whole context in each slot.
inline int pool_size(const PagedOptions& paged, const Model& model, int slots) {
  return paged.blocks ? *paged.blocks : product(slots, blocks_for(model.config().n_positions));
}

/// Other texts find full blocks, but the last block of a text is rarely full. If the row were lost, the next
/// turn of a conversation would recompute up to kBlockSize - 1 known tokens, half the length of a typical
/// question. Step 94 teaches this for one conversation.
class EndedTexts : public PagedEngine {
 public:
  static constexpr int kMaxKept = 256;

  /// The batch uses the first `slots` rows of the cache; each other row can keep an ended text.
  EndedTexts(Model& model, PagedKvCache& cache, int slots, bool prefix_caching)
      : PagedEngine(model, cache, prefix_caching),
        model_(model),
        cache_(cache),
        fed_(slots),
        adapters_(slots, kNoAdapter),
        searches_(slots) {
    for (int row = slots; prefix_caching && row < cache.rows(); ++row) empty_.push_back(row);
  }

  /// Evicts ended texts first, so no growing text loses its blocks while they hold some.
  bool make_room(const Row& row, int r) override {
    const bool joins = cache_.blocks(r) == 0;
    const double joined_before = joined();
    adapters_[r] = row.options.extras.adapter;
    searches_[r] = row.options.extras.search != nullptr;
    while (!make_keyed_room(row, r)) {
      if (!forget_oldest()) return false;
    }
    if (!joins) return true;
    const int shared = cache_.length(r);
    std::vector<int> keys = keys_of(row.tokens, r);
    if (continue_ended(keys, r)) {
      PagedEngine::make_room(row, r);  // succeeds: the row has more blocks now
      if (joined() > joined_before) more_found_ += cache_.length(r) - shared;
    }
    keys.resize(static_cast<std::size_t>(cache_.length(r)));
    fed_[r] = std::move(keys);
    return true;
  }

  Logits forward(std::span<const std::span<const int>> sequences) override {
    model_.use_adapters({adapters_.begin(), adapters_.begin() + std::ssize(sequences)});
    const Logits logits = ModelEngine::forward(sequences);
    for (int r = 0; r < std::ssize(sequences); ++r) remember(r, certain(sequences[r], r));
    return logits;
  }

  void keep(int r, std::span<const int> drafts, int kept) override {
    PagedEngine::keep(r, drafts, kept);
    remember(r, drafts.first(kept));
  }

  void move_row(int from, int to) override {
    PagedEngine::move_row(from, to);
    std::swap(fed_[from], fed_[to]);
    std::swap(adapters_[from], adapters_[to]);
    std::swap(searches_[from], searches_[to]);
  }

  void clear_row(int r) override {
    // If the last block is full, all blocks can be found without the row.
    if (cache_.length(r) % kBlockSize > 0 || (keeps_whole_ && cache_.length(r) > 0)) keep(r);
    PagedEngine::clear_row(r);
    adapters_[r] = kNoAdapter;
  }

  double found() const { return PagedEngine::found() + more_found_; }

  /// Whether the cache has rows for ended texts.
  bool keeps_texts() const { return !ended_.empty() || !empty_.empty(); }

  /// From now on, `kept` also returns texts whose last block is full.
  void keep_whole() { keeps_whole_ = true; }

  /// An ended text and the cache row that holds it.
  struct Kept {
    int row;
    std::vector<int> tokens;  // written without an adapter
  };

  /// The kept texts, oldest first, except beams and texts written with an adapter.
  std::vector<Kept> kept() const {
    std::vector<Kept> texts;
    for (const Ended& one : ended_) {
      const bool is_plain = one.tokens.empty() || one.tokens.back() < model_.config().vocab_size;
      if (!one.is_beam && is_plain) texts.push_back({one.row, one.tokens});
    }
    return texts;
  }

  /// Keeps a text that another engine has kept, if `take` can load it into an empty cache row. Returns
  /// whether it could.
  bool take_back(const std::vector<int>& tokens, const std::function<bool(int row)>& take) {
    const std::size_t most = static_cast<std::size_t>(model_.config().n_positions);
    if (empty_.empty() || tokens.empty() || tokens.size() > most || !take(empty_.back())) return false;
    ended_.push_back({empty_.back(), tokens, false});
    empty_.pop_back();
    return true;
  }

 private:
  struct Ended {
    int row;  // row of the cache
    std::vector<int> tokens;
    bool is_beam;
  };

  /// Adds the tokens that row r has fed to its text, so other texts may share them.
  void remember(int r, std::span<const int> tokens) {
    const std::vector<int> keys = keys_of(tokens, r);
    fed_[r].insert(fed_[r].end(), keys.begin(), keys.end());
    cache_.remember(r, keys);
  }

  /// The numbers under which the cache finds these tokens of row r. Attention's keys and values depend on the
  /// adapter, so each adapter has its own numbers for the whole vocabulary.
  std::vector<int> keys_of(std::span<const int> tokens, int r) const {
    const int first = (adapters_[r] - kNoAdapter) * model_.config().vocab_size;
    std::vector<int> keys(tokens.begin(), tokens.end());
    for (int& key : keys) key += first;
    return keys;
  }

  /// PagedEngine::make_room, but it looks up a joining text by keys_of() instead of its tokens.
  bool make_keyed_room(const Row& row, int r) {
    if (adapters_[r] == kNoAdapter || cache_.blocks(r) > 0) return PagedEngine::make_room(row, r);
    Row keyed = row;
    keyed.tokens = keys_of(row.tokens, r);
    return PagedEngine::make_room(keyed, r);
  }

  /// Moves to row r the longest ended text that `text` begins with, unless r already holds as much of it.
  bool continue_ended(std::span<const int> text, int r) {
    auto longest = ended_.end();
    auto length = static_cast<std::size_t>(cache_.length(r));
    for (auto one = ended_.begin(); one != ended_.end(); ++one) {
      // The last token of `text` must be computed, because the logits after it are needed.
      if (one->tokens.size() <= length || one->tokens.size() >= text.size()) continue;
      if (!std::equal(one->tokens.begin(), one->tokens.end(), text.begin())) continue;
      longest = one;
      length = one->tokens.size();
    }
    if (longest == ended_.end()) return false;
    cache_.truncate(r, 0);
    cache_.swap_rows(r, longest->row);
    empty_.push_back(longest->row);
    ended_.erase(longest);
    return true;
  }

  /// Moves row r to a row for ended texts, if there is one, and leaves it empty. Beams are evicted before
  /// other texts: a search ends a text with each token, and most of these have no child.
  void keep(int r) {
    const auto same = std::ranges::find_if(ended_, [&](const Ended& one) { return one.tokens == fed_[r]; });
    if (same != ended_.end()) forget(same);
    if (empty_.empty() && !forget_oldest()) return;
    cache_.truncate(r, cache_.length(r));  // frees blocks reserved in advance
    const auto place = searches_[r] ? std::ranges::find(ended_, false, &Ended::is_beam) : ended_.end();
    cache_.swap_rows(r, empty_.back());
    ended_.insert(place, {empty_.back(), std::move(fed_[r]), searches_[r] != 0});
    empty_.pop_back();
  }

  bool forget_oldest() {
    if (ended_.empty()) return false;
    forget(ended_.begin());
    return true;
  }

  /// Evicts an ended text. Its full blocks can still be found until another text needs them.
  void forget(std::deque<Ended>::iterator one) {
    cache_.truncate(one->row, 0);
    empty_.push_back(one->row);
    ended_.erase(one);
  }

  Model& model_;
  PagedKvCache& cache_;
  std::vector<std::vector<int>> fed_;   // the keys of the tokens that each row of the batch has in the cache
  std::vector<std::int32_t> adapters_;  // of each row of the batch
  std::vector<char> searches_;          // whether each row is a beam
  std::deque<Ended> ended_;             // the oldest first
  std::vector<int> empty_;              // rows for more ended texts
  bool keeps_whole_ = false;
  double more_found_ = 0.0;  // cached tokens of joining texts beyond full blocks
};

}  // namespace staircase
