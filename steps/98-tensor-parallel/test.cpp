#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "common/measure/rank_comparison.h"
#include "common/model/model_folder.h"
#include "common/parallel/thread_ranks.h"
#include "forward_pass.h"
#include "generate.h"
#include "static_kv_cache.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/reference_logits.h"
#include "tests/run_program.h"
#include "tests/step.h"

namespace staircase {
namespace {

const std::vector<std::string> kRelatives{"llama-2", "llama-3", "smollm2", "olmo", "qwen2", "qwen3"};
const std::vector<std::string> kTales{"tales-llama-1m", "tales-gqa-1m", "tales-qwen-1m", "tales-olmo-1m"};

Model with_own_pass(const std::filesystem::path& folder, Ranks& ranks, DType dtype = DType::kFloat32) {
  Model model = Model::load(folder, make_cpu_device(1), dtype, ranks);
  model.run_with([&weights = llama_weights(model)](Pass& pass) { forward(weights, pass); });
  return model;
}

std::vector<float> copied(std::span<const float> logits) {
  return {logits.begin(), logits.end()};
}

/// The results of `computed` on each of `size` ranks.
template <typename Result>
std::vector<Result> on_ranks(int size, const std::function<Result(Ranks&)>& computed) {
  std::vector<Result> all(static_cast<std::size_t>(size));
  run_as_threads(size, [&](Ranks& ranks) { all[static_cast<std::size_t>(ranks.rank())] = computed(ranks); });
  return all;
}

TEST_CASE("on two ranks the residual stream after each stage equals that of transformers") {
  const std::vector<std::string> stages{"embeddings", "block.0", "block.1", "ln_f"};
  for (const std::string& family : kRelatives) {
    CAPTURE(family);
    for (const nlohmann::json& one : reference_cases(family)) {
      using Lengths = std::map<std::string, double>;  // of the last token's row
      const auto of_ranks = on_ranks<Lengths>(2, [&](Ranks& ranks) {
        Model model = with_own_pass(reference_folder(family), ranks);
        Lengths lengths;
        model.on_stage([&](std::string_view stage, std::span<const float> x) {
          const auto last = x.last(static_cast<std::size_t>(model.config().n_embd));
          lengths[std::string(stage)] =
              std::sqrt(std::inner_product(last.begin(), last.end(), last.begin(), 0.0));
        });
        model.next_logits(one["ids"].get<std::vector<int>>());
        return lengths;
      });
      for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
        for (std::size_t i = 0; i < stages.size(); ++i) {
          CAPTURE(rank);
          CAPTURE(stages[i]);
          REQUIRE_MESSAGE(of_ranks[rank].contains(stages[i]), "pass.show was never called with this name");
          CHECK(of_ranks[rank].at(stages[i]) ==
                doctest::Approx(one["block_norms"][i].get<double>()).epsilon(1e-4));
        }
      }
    }
  }
}

TEST_CASE("the logits of 1, 2, 3 and 4 ranks are those of one process within rounding") {
  const std::vector<int> text{321, 11, 5, 900, 17, 2, 40};
  for (const std::string& name : kTales) {
    Model whole = Model::load(find_model(name), make_cpu_device(2));
    const std::vector<float> want = copied(whole.next_logits(text));
    for (const int size : {1, 2, 3, 4}) {
      CAPTURE(name);
      CAPTURE(size);
      for (const auto& logits : on_ranks<std::vector<float>>(size, [&](Ranks& ranks) {
             Model model = with_own_pass(find_model(name), ranks);
             return copied(model.next_logits(text));
           })) {
        CHECK(difference(logits, want) < 1e-5);
      }
    }
  }
}

TEST_CASE("in every type all ranks have the engine's bits, in a batch and token by token with a cache") {
  const std::vector<int> longer{321, 11, 5, 900, 17, 2, 40}, shorter{8, 1500};
  const std::vector<std::span<const int>> batch{longer, shorter};
  const auto all_logits = [&](Model& model) {
    std::vector<float> logits = copied(model.next_logits(batch));
    StaticKvCache cache(model);
    for (const int token : longer) {
      const std::span<const float> next = model.next_logits({&token, 1}, cache);
      logits.insert(logits.end(), next.begin(), next.end());
    }
    return logits;
  };
  for (const std::string& name : kTales) {
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt4}) {
      for (const int size : kSanitized ? std::vector{3} : std::vector{2, 3}) {
        if (dtype == DType::kInt8 && size > 2) continue;  // the heads fill only two groups of weights
        CAPTURE(name);
        CAPTURE(to_string(dtype));
        CAPTURE(size);
        const auto own = on_ranks<std::vector<float>>(size, [&](Ranks& ranks) {
          Model model = with_own_pass(find_model(name), ranks, dtype);
          return all_logits(model);
        });
        const auto engine = on_ranks<std::vector<float>>(size, [&](Ranks& ranks) {
          Model model = Model::load(find_model(name), make_cpu_device(1), dtype, ranks);
          return all_logits(model);
        });
        for (const std::vector<float>& logits : own) CHECK(logits == engine[0]);
      }
    }
  }
}

