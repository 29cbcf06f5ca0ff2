// A greedy text goes on on the device before the host has its newest token, and a wrong guess changes
// nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "common/decoding/paged_engine.h"
#include "common/decoding/preemption.h"
#include "common/decoding/static_kv_cache.h"
#include "common/decoding/windowed_kv_cache.h"
#include "common/model/model.h"
#include "common/text/tokenizer.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"
#include "tests/temporary_folder.h"
#include "tests/tiny_model.h"

namespace staircase {
namespace {

const std::filesystem::path kSource = STAIRCASE_SOURCE_TREE;
constexpr int kPositions = 45;

Model long_model() {
  const TemporaryFolder folder;
  TinyModel(1, 101, kPositions).write(folder.path());
  return Model::load(folder.path(), make_cuda_device());
}

/// Whether the GPU has work that nothing has waited for yet.
bool is_under_way() {
  return std::ranges::any_of(cuda_emulation::streams,
                             [](cudaStream_t stream) { return !stream->work.empty(); });
}

/// Some rows that one cache decodes, each token from lazy_logits, and another cache beside it, from
/// next_logits. All logits are compared that are read.
class Rows {
 public:
  Rows(Model& lazy, Model& plain, int count)
      : lazy_(lazy),
        plain_(plain),
        width_(static_cast<std::size_t>(lazy.config().vocab_size)),
        cache_(lazy, count),
        other_(plain, count) {
    for (int r = 0; r < count; ++r) newest_.push_back({1 + r, 5, 7});
  }

  /// Feeds the newest tokens. Then each row has its most likely token; `reads` all of its logits, or not.
  void pass(bool reads = false) {
    const std::vector<std::span<const int>> fed(newest_.begin(), newest_.end());
    const std::span<const float> all = plain_.next_logits(fed, other_);
    const Logits logits = lazy_.lazy_logits(fed, cache_);
    ran_ahead_ = is_under_way();
    if (length() % 2 == 0) cudaDeviceSynchronize();  // a GPU may be faster than the host
    for (std::size_t r = 0; r < newest_.size(); ++r) {
      const auto want = all.subspan(r * width_, width_);
      const Logits row = logits.subspan(r * width_, width_);
      CHECK(row.argmax() == argmax(want));
      if (reads && r == 0) CHECK(std::ranges::equal(std::span<const float>(row), want));
      newest_[r] = {argmax(want)};
    }
  }

  bool ran_ahead() const { return ran_ahead_; }
  int length() const { return cache_.length(0); }
  std::vector<std::vector<int>>& newest() { return newest_; }
  template <typename Change>
  void change(const Change& change) {
    change(cache_);
    change(other_);
  }

