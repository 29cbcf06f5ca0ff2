// Texts of a model that ranks share, beside those of one process: however they are decoded.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "common/decoding/beam_search.h"
#include "common/decoding/dynamic_kv_cache.h"
#include "common/decoding/generate.h"
#include "common/decoding/paged_engine.h"
#include "common/decoding/preemption.h"
#include "common/decoding/speculative.h"
#include "common/decoding/static_kv_cache.h"
#include "common/decoding/turn_scheduler.h"
#include "common/decoding/windowed_kv_cache.h"
#include "common/model/model_folder.h"
#include "common/parallel/thread_ranks.h"
#include "tests/error_message.h"
#include "tests/step.h"

namespace staircase {
namespace {

using Texts = std::vector<std::vector<int>>;
using Decode = std::function<Texts(Model&)>;

const std::vector<std::string> kFamilies{"tales-gpt2-1m", "tales-neox-1m", "tales-llama-1m",
                                         "tales-gqa-1m",  "tales-qwen-1m", "tales-olmo-1m"};
const Prompts kPrompts{{321, 11, 5, 900, 17, 2, 400, 8, 77, 1030, 12, 45, 9, 600, 31, 7, 214, 19},
                       {8, 1500},
                       {45, 12, 900, 3, 17}};

/// `decode` on each of `size` ranks, in their order.
std::vector<Texts> of_each_rank(const std::string& name, DType dtype, int size, const Decode& decode) {
  std::vector<Texts> all(static_cast<std::size_t>(size));
  run_as_threads(size, [&](Ranks& ranks) {
    Model model = Model::load(find_model(name), make_cpu_device(1), dtype, ranks);
    all[static_cast<std::size_t>(ranks.rank())] = decode(model);
  });
  return all;
}

void check_texts(const std::string& name, DType dtype, std::initializer_list<int> sizes,
                 const Decode& decode) {
  Model alone = Model::load(find_model(name), make_cpu_device(1), dtype);
  const Texts want = decode(alone);
  REQUIRE(!want.empty());
  for (const std::vector<int>& text : want) REQUIRE(text.size() > 12);
  for (const int size : sizes) {
    CAPTURE(name);
    CAPTURE(to_string(dtype));
    CAPTURE(size);
    for (const Texts& texts : of_each_rank(name, dtype, size, decode)) CHECK(texts == want);
  }
}

RowOptions options_of(int max_new_tokens, bool do_sample = false) {
  RowOptions options;
  options.stopping.max_new_tokens = max_new_tokens;
  options.stopping.ignore_eos = true;
  options.sampling.do_sample = do_sample;
  options.sampling.seed = 7;
  return options;
}

Texts tokens_of(const std::vector<Generation>& texts) {
  Texts tokens;
  for (const Generation& text : texts) tokens.push_back(text.tokens);
  return tokens;
}

/// The relative lead that the best logit needs, for another order of sums to find the same token. float32
/// rounds to 2^-24. A sum of a few thousand numbers in 16 bits or fewer moves by some of its last bits.
double clear_lead(DType dtype) {
  if (dtype == DType::kFloat32) return 1e-4;
  return dtype == DType::kFloat16 ? 3e-3 : 2e-2;
}

/// The likeliest token after each pass over the prompts in one batch. The texts go on with the tokens of
/// `given`, or with those that were chosen.
struct Choices {
  Texts tokens;                          ///< [pass][prompt]
  std::vector<std::vector<bool>> clear;  ///< whether the second best logit is far enough away
};

Choices choices(Model& model, int passes, const Texts& given = {}) {
  const auto n = kPrompts.size(), vocabulary = static_cast<std::size_t>(model.config().vocab_size);
  StaticKvCache cache(model, static_cast<int>(n));
  Texts texts = kPrompts;
  Choices all;
  for (int pass = 0; pass < passes; ++pass) {
    std::vector<std::span<const int>> fed;
    for (std::size_t i = 0; i < n; ++i) {
      fed.push_back(std::span(texts[i]).subspan(static_cast<std::size_t>(cache.length(static_cast<int>(i)))));
    }
    std::vector<float> logits = copy_of(model.next_logits(fed, cache));
    std::vector<int> tokens;
    std::vector<bool> clear;
    for (std::size_t i = 0; i < n; ++i) {
      const std::span<float> row = std::span(logits).subspan(i * vocabulary, vocabulary);
      const int best = argmax(row);
      const float value = row[static_cast<std::size_t>(best)];
      row[static_cast<std::size_t>(best)] = kMasked;
      const float second = row[static_cast<std::size_t>(argmax(row))];
      clear.push_back(value - second > clear_lead(model.dtype()) * std::abs(value));
      tokens.push_back(best);
      texts[i].push_back(given.empty() ? best : given[static_cast<std::size_t>(pass)][i]);
    }
    all.tokens.push_back(tokens);
    all.clear.push_back(clear);
  }
  return all;
}

TEST_CASE("all families choose the tokens of one process, in every type, on 2, 3 and 4 ranks") {
  constexpr int kPasses = 16;
  for (const std::string& name : kFamilies) {
    for (const DType dtype : weight_dtypes()) {
      if (kSanitized && dtype != DType::kFloat32 && dtype != DType::kInt4) continue;
      Model alone = Model::load(find_model(name), make_cpu_device(1), dtype);
      const Choices want = choices(alone, kPasses);
      for (const int size : {2, 3, 4}) {
        CAPTURE(name);
        CAPTURE(to_string(dtype));
        CAPTURE(size);
        if (dtype == DType::kInt8 && size > 2) continue;  // the heads fill two groups
        const auto of_ranks = of_each_rank(
            name, dtype, size, [&](Model& model) { return choices(model, kPasses, want.tokens).tokens; });
        for (const Texts& own : of_ranks) CHECK(own == of_ranks[0]);
        int compared = 0, other = 0;
        for (std::size_t pass = 0; pass < kPasses; ++pass) {
          for (std::size_t i = 0; i < kPrompts.size(); ++i) {
            if (!want.clear[pass][i]) continue;
            ++compared;
            other += of_ranks[0][pass][i] == want.tokens[pass][i] ? 0 : 1;
          }
        }
        CHECK(other == 0);
        CHECK(compared >= (dtype == DType::kFloat32 ? 3 * kPasses - 1 : kPasses));
      }
    }
  }
}

TEST_CASE("a batch of different lengths that is drawn has the texts of one process") {
  for (const std::string& name : kFamilies) {
    check_texts(name, DType::kFloat32, {2, 3}, [](Model& model) {
      StaticKvCache cache(model, 4);
      return tokens_of(generate(model, tales_tokenizer(), kPrompts, 2, options_of(15, true), 4, cache,
                                [](int, const Token&) {}));
    });
  }
}

TEST_CASE("a cache that grows by reallocating and none at all give the texts of one process") {
  for (const std::string name : {"tales-gpt2-1m", "tales-gqa-1m"}) {
    check_texts(name, DType::kFloat32, {2, 4}, [](Model& model) {
      DynamicKvCache cache(model);
      NoCache none;
      Texts texts;
      for (KvCache* kept : {static_cast<KvCache*>(&cache), static_cast<KvCache*>(&none)}) {
        std::vector<int> text = kPrompts[0];
        for (int i = 0; i < 15; ++i) {
          text.push_back(argmax(model.next_logits(std::span(text).subspan(kept->length(0)), *kept)));
        }
        texts.push_back(text);
      }
      return texts;
    });
  }
}

TEST_CASE("a paged cache with too few blocks preempts the same texts on all ranks") {
  for (const std::string name : {"tales-gpt2-1m", "tales-neox-1m", "tales-gqa-1m"}) {
    check_texts(name, DType::kFloat32, {2, 3}, [](Model& model) {
      PagedKvCache cache(model, 3, 4);
      PagedEngine engine(model, cache);
      Texts texts(kPrompts.size());
      PreemptingScheduler scheduler(
          engine, tales_tokenizer(), 3, {.chunk = 5}, [](int, const Token&) {},
          [&](int number, const Generation& text) { texts[static_cast<std::size_t>(number)] = text.tokens; });
      for (int i = 0; i < std::ssize(kPrompts); ++i) {
        scheduler.submit(i, kPrompts[static_cast<std::size_t>(i)], options_of(26));
      }
      while (!scheduler.idle()) scheduler.pass();
      CHECK(scheduler.preempted() > 0);
      return texts;
    });
  }
}

TEST_CASE("blocks that a window has passed leave on all ranks alike") {
  check_texts("tales-window-1m", DType::kFloat32, {2}, [](Model& model) {
    WindowedKvCache cache(model, 2, 36);
    PagedEngine engine(model, cache);
    Texts texts(4);
    PreemptingScheduler scheduler(
        engine, tales_tokenizer(), 2, {.chunk = 50}, [](int, const Token&) {},
        [&](int number, const Generation& text) { texts[static_cast<std::size_t>(number)] = text.tokens; });
    for (int i = 0; i < std::ssize(texts); ++i) {
      std::vector<int> prompt;  // the first 160 tokens are those of the others
      for (int t = 0; t < 180 + 20 * i; ++t) prompt.push_back((t * 1237 + 31 + (t < 160 ? 0 : i)) % 4000);
      scheduler.submit(i, prompt, options_of(90));
    }
    while (!scheduler.idle()) scheduler.pass();
    CHECK(engine.found() > 0);
    return texts;
  });
}

TEST_CASE("drafts of a model that the ranks share as well are verified alike, greedy and drawn") {
  for (const bool do_sample : {false, true}) {
    check_texts("tales-6m", DType::kFloat32, {2}, [&](Model& model) {
      Model small = model.load_beside(find_model("tales-1m"));
      DraftModel draft(small);
      Speculation counts;
      const Generation text =
          speculate(model, draft, kPrompts[0], options_of(40, do_sample), 4, counts, [](const Token&) {});
      CHECK(counts.accepted > 0);
      CHECK(counts.accepted < counts.drafted);
      return Texts{text.tokens};
    });
  }
}

TEST_CASE("a search with four beams finds the texts that it finds in one process") {
  for (const std::string& name : kFamilies) {
    check_texts(name, DType::kFloat32, {2, 4}, [](Model& model) {
      StaticKvCache cache(model, 4);
      Texts texts;
      for (const Beam& beam : beam_search(model, tales_tokenizer(), kPrompts[2], options_of(12),
                                          {.num_beams = 4}, cache, [](const Beam&) {})) {
        texts.push_back(beam.tokens);
      }
      return texts;
    });
  }
}

TEST_CASE(
    "a search whose beams are texts of a scheduler finds the same on several ranks as beam_search alone") {
  const BeamOptions search{.num_beams = 4, .length_penalty = 0.7f};
  for (const int size : {1, 2}) {
    const Decode with_scheduler = [&](Model& model) {
      PagedKvCache cache(model, 3, 12);  // fewer rows than beams: they take turns
      PagedEngine engine(model, cache);
      Texts texts(9);
      TurnScheduler scheduler(
          engine, tales_tokenizer(), 3, {}, [](int, const Token&) {},
          [&](int number, Generation text) {
            texts[static_cast<std::size_t>(number)] = std::move(text.tokens);
          });
      RowOptions options = options_of(14);
      scheduler.submit(8, kPrompts[1], options);
      options.extras.search = std::make_shared<BeamOptions>(search);
      for (int number = 0; number < 8; ++number)
        scheduler.submit(number, kPrompts[number < 4 ? 2 : 0], options);
      while (!scheduler.idle()) scheduler.pass();
      return texts;
    };
    for (const Texts& texts : of_each_rank("tales-gqa-1m", DType::kFloat32, size, with_scheduler)) {
      Model alone = Model::load(find_model("tales-gqa-1m"), make_cpu_device(1), DType::kFloat32);
      StaticKvCache cache(alone, 4);
      for (const int prompt : {2, 0}) {
        const auto found = beam_search(alone, tales_tokenizer(), kPrompts[static_cast<std::size_t>(prompt)],
                                       options_of(14), search, cache, [](const Beam&) {});
        for (std::size_t i = 0; i < 4; ++i) CHECK(texts[(prompt == 2 ? 0 : 4) + i] == found[i].tokens);
      }
      CHECK(texts[8].size() == kPrompts[1].size() + 14);
    }
  }
}

TEST_CASE("a model that ranks share refuses adapters with one sentence") {
  run_as_threads(2, [](Ranks& ranks) {
    Model model = Model::load(find_model("tales-6m"), make_cpu_device(1), DType::kFloat32, ranks);
    const std::vector<std::filesystem::path> folders{find_adapter("aesop", "--adapter")};
    CHECK(error_message([&] { model.load_adapters(folders); }) ==
          "adapters cannot be split between ranks; run the model on one rank");
  });
}

}  // namespace
}  // namespace staircase
