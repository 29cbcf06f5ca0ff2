#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <future>
#include <thread>

#include "common/base/error.h"
#include "common/measure/rank_comparison.h"
#include "common/model/model_folder.h"
#include "common/parallel/thread_ranks.h"
#include "generate.h"
#include "pipeline.h"
#include "static_kv_cache.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/reference_logits.h"
#include "tests/run_program.h"
#include "tests/step.h"

namespace staircase {
namespace {

using Floats = std::vector<float>;

/// Models of four blocks, one of each kind.
const std::vector<std::string> kTales{"tales-gpt2-1m", "tales-neox-1m", "tales-qwen-1m"};
const std::vector<std::vector<int>> kTexts{
    {321, 11, 5, 900, 17, 2, 40}, {8, 1500}, {4000, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 12}, {77}, {9, 8, 7, 6, 5}};

std::vector<std::span<const int>> batch_of(const std::vector<std::vector<int>>& texts) {
  return {texts.begin(), texts.end()};
}

Model with_own_pass(const std::filesystem::path& folder, Ranks& ranks, int micro_batches,
                    DType dtype = DType::kFloat32) {
  Model model = Model::load(folder, make_cpu_device(1), dtype, ranks, Split::kBlocks);
  model.run_with(
      [&network = model.network(), micro_batches](Pass& pass) { forward(network, pass, micro_batches); });
  return model;
}

Floats copied(std::span<const float> logits) {
  return {logits.begin(), logits.end()};
}

/// The results of `computed` on each of `size` ranks.
template <typename Result>
std::vector<Result> on_ranks(int size, const std::function<Result(Ranks&)>& computed) {
  std::vector<Result> all(static_cast<std::size_t>(size));
  run_as_threads(size, [&](Ranks& ranks) { all[static_cast<std::size_t>(ranks.rank())] = computed(ranks); });
  return all;
}

/// The logits of a batch in one pass, and then of one more token of each text.
Floats logits_of(Model& model) {
  StaticKvCache cache(model, static_cast<int>(kTexts.size()));
  Floats all = copied(model.next_logits(batch_of(kTexts), cache));
  const std::vector<std::vector<int>> more{{1}, {2}, {3}, {4}, {5}};
  const Floats next = copied(model.next_logits(batch_of(more), cache));
  all.insert(all.end(), next.begin(), next.end());
  return all;
}

TEST_CASE("on 1 to 4 ranks a whole batch has the bits of one process, on every rank and in every type") {
  for (const std::string& name : kTales) {
    Model alone = Model::load(find_model(name), make_cpu_device(1));
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt4}) {
      Model model = alone.load_as(dtype);
      const Floats want = logits_of(model);
      for (const int size : kSanitized ? std::vector{3} : std::vector{1, 2, 3, 4}) {
        CAPTURE(name);
        CAPTURE(to_string(dtype));
        CAPTURE(size);
        for (const Floats& logits : on_ranks<Floats>(size, [&](Ranks& ranks) {
               Model part = with_own_pass(find_model(name), ranks, 1, dtype);
               return logits_of(part);
             })) {
          CHECK(logits == want);
        }
      }
    }
  }
}

TEST_CASE("micro-batches change no logit but for rounding, and none in integers") {
  for (const DType dtype : {DType::kFloat32, DType::kInt8}) {
    Model alone = Model::load(find_model("tales-qwen-1m"), make_cpu_device(1), dtype);
    const Floats want = logits_of(alone);
    for (const int micro_batches : {2, 3, 5, 100}) {
      CAPTURE(to_string(dtype));
      CAPTURE(micro_batches);
      const auto run = [&] {
        return on_ranks<Floats>(2, [&](Ranks& ranks) {
          Model part = with_own_pass(find_model("tales-qwen-1m"), ranks, micro_batches, dtype);
          return logits_of(part);
        });
      };
      const std::vector<Floats> logits = run();
      CHECK(difference(logits[0], want) < (dtype == DType::kInt8 ? 1e-30 : 1e-5));
      CHECK(logits[1] == logits[0]);
      CHECK(run() == logits);
    }
  }
}

