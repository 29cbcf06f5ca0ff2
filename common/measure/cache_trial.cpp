#include "common/measure/cache_trial.h"

#include <algorithm>
#include <chrono>

#include "common/base/error.h"
#include "common/decoding/probabilities.h"

namespace staircase {
namespace {

constexpr int kTurns = 5;
constexpr std::size_t kTimed = 32;  // tokens per turn

/// Adds to `sums` the divergence of each cache from the first one after each token of a window. Afterwards
/// each cache holds the window.
void add_divergences(Model& model, const std::vector<TriedCache>& caches, std::span<const int> window,
                     std::vector<double>& sums) {
  std::vector<float> exact;
  for (const TriedCache& tried : caches) tried.cache->truncate(0, 0);
  for (std::size_t i = 0; i < window.size(); ++i) {
    for (std::size_t way = 0; way < caches.size(); ++way) {
      const std::vector<float> found = softmax(model.next_logits(window.subspan(i, 1), *caches[way].cache));
      if (way == 0) exact = found;
      sums[way] += kl_divergence(exact, found);
    }
  }
}

/// The tokens/s for the last tokens of a window, which the cache holds.
double rate(Model& model, KvCache& cache, std::span<const int> window) {
  using Clock = std::chrono::steady_clock;
  const std::size_t count = std::min(kTimed, window.size()), first = window.size() - count;
  cache.truncate(0, static_cast<int>(first));
  for (std::size_t i = cache.length(0); i < first; ++i) model.next_logits(window.subspan(i, 1), cache);
  const auto start = Clock::now();
  for (std::size_t i = first; i < window.size(); ++i) model.next_logits(window.subspan(i, 1), cache);
  return static_cast<double>(count) / std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Table compare_caches(Model& model, const std::vector<TriedCache>& caches, std::span<const int> text) {
  if (text.empty()) throw UsageError("comparing caches needs a text of at least one token");
  const auto context = static_cast<std::size_t>(model.config().n_positions);
  std::vector<double> sums(caches.size());
  for (std::size_t first = 0; first < text.size(); first += context) {
    add_divergences(model, caches, text.subspan(first, std::min(context, text.size() - first)), sums);
  }
  // The longest window.
  const std::span<const int> window = text.first(std::min(context, text.size()));
  std::vector<std::size_t> timed;
  for (std::size_t way = 0; way < caches.size(); ++way) {
    if (!caches[way].is_timed) continue;
    timed.push_back(way);
    caches[way].cache->truncate(0, 0);
    model.next_logits(window, *caches[way].cache);
  }
  const auto rates = take_turns(timed.size(), kTurns, [&](std::size_t i, bool) {
    return rate(model, *caches[timed[i]].cache, window);
  });
  Table table({"cache", "MiB", "KL mnats", "tokens/s", "speed-up"});
  for (std::size_t way = 0, i = 0; way < caches.size(); ++way) {
    const TriedCache& tried = caches[way];
    std::vector<Table::Cell> row{tried.name, static_cast<double>(tried.cache->use().bytes) / (1 << 20),
                                 1000 * sums[way] / static_cast<double>(text.size()), "–", "–"};
    if (tried.is_timed) {
      row[3] = spread(rates[i]).median;
      row[4] = speedup(rates[i], rates[0]).median;
      ++i;
    }
    table.add(row);
  }
  return table;
}

}  // namespace staircase
