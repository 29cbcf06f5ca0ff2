// A scheduler for servers that combines those of steps 120 and 121 with the beam search of step 46.
#pragma once

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "beam_search.h"
#include "common/decoding/model_drafts.h"

namespace staircase {

/// Serves urgent texts first, drafts with a smaller model or from the text itself, and runs beam searches.
/// Each beam is a text of its own with one new token, as in vLLM. So beams share passes with other texts, and
/// wait or are preempted like them. The cache still holds their tokens: a beam's first child continues its
/// row, and its other children share its full blocks.
class TurnScheduler : public ModelDraftingScheduler {
 public:
  TurnScheduler(Engine& engine, const Tokenizer& tokenizer, int slots, const PrefillOptions& prefill,
                OnRowToken on_token, OnFinished on_finished)
      : ModelDraftingScheduler(
            engine, tokenizer, slots, prefill,
            [this](int number, const Token& token) {
              if (!search_of(number)) report_token_(number, token);
            },
            [this](int number, Generation text) {
              if (!search_of(number)) return report_end_(number, std::move(text));
              if (--search_of(number)->missing == 0) continue_search(number);
            }),
        report_token_(std::move(on_token)),
        report_end_(std::move(on_finished)) {}

  /// Submit the num_beams texts of a search with consecutive numbers. Their tokens are reported when the
  /// search ends, the best text first. A text that the search does not find has no tokens.
  void submit(int number, std::vector<int> prompt, const RowOptions& options) {
    if (!options.extras.search) return ModelDraftingScheduler::submit(number, std::move(prompt), options);
    if (search_of(number)) return;  // another text of a known search
    Search& search = searches_[number] = {options};
    if (options.stopping.max_new_tokens == 0) return finish(number);
    search.growing.push_back({std::move(prompt), StopFilter(options.stop, tokenizer_)});
    search.growing[0].edit = options.edit_raw_logits;
    submit_beams(number, search);
  }

  void cancel(int number) {
    if (const auto search = find(number); search != searches_.end()) {
      for (int beam = 0; beam < search->second.beams(); ++beam)
        ModelDraftingScheduler::cancel(search->first + beam);
      searches_.erase(search);
    }
    ModelDraftingScheduler::cancel(number);
  }

  bool idle() const { return searches_.empty() && ModelDraftingScheduler::idle(); }

  void pass() override {
    for (const int first : std::exchange(chosen_, {})) {
      if (searches_.contains(first)) submit_beams(first, searches_.at(first));
    }
    ModelDraftingScheduler::pass();
  }

 protected:
  Feed feed(int r, int& budget) override {
    if (Search* const search = search_of(rows_[r].number))
      search->options.extras.turn = rows_[r].options.extras.turn;
    return ModelDraftingScheduler::feed(r, budget);
  }

 private:
  struct Search {
    RowOptions options;
    std::vector<Beam> growing = {}, ended = {};
    std::vector<float> logits = {};  // [growing.size(), vocab_size] once complete
    int missing = 0;                 // beams that still wait for their logits

    int beams() const { return options.extras.search->num_beams; }
  };

  /// The search that the text `number` belongs to.
  std::map<int, Search>::iterator find(int number) {
    const auto after = searches_.upper_bound(number);
    if (after == searches_.begin()) return searches_.end();
    const auto before = std::prev(after);
    return number < before->first + before->second.beams() ? before : searches_.end();
  }
  Search* search_of(int number) {
    const auto search = find(number);
    return search == searches_.end() ? nullptr : &search->second;
  }

  /// Each beam keeps the turn of the search, so it overtakes texts that arrived later.
  void submit_beams(int first, Search& search) {
    search.missing = static_cast<int>(search.growing.size());
    for (int b = 0; b < std::ssize(search.growing); ++b) {
      RowOptions one;
      one.stopping.max_new_tokens = 1;
      one.extras = search.options.extras;
      one.edit_raw_logits = [&search, b](std::span<float> logits, std::span<const int>) {
        search.logits.resize(search.growing.size() * logits.size());
        std::ranges::copy(logits, search.logits.begin() + b * std::ssize(logits));
      };
      search.growing[b].row = b;
      ModelDraftingScheduler::submit(first + b, search.growing[b].tokens, one);
      if (one.extras.turn) into_turn();
    }
  }

  /// Keeps the queue sorted: the beam at its end overtakes all texts with a later turn or none yet.
  void into_turn() {
    Row beam = std::move(waiting_.back());
    waiting_.pop_back();
    const auto later = [&](const Row& row) {
      return row.options.extras.turn.value_or(std::numeric_limits<std::int64_t>::max()) >
             *beam.options.extras.turn;
    };
    waiting_.insert(std::ranges::find_if(waiting_, later), std::move(beam));
  }

  void continue_search(int number) {
    const auto place = find(number);
    Search& search = place->second;
    search.growing = continue_beams(search.growing, search.logits, search.ended, engine_.ends(),
                                    search.options, *search.options.extras.search, [](const Beam&) {});
    if (search.growing.empty()) return finish(place->first);
    chosen_.push_back(place->first);  // submitted later: waiting texts preempt others
  }

  void finish(int first) {
    const Search search = std::move(searches_.extract(first).mapped());
    for (int rank = 0; rank < search.beams(); ++rank) {
      Generation text;
      if (rank < std::ssize(search.ended)) {
        const Beam& beam = search.ended[rank];
        for (const Token& token : beam.chosen) report_token_(first + rank, token);
        text = {beam.tokens, *beam.finished};
      }
      report_end_(first + rank, std::move(text));
    }
  }

  const OnRowToken report_token_;
  const OnFinished report_end_;
  std::map<int, Search> searches_;  // by the first number of each search's texts
  std::vector<int> chosen_;         // the searches whose beams join in the next pass
};

}  // namespace staircase