TEST_CASE("three ranks of a block each have the logits that transformers computes, for every family") {
  for (const std::string family :
       {"gpt2", "pythia", "neox-sequential", "olmo", "llama-2", "llama-3", "smollm2", "qwen2", "qwen3"}) {
    CAPTURE(family);
    for (const double off : on_ranks<double>(3, [&](Ranks& ranks) {
           Model model = with_own_pass(reference_folder(family), ranks, 2);
           return difference_from_reference(
               family, [&](const auto& text) { return copied(model.next_logits(text)); });
         })) {
      CHECK(off < 1e-4);
    }
  }
}

TEST_CASE("the first rank finishes all micro-batches before the next rank begins, without waiting") {
  std::promise<void> done;
  std::future<void> first_is_done = done.get_future();
  run_as_threads(2, [&](Ranks& ranks) {
    Model model = with_own_pass(find_model("tales-qwen-1m"), ranks, 5);
    if (ranks.rank() == 0) {
      model.on_stage([&, seen = 0](std::string_view stage, std::span<const float>) mutable {
        if (stage == "block.1" && ++seen == 5) done.set_value();
      });
    } else {
      REQUIRE_MESSAGE(first_is_done.wait_for(std::chrono::seconds(10)) == std::future_status::ready,
                      "rank 0 waits, although it has micro-batches left");
    }
    model.next_logits(batch_of(kTexts));
  });
}

TEST_CASE("a rank has only its own blocks, in its weights and in its cache") {
  const std::string folder = find_model("tales-gpt2-1m");
  const Model alone = Model::load(folder, make_cpu_device(1));
  const std::size_t embedding = std::size_t{4} * 4096 * 128, positions = std::size_t{4} * 512 * 128;
  const std::size_t ends = embedding + positions + 2 * 4 * 128;  // and the last norm
  const std::size_t block = (alone.weight_bytes() - ends) / 4;
  struct Part {
    int blocks;
    std::size_t weights, cache;
  };
  const auto parts = on_ranks<Part>(3, [&](Ranks& ranks) {
    Model model = with_own_pass(folder, ranks, 1);
    return Part{model.config().n_layer, model.weight_bytes(), StaticKvCache(model).use().bytes};
  });
  CHECK(parts[0].blocks == 1);
  CHECK(parts[1].blocks == 1);
  CHECK(parts[2].blocks == 2);
  CHECK(parts[0].weights == embedding + positions + block);
  CHECK(parts[1].weights == block);
  CHECK(parts[2].weights == embedding + 2 * 4 * 128 + 2 * block);  // the output layer is the embedding
  for (const Part& part : parts) {
    CHECK(part.cache == static_cast<std::size_t>(part.blocks) * 2 * 4 * 512 * 128);
  }
}

TEST_CASE("a rank receives the residual stream of each token once, and the logits of each sequence") {
  for (const int micro_batches : {1, 4}) {
    CAPTURE(micro_batches);
    const auto bytes = on_ranks<std::size_t>(4, [&](Ranks& ranks) {
      Model model = with_own_pass(find_model("tales-qwen-1m"), ranks, micro_batches);
      const std::size_t before = ranks.received_bytes();
      model.next_logits(batch_of(kTexts));
      return ranks.received_bytes() - before;
    });
    const std::size_t hidden = std::size_t{4} * 128 * (7 + 2 + 12 + 1 + 5),
                      logits = std::size_t{4} * 4096 * 5;
    CHECK(bytes == std::vector<std::size_t>{logits, hidden + logits, hidden + logits, hidden});
  }
}

TEST_CASE("a sequence may pause while others go on, and so may a whole micro-batch") {
  const std::vector<std::vector<int>> texts{{}, {}, {5, 6, 7}, {8}};
  Model alone = Model::load(find_model("tales-qwen-1m"), make_cpu_device(1));
  const Floats want = copied(alone.next_logits(batch_of(texts)));
  for (const Floats& logits : on_ranks<Floats>(2, [&](Ranks& ranks) {
         Model model = with_own_pass(find_model("tales-qwen-1m"), ranks, 2);
         return copied(model.next_logits(batch_of(texts)));
       })) {
    REQUIRE(logits.size() == want.size());
    const auto growing = [](const Floats& all) { return std::span(all).last(std::size_t{2} * 4096); };
    CHECK(difference(growing(logits), growing(want)) < 1e-5);
  }
}