 private:
  Model& lazy_;
  Model& plain_;
  std::size_t width_;
  StaticKvCache cache_, other_;
  std::vector<std::vector<int>> newest_;
  bool ran_ahead_ = false;
};

TEST_CASE("on the emulated GPU a greedy text goes on before the host has its newest token") {
  for (const int count : {1, 3}) {
    Model model = long_model(), plain = long_model();
    Rows rows(model, plain, count);
    for (int pass = 0; rows.length() < kPositions; ++pass) {
      CAPTURE(pass);
      rows.pass(pass % 7 == 6 && count == 3);  // one of three rows: the others' logits stay where they are
      // The prompt, a first token, and kSureAfter of them that were guessed; the last position has no next
      // one.
      CHECK(rows.ran_ahead() == (pass > Model::kSureAfter && rows.length() < kPositions));
    }
  }
}

TEST_CASE("on the emulated GPU a pass that ran ahead is not done again, and takes two graphs") {
  Model model = long_model(), plain = long_model();
  Rows rows(model, plain, 1);
  for (int pass = 0; pass < Model::kSureAfter + 8; ++pass) rows.pass();
  StaticKvCache cache(model);
  const std::vector<int> prompt = {1, 5, 7};
  std::vector<int> token = {argmax(model.next_logits(prompt, cache))};
  for (int pass = 0; pass < 40; ++pass) {
    const int graphs = cuda_emulation::graphs_launched;
    const std::vector<std::span<const int>> fed{token};
    const Logits logits = model.lazy_logits(fed, cache);
    token = {logits.argmax()};
    CAPTURE(pass);
    // In between, each of the two places for logits has its first pass, which is no graph yet.
    if (pass > 2 && std::abs(pass - Model::kSureAfter) > 2)
      CHECK(cuda_emulation::graphs_launched - graphs == 1);
  }
}

TEST_CASE("on the emulated GPU a text that continues otherwise gets the logits of its own tokens") {
  Model model = long_model(), plain = long_model();
  std::mt19937 random(5);
  int wrong = 0;
  for (int text = 0; text < 16; ++text) {
    CAPTURE(text);
    const int count = text % 2 + 1;
    Rows rows(model, plain, count);
    for (int pass = 0; pass <= Model::kSureAfter + 2; ++pass) rows.pass();
    CHECK(rows.ran_ahead());
    switch (text / 2) {
      case 0:
        rows.newest()[0][0] = (rows.newest()[0][0] + 1) % 101;
        break;
      case 1:
        rows.newest().back().push_back(9);
        break;
      case 2:
        rows.change([](StaticKvCache& cache) { cache.truncate(0, cache.length(0) - 2); });
        break;
      case 3:  // as many positions, and others
        rows.change([](StaticKvCache& cache) {
          cache.truncate(0, 7);
          cache.slide(0, 1);
        });
        break;
      case 4:  // the same numbers of a row, and other keys
        rows.change([&](StaticKvCache& cache) { cache.copy_row(count - 1, 0); });
        break;
      case 5:  // a row leaves
        if (count > 1) rows.newest().pop_back();
        break;
      case 6: {  // another text meanwhile
        StaticKvCache cache(model);
        const std::vector<int> prompt = {3, 4};
        model.next_logits(prompt, cache);
        break;
      }
      case 7:  // a row rests
        if (count > 1) rows.newest()[0].clear();
        break;
    }
    rows.pass(true);
    wrong += rows.ran_ahead();
    for (int pass = 0; pass < 4; ++pass) {
      for (std::vector<int>& newest : rows.newest()) {
        if (random() % 8 == 0) newest[0] = static_cast<int>(random() % 101);
      }
      rows.pass(random() % 3 == 0);
    }
  }
  CHECK(wrong < 16);
}

TEST_CASE("on the emulated GPU greedy texts of both engines are those that read all logits") {
  Model model = long_model();
  const Tokenizer tokenizer = Tokenizer::load(kSource / "models/tales-1m");
  const auto texts = [&](auto& engine, const KvCache& cache, int block) {
    std::vector<std::vector<int>> all(4);
    int ahead = 0;
    PreemptingScheduler scheduler(
        engine, tokenizer, 2, {}, [](int, const Token&) {},
        [&](int number, Generation text) { all[static_cast<std::size_t>(number)] = text.tokens; });
    for (int i = 0; i < 4; ++i) {
      RowOptions options;
      // The last one fills its row, alone for so long that it runs ahead.
      constexpr int kTokens[] = {28, 33, 30, kPositions - 2};
      options.stopping = {.max_new_tokens = kTokens[i], .ignore_eos = true};
      scheduler.submit(i, {1, 2 + i, 7}, options);
    }
    while (!scheduler.idle()) {
      scheduler.pass();
      if (!is_under_way()) continue;
      ++ahead;
      // The next position of each row is in memory that the row has: the host may not have chosen a block.
      for (int row = 0; row < 2; ++row) CHECK((cache.length(row) == 0 || cache.length(row) % block != 0));
    }
    return std::pair(all, ahead);
  };
  struct Reading : DelegatingEngine {
    using DelegatingEngine::DelegatingEngine;
    Logits forward(std::span<const std::span<const int>> sequences) override {
      return std::span<const float>(DelegatingEngine::forward(sequences));
    }
  };
  StaticKvCache cache(model, 2), other(model, 2);
  PagedKvCache paged(model, 2, 12);
  StaticEngine engine(model, cache), plain(model, other);
  PagedEngine paged_engine(model, paged);
  Reading reading(plain);
  const auto want = texts(reading, other, kPositions);
  const auto by_static = texts(engine, cache, kPositions), by_paged = texts(paged_engine, paged, kBlockSize);
  CHECK(by_static.first == want.first);
  CHECK(by_paged.first == want.first);
  CHECK(by_static.second > 10);
  CHECK(by_paged.second > 10);
}

TEST_CASE("on the emulated GPU texts run ahead in blocks that a window passes") {
  Model model = Model::load(kSource / "models/tales-window-1m", make_cuda_device());
  std::vector<int> prompt;
  for (int i = 0; i < 70; ++i) prompt.push_back((i * 1237 + 31) % 4000);
  const auto grow = [&](PagedKvCache& cache, bool lazy) {
    std::vector<int> text = prompt;
    int ahead = 0;
    for (int i = 0; i < 40; ++i) {
      REQUIRE(cache.reserve(0, static_cast<int>(text.size())));
      const std::vector<int> fed(text.begin() + cache.length(0), text.end());
      const std::vector<std::span<const int>> sequences{fed};
      text.push_back(lazy ? model.lazy_logits(sequences, cache).argmax()
                          : argmax(model.next_logits(sequences, cache)));
      ahead += is_under_way();
      cache.remember(0, fed);
    }
    return std::pair(text, ahead);
  };
  WindowedKvCache lazy(model, 1, 32), plain(model, 1, 32);
  const auto [want, none] = grow(plain, false);
  const auto [got, ahead] = grow(lazy, true);
  CHECK(got == want);
  CHECK(none == 0);
  CHECK(ahead > 10);
}

TEST_CASE(
    "while a token attends, the GPU prefetches the weights of the two products that follow in each block") {
  struct Restore {
    ~Restore() { cuda_emulation::on_request = nullptr; }
  } const restore;
  static std::size_t prefetched;
  for (const char* const name : {"tales-1m", "tales-llama-1m"}) {
    Model model = Model::load(kSource / "models" / name, make_cuda_device(), DType::kBFloat16);
    StaticKvCache cache(model, 1);
    const ModelConfig& config = model.config();
    model.next_logits(std::vector<int>{5, 7, 9}, cache);
    prefetched = 0;
    cuda_emulation::on_request = [](cuda_emulation::Access access, cuda_emulation::Memory, const void*,
                                    std::size_t bytes, const void*) {
      if (access == cuda_emulation::Access::kPrefetch) prefetched += bytes;
    };
    model.next_logits(std::vector<int>{11}, cache);
    cuda_emulation::on_request = nullptr;
    const auto size = [](int number) { return static_cast<std::size_t>(number); };
    const std::size_t width = size(config.n_embd),
                      inner = size(config.n_inner) * (config.mlp_matrices > 2 ? 2 : 1),
                      keys = 3 * 2 * size(config.key_width()) * 2;
    CAPTURE(std::string(name));
    CHECK(prefetched == size(config.n_layer) * (2 * width * (size(config.query_width()) + inner) + keys));
  }
}

}  // namespace
}  // namespace staircase