TEST_CASE("a sum is added in the order of the ranks: 1e8 - 1e8 + 1 is 1 on each of them") {
  const std::vector<float> parts{1e8f, -1e8f, 1.0f};

  const auto sums = on_ranks<float>(3, [&](Ranks& ranks) {
    Model model = Model::load(find_model("tales-llama-1m"), make_cpu_device(1), DType::kFloat32, ranks);
    float sum = 0.0f;
    model.run_with([&](Pass& pass) {
      Tensor x = pass.residual();
      const std::vector<float> part(static_cast<std::size_t>(x.size()),
                                    parts[static_cast<std::size_t>(ranks.rank())]);
      pass.device().copy_from_host(part, x);
      all_reduce(pass, x);
      std::vector<float> numbers(part.size());
      pass.device().copy_to_host(x, numbers);
      sum = numbers.back();
      forward(llama_weights(model), pass);
    });
    model.next_logits(std::vector<int>{1, 2});
    return sum;
  });
  CHECK(sums == std::vector<float>{1.0f, 1.0f, 1.0f});
}

TEST_CASE("a token costs two sums a block, one of the embedding, and its logits") {
  for (const int size : {2, 3, 4}) {
    CAPTURE(size);
    const auto bytes = on_ranks<std::size_t>(size, [&](Ranks& ranks) {
      Model model = with_own_pass(find_model("tales-llama-1m"), ranks);
      StaticKvCache cache(model);
      model.next_logits(std::vector<int>{7, 8, 9}, cache);
      const std::size_t before = ranks.received_bytes();
      model.next_logits(std::vector<int>{10}, cache);
      return ranks.received_bytes() - before;
    });
    // 128 numbers nine times, and a share of 4096 logits, including the one for the row of zeros.
    const std::size_t numbers = 128 * (2 * 4 + 1) + static_cast<std::size_t>((4096 + size - 1) / size) + 1;
    for (const std::size_t received : bytes)
      CHECK(received == 4 * numbers * static_cast<std::size_t>(size - 1));
  }
}

TEST_CASE("the same seed draws the same text on every rank, without any messages about it") {
  TextOptions options;
  options.stopping.max_new_tokens = 30;
  options.sampling.do_sample = true;
  const auto texts = on_ranks<std::vector<int>>(4, [&](Ranks& ranks) {
    Model model = with_own_pass(find_model("tales-qwen-1m"), ranks);
    StaticKvCache cache(model);
    std::mt19937 generator(5);
    return generate(model, {321, 11, 5}, options, cache, generator, [](const auto&) {}).tokens;
  });
  for (const std::vector<int>& text : texts) CHECK(text == texts[0]);
}

TEST_CASE("the comparison prints the weights of rank 0, and what it receives for a prompt") {
  Model alone = Model::load(find_model("tales-llama-1m"), make_cpu_device(1));
  std::size_t weights = 0;
  run_as_threads(2, [&](Ranks& ranks) {
    const Model part = Model::load(find_model("tales-llama-1m"), make_cpu_device(1), DType::kFloat32, ranks);
    if (ranks.rank() == 0) weights = part.weight_bytes();
  });
  const std::vector<int> prompt{321, 11, 5, 900, 17, 2, 4000};
  const Captured captured(stderr);
  compare_with_ranks(alone, 2, prompt, [&](Model& part) { part.next_logits(prompt); });
  // Each token has a sum after the embedding and two in each block; only the last token leaves the last one.
  // Then come the logits of the other rank, and one of a row of zeros.
  const std::size_t received = 4 * (128 * (2 * 4 - 1) * prompt.size() + 128 * 2 + 2048 + 1);
  CHECK(
      contains(captured.text(),
               fmt::format("\nrank 0 of 2 keeps {:.1f} MiB of weights and receives {:.1f} KiB for 7 tokens\n",
                           static_cast<double>(weights) / (1 << 20), static_cast<double>(received) / 1024)));
}

TEST_CASE("--own-pass changes no text, and shared logits are compared with those of one process") {
  const std::string options = "--model tales-qwen-1m --prompt 'A fox' --max-new-tokens 12";
  const ProgramRun engine = run_program(STAIRCASE_STEP_PROGRAM, options);
  const ProgramRun own = run_program(STAIRCASE_STEP_PROGRAM, options + " --own-pass --compare-ranks 3");
  REQUIRE(own.status == 0);
  CHECK(own.out == engine.out);
  CHECK(contains(own.err, "4096 logits differ by "));
  CHECK(contains(own.err, "rank 0 of 3 keeps "));
}

TEST_CASE("models that cannot be shared are rejected in one sentence") {
  const auto refusal = [](const std::string& options) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' " + options);
    CHECK(run.status == 1);
    return run.err;
  };
  CHECK(refusal("--model tales-llama-1m --compare-ranks 5")
            .find("error: the model has 4 heads and 352 columns of an MLP; 5 ranks do not fit\n") !=
        std::string::npos);
  CHECK(refusal("--model tales-6m --own-pass")
            .find("this pass computes Llama and its relatives, but the model is a gpt2") !=
        std::string::npos);
}

}  // namespace
}  // namespace staircase