TEST_CASE("every rank draws the texts of one process, whose rows leave and join") {
  RowOptions options;
  options.stopping.max_new_tokens = 20;
  options.sampling.do_sample = true;
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-qwen-1m"));
  const auto texts_of = [&](Model& model) {
    StaticKvCache cache(model, 3);
    std::vector<std::vector<int>> texts;
    for (Generation& text :
         generate(model, tokenizer, kTexts, 1, options, 3, cache, [](int, const Token&) {})) {
      texts.push_back(std::move(text.tokens));
    }
    return texts;
  };
  Model alone = Model::load(find_model("tales-qwen-1m"), make_cpu_device(1), DType::kInt8);
  const auto want = texts_of(alone);
  for (const auto& texts : on_ranks<std::vector<std::vector<int>>>(3, [&](Ranks& ranks) {
         Model model = with_own_pass(find_model("tales-qwen-1m"), ranks, 2, DType::kInt8);
         return texts_of(model);
       })) {
    CHECK(texts == want);
  }
}

TEST_CASE("ranks with different numbers of micro-batches are rejected") {
  CHECK(error_message([] {
          run_as_threads(2, [](Ranks& ranks) {
            Model model = with_own_pass(find_model("tales-qwen-1m"), ranks, 1 + ranks.rank());
            model.next_logits(batch_of(kTexts));
          });
        }) == "rank 1 expects 4608 bytes from rank 0, which sent 13824: all ranks need the same options");
}

TEST_CASE(
    "the comparison prints the blocks and weights of each rank, what it receives, and how long a pass "
    "takes") {
  Model alone = Model::load(find_model("tales-qwen-1m"), make_cpu_device(1));
  std::vector<std::size_t> weights(3);
  run_as_threads(3, [&](Ranks& ranks) {
    weights[static_cast<std::size_t>(ranks.rank())] =
        with_own_pass(find_model("tales-qwen-1m"), ranks, 2).weight_bytes();
  });
  std::string said;
  {
    const Captured captured(stderr);
    compare_with_stages(alone, 3, kTexts, [](Model& part) {
      part.run_with([&part](Pass& pass) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        forward(part.network(), pass, 2);
      });
    });
    said = captured.text();
  }
  const std::size_t hidden = std::size_t{4} * 128 * (7 + 2 + 12 + 1 + 5), logits = std::size_t{4} * 4096 * 5;
  const std::size_t received[] = {logits, hidden + logits, hidden};
  const int blocks[] = {1, 1, 2};
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(contains(
        said,
        fmt::format("\nrank {} of 3: {} blocks, {:.1f} MiB of weights, {:.1f} KiB received\n", rank,
                    blocks[rank], static_cast<double>(weights[static_cast<std::size_t>(rank)]) / (1 << 20),
                    static_cast<double>(received[rank]) / 1024)));
  }
  double ms = 0.0;
  REQUIRE(std::sscanf(said.c_str() + said.find("a pass of"), "a pass of 5 sequences takes %lf ms\n", &ms) ==
          1);
  CHECK(ms >= 20.0);  // all ranks wait at the same time, or one after another
  CHECK(ms < 1000.0);
}

TEST_CASE("--compare-ranks prints what each rank has and receives, and changes no text") {
  const std::string options = "--prompt 'A fox' --prompt 'The wolf' --max-new-tokens 12";
  const ProgramRun alone = run_program(STAIRCASE_STEP_PROGRAM, options);
  const ProgramRun compared =
      run_program(STAIRCASE_STEP_PROGRAM, options + " --compare-ranks 3 --micro-batches 2");
  REQUIRE(compared.status == 0);
  CHECK(compared.out == alone.out);
  CHECK(contains(compared.err, "8192 logits differ by "));
  CHECK(contains(compared.err, "rank 2 of 3: 2 blocks, "));
  CHECK(contains(compared.err, "a pass of 2 sequences takes "));
}

TEST_CASE("more ranks than blocks, and zero micro-batches, are rejected with the numbers") {
  const ProgramRun ranks = run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --compare-ranks 7");
  CHECK(ranks.status == 1);
  CHECK(contains(ranks.err, "error: the model has 6 blocks; 7 ranks do not fit\n"));
  const ProgramRun none = run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --micro-batches 0");
  CHECK(none.status == 2);
  CHECK(contains(none.err, "--micro-batches is 0, but it must be "));
}

}  // namespace
}  // namespace staircase
