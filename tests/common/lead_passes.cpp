#include "common/model/lead_passes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "common/base/error.h"
#include "common/decoding/drafted_engine.h"
#include "common/model/model_folder.h"
#include "common/parallel/thread_ranks.h"
#include "common/parallel/wait_limit.h"
#include "drafts.h"
#include "static_kv_cache.h"
#include "tests/error_message.h"

namespace staircase {
namespace {

const std::filesystem::path& folder() {
  static const std::filesystem::path found = find_model("tales-llama-1m");
  return found;
}

/// What rank 0 makes of a model that `size` ranks share.
template <typename Result>
Result led(int size, const std::function<Result(Model& model)>& work, std::vector<int> contexts = {}) {
  Result result{};
  run_as_threads(size, [&](Ranks& ranks) {
    Model model = Model::load(folder(), make_cpu_device(1), DType::kFloat32, ranks);
    if (!contexts.empty()) model.limit_context(contexts[static_cast<std::size_t>(ranks.rank())]);
    lead_passes(model, ranks, [&] { result = work(model); });
  });
  return result;
}

using Texts = std::map<int, std::vector<int>>;

/// Eight texts through a scheduler with too few blocks for three at a time: rows move, blocks are shared,
/// given back and taken again, and drafts are fed. The third is cancelled.
Texts served(Model& model) {
  const Tokenizer tokenizer = Tokenizer::load(folder());
  PagedKvCache cache(model, 3, 10);
  DraftedEngine engine(model, cache);
  Texts texts;
  DraftingScheduler scheduler(
      engine, tokenizer, 3, {.chunk = 20}, [](int, const Token&) {},
      [&](int number, const Generation& text) { texts[number] = text.tokens; });
  scheduler.lookup = {.num_tokens = 4, .ngram = 1};
  for (int number = 0; number < 8; ++number) {
    std::vector<int> prompt;
    for (int i = 0; i < 17 + 5 * number; ++i) prompt.push_back(1 + (i < 17 ? i : i * number) * 37 % 4000);
    RowOptions options;
    options.stopping = {.max_new_tokens = 30 + number, .ignore_eos = true};
    options.sampling.do_sample = number % 2 == 1;
    options.sampling.seed = static_cast<unsigned>(number);
    scheduler.submit(number, prompt, options);
  }
  for (int pass = 0; !scheduler.idle(); ++pass) {
    if (pass == 9) scheduler.cancel(2);
    scheduler.pass();
  }
  CHECK(scheduler.preempted() > 0);
  CHECK(scheduler.drafted > scheduler.accepted);
  CHECK(engine.found() > 0);
  return texts;
}

TEST_CASE("texts that rank 0 alone schedules are those of one process") {
  const Texts alone = led<Texts>(1, served);
  CHECK(alone.size() == 7);
  for (const int size : {2, 3, 4}) {
    CAPTURE(size);
    CHECK(led<Texts>(size, served) == alone);
  }
}

TEST_CASE("each rank finds its own keys: with several caches, and without one") {
  using Logits = std::vector<float>;
  const auto work = [](Model& model) {
    Logits all;
    const auto add = [&](std::span<const float> logits) {
      all.insert(all.end(), logits.begin(), logits.end());
    };
    const std::vector<int> text{321, 11, 5, 900, 17, 2, 40}, other{8, 1500};
    StaticKvCache first(model), second(model);
    add(model.last_logits(text, 3, first));
    add(model.next_logits(other, second));
    add(model.next_logits(std::vector<int>{77}, first));
    first.truncate(0, 4);
    add(model.next_logits(std::vector<int>{78}, first));
    add(model.next_logits(std::vector<int>{79}, second));
    add(model.next_logits(std::vector<std::span<const int>>{text, other}));
    StaticKvCache both(model, 2);
    add(model.lazy_logits(std::vector<std::span<const int>>{text, other}, std::vector{4, 1}, both));
    return all;
  };
  const Logits alone = led<Logits>(1, work), shared = led<Logits>(3, work);
  REQUIRE(shared.size() == alone.size());
  float most = 0.0f;
  for (std::size_t i = 0; i < alone.size(); ++i) most = std::max(most, std::abs(shared[i] - alone[i]));
  CHECK(most < 1e-4f);
}

TEST_CASE("a text fills the last block of its context, in every row") {
  static constexpr int kContext = 48;
  const auto work = [](Model& model) {
    PagedKvCache cache(model, 2, 6);
    std::vector<std::vector<int>> texts{std::vector<int>(40, 11), std::vector<int>(41, 900)};
    for (int r = 0; r < 2; ++r) CHECK(cache.reserve(r, kContext));
    std::vector<std::span<const int>> fed{texts[0], texts[1]};
    for (int pass = 0; pass < 9; ++pass) {
      const std::span<const float> logits = model.next_logits(fed, cache);
      for (std::size_t r = 0; r < 2; ++r) {
        if (fed[r].empty()) continue;
        const auto own = logits.subspan(r * 4096, 4096);
        texts[r].push_back(static_cast<int>(std::ranges::max_element(own) - own.begin()));
        fed[r] = std::span(texts[r]).last(texts[r].size() > kContext ? 0 : 1);
      }
    }
    CHECK(cache.length(0) == kContext);
    CHECK(cache.length(1) == kContext);
    return texts;
  };
  using Chosen = std::vector<std::vector<int>>;
  const std::vector<int> contexts(3, kContext);
  CHECK(led<Chosen>(3, work, contexts) == led<Chosen>(1, work, contexts));
}

TEST_CASE("a cache that takes another's place may have other sizes") {
  const auto work = [](Model& model) {
    std::vector<int> chosen;
    std::optional<PagedKvCache> cache;
    for (const auto& [rows, blocks] : {std::pair{1, 3}, std::pair{3, 40}, std::pair{2, 4}}) {
      cache.emplace(model, rows, blocks);
      for (int r = 0; r < rows; ++r) CHECK(cache->reserve(r, 16));
      std::vector<int> text{321, 11, 5 + rows};
      const std::vector<std::span<const int>> fed(static_cast<std::size_t>(rows), text);
      const std::span<const float> logits = model.next_logits(fed, *cache);
      for (std::size_t r = 0; r < fed.size(); ++r) {
        const auto own = logits.subspan(r * 4096, 4096);
        chosen.push_back(static_cast<int>(std::ranges::max_element(own) - own.begin()));
      }
    }
    return chosen;
  };
  CHECK(led<std::vector<int>>(3, work) == led<std::vector<int>>(1, work));
}

TEST_CASE("a cache that takes another's place may be of another kind") {
  using Chosen = std::vector<int>;
  const auto work = [](Model& model) {
    Chosen chosen;
    const auto add = [&](KvCache& cache) {
      const std::span<const float> logits = model.next_logits(std::vector<int>{321, 11, 5}, cache);
      chosen.push_back(static_cast<int>(std::ranges::max_element(logits) - logits.begin()));
    };
    std::variant<std::monostate, StaticKvCache, PagedKvCache> cache;
    add(cache.emplace<StaticKvCache>(model));
    PagedKvCache& paged = cache.emplace<PagedKvCache>(model, 2, 4);
    CHECK(paged.reserve(0, 16));
    add(paged);
    add(cache.emplace<StaticKvCache>(model));
    return chosen;
  };
  CHECK(led<Chosen>(3, work) == led<Chosen>(1, work));
}

TEST_CASE("when the work is done, each rank has its model to itself again") {
  std::vector<std::vector<float>> all(3);
  run_as_threads(3, [&](Ranks& ranks) {
    Model model = Model::load(folder(), make_cpu_device(1), DType::kFloat32, ranks);
    lead_passes(model, ranks, [&] { model.next_logits(std::vector<int>{321, 11}); });
    const std::span<const float> logits = model.next_logits(std::vector<int>{5, 900, 17});
    all[static_cast<std::size_t>(ranks.rank())].assign(logits.begin(), logits.end());
  });
  Model alone = Model::load(folder(), make_cpu_device(1), DType::kFloat32);
  const std::span<const float> want = alone.next_logits(std::vector<int>{5, 900, 17});
  for (const auto& logits : all) {
    REQUIRE(logits.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) REQUIRE(std::abs(logits[i] - want[i]) < 1e-4f);
  }
}

TEST_CASE("ranks with different contexts are refused") {
  CHECK(error_message([] {
          led<int>(3, [](Model&) { return 0; }, {100, 100, 90});
        }) == "--context differs: rank 2 has a different value from rank 0");
}

TEST_CASE("a failure of rank 0 reaches the program") {
  CHECK(error_message([] {
          led<int>(2, [](Model& model) -> int {
            model.next_logits(std::vector<int>{1});
            throw Error("the port is in use");
          });
        }) == "the port is in use");
}

using std::chrono::milliseconds;

TEST_CASE("a waiting rank looks again at once between two passes, and within 2 ms after hours") {
  using namespace std::chrono_literals;
  CHECK(nap_after(0us) == 0us);
  CHECK(nap_after(999us) == 0us);
  CHECK(nap_after(1000us) == 100us);
  CHECK(nap_after(19990us) == 1999us);
  CHECK(nap_after(20010us) == 2000us);
  CHECK(nap_after(5h) == 2000us);
}

TEST_CASE("a rank that waits too long gives up, and one that is answered does not") {
  std::atomic<int> given_up = 0;
  WaitLimit limit(milliseconds(400), [&] { ++given_up; });
  for (int i = 0; i < 3; ++i) {
    limit.begin(true);
    std::this_thread::sleep_for(milliseconds(250));
    limit.end();
  }
  limit.end();  // a wait without a limit
  std::this_thread::sleep_for(milliseconds(600));
  CHECK(given_up == 0);
  limit.begin(true);
  for (int i = 0; i < 100 && given_up == 0; ++i) std::this_thread::sleep_for(milliseconds(50));
  std::this_thread::sleep_for(milliseconds(200));
  CHECK(given_up == 1);
}

TEST_CASE("who has worked for long waits longer, and who was idle does not") {
  for (const bool was_idle : {false, true}) {
    std::atomic<int> given_up = 0;
    WaitLimit limit(milliseconds(100), [&] { ++given_up; });
    std::this_thread::sleep_for(milliseconds(500));  // so the first may wait for 1.1 seconds
    limit.begin(was_idle);
    std::this_thread::sleep_for(milliseconds(600));
    CHECK(given_up == was_idle);
  }
}

}  // namespace
}  // namespace staircase
