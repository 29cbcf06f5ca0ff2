// What only the emulation can see of a whole model on a GPU: its memory, its kernels and graphs, and that
// what fails is one sentence and an exit status.
#include "common/model/model.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/gpu.h"
#include "bench/timing.h"
#include "common/decoding/model_engine.h"
#include "common/decoding/paged_kv_cache.h"
#include "common/decoding/scheduler.h"
#include "common/decoding/static_kv_cache.h"
#include "common/program/program.h"
#include "tests/captured.h"
#include "tests/compare.h"
#include "tests/cuda_emulation/include/cublasLt.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"
#include "tests/error_message.h"
#include "tests/least_vectors.h"
#include "tests/same_logits.h"
#include "tests/temporary_folder.h"
#include "tests/tiny_model.h"

namespace staircase {
namespace {

const std::filesystem::path kSource = STAIRCASE_SOURCE_TREE;

/// Checks it for weights of that type.
void check_turns(DType dtype, double tolerance) {
  CAPTURE(to_string(dtype));
  Model model = Model::load(kSource / "models/tales-1m", make_cuda_device(), dtype);
  const std::vector<int> text = {1, 2, 3, 500, 7, 8, 9, 10, 11};
  const auto logits = [&](std::size_t tokens, int count) {
    const std::span<const float> rows = model.last_logits(std::span(text).first(tokens), count);
    return std::vector<float>(rows.begin(), rows.end());
  };
  // The first is of many tokens up to the last block, and of a few, in another type, from there.
  const std::pair<std::size_t, int> passes[] = {{9, 8}, {9, 1}, {2, 1}};
  std::vector<std::vector<float>> want;
  for (const auto& [tokens, count] : passes) want.push_back(logits(tokens, count));
  const std::map<void*, std::size_t> memory = cuda_emulation::allocations;
  for (int time = 0; time < 2; ++time) {
    for (std::size_t pass = 0; pass < std::size(passes); ++pass) {
      CAPTURE(pass);
      CHECK(logits(passes[pass].first, passes[pass].second) == want[pass]);
    }
  }
  CHECK(cuda_emulation::allocations == memory);
  // The tokens of the first as others see them: its last one and its first.
  const std::vector<float> last(want[0].end() - std::ssize(want[1]), want[0].end());
  CHECK(difference("logits", last, want[1], last.size(), tolerance) == "");
  const std::vector<float> first(want[0].begin(), want[0].begin() + std::ssize(want[2]));
  CHECK(difference("logits", first, want[2], first.size(), tolerance) == "");
}

TEST_CASE("on the emulated GPU passes of few tokens and of many take turns in the same memory") {
  check_turns(DType::kFloat16, 2e-2);
  check_turns(DType::kInt8, 1e-1);
  check_turns(DType::kInt4, 1e-1);
}

TEST_CASE("on the emulated GPU a pass that finds no memory adds nothing to its cache") {
  const auto load = [] { return Model::load(kSource / "models/tales-1m", make_cuda_device()); };
  Model model = load(), other = load();
  StaticKvCache cache(model), plain(other);
  const auto logits = [](Model& of, KvCache& with, std::size_t tokens) {
    const std::span<const float> row = of.next_logits(std::vector<int>(tokens, 7), with);
    return std::vector<float>(row.begin(), row.end());
  };
  CHECK(logits(model, cache, 2) == logits(other, plain, 2));
  const cuda_emulation::Settings before = cuda_emulation::settings;
  cuda_emulation::settings.memory = 0;
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_WITH_AS(logits(model, cache, 20), doctest::Contains("too little memory"),
                         std::runtime_error);
    CHECK(cache.length(0) == 2);
  }
  cuda_emulation::settings = before;
  CHECK(logits(model, cache, 20) == logits(other, plain, 20));
}

TEST_CASE("on the emulated GPU a layer of many tokens takes nine kernels, and in few bits four more") {
  const auto kernels_of_a_layer = [&](DType dtype) {
    const std::vector<int> text(33, 7);
    Model model = Model::load(kSource / "models/tales-6m", make_cuda_device(), dtype);
    const auto so_far = [] { return cuda_emulation::overlapping_launches + cuda_emulation::products; };
    const int before = so_far();
    model.last_logits(text, 33);
    // Besides the layers: the embedding, the last norm, and the output layer, which rounds its rows to 16
    // bits and widens its weights to them.
    const int others = dtype == DType::kFloat32 ? 3
                       : is_quantized(dtype)    ? 5
                                                : 4,
              n_layer = model.config().n_layer;
    const int in_layers = so_far() - before - others;
    CHECK(in_layers % n_layer == 0);
    return in_layers / n_layer;
  };
  CHECK(kernels_of_a_layer(DType::kFloat32) == 9);
  CHECK(kernels_of_a_layer(DType::kFloat16) == 9);
  CHECK(kernels_of_a_layer(DType::kBFloat16) == 9);
  CHECK(kernels_of_a_layer(DType::kInt8) == 13);
  CHECK(kernels_of_a_layer(DType::kInt4) == 13);
}

TEST_CASE("on the emulated GPU a layer of up to 32 tokens takes five kernels, with 16 bits and fewer") {
  for (const DType dtype : {DType::kBFloat16, DType::kInt8, DType::kInt4}) {
    Model model = Model::load(kSource / "models/tales-6m", make_cuda_device(), dtype);
    for (const int tokens : {1, 2, 9, 32}) {
      const auto so_far = [] { return cuda_emulation::overlapping_launches + cuda_emulation::products; };
      const int before = so_far();
      model.last_logits(std::vector<int>(static_cast<std::size_t>(tokens), 7), tokens);
      // Besides the layers: the embedding, the last norm, and the output layer.
      CAPTURE(tokens);
      INFO(to_string(dtype));
      CHECK(so_far() - before == 3 + 5 * model.config().n_layer);
    }
  }
}

TEST_CASE("on the emulated GPU decoding with a cache is done by graphs") {
  const std::vector<int> text = {1, 2, 3, 500, 7, 8, 9, 10, 11};
  for (const DType dtype : {DType::kFloat32, DType::kInt8, DType::kInt4}) {
    Model model = Model::load(kSource / "models/tales-1m", make_cuda_device(), dtype);
    for (int time = 0; time < 2; ++time) {
      StaticKvCache cache(model);
      const int before = cuda_emulation::graphs_launched;
      for (const int& token : text) model.next_logits(std::span(&token, 1), cache);
      CHECK(cuda_emulation::graphs_launched - before >= 7);
    }
  }
}

// Tokens that arrive one by one go through the kernel for a few queries, and from the second on through a
// graph.
void check_cache(DType dtype, double tolerance) {
  const std::vector<int> text = {1, 2, 3, 500, 7, 8, 9, 10, 11, 12, 5, 4, 300, 31, 8};
  const LeastVectors vectors;
  for (const std::string name : {"tales-1m", "tales-gqa-1m"}) {
    const auto logits = [&](std::shared_ptr<Device> device, bool paged) {
      Model model = Model::load(kSource / "models" / name, std::move(device));
      model.use_cache_dtype(dtype);
      StaticKvCache rows(model);
      PagedKvCache blocks(model, 1, 2);
      KvCache& cache = paged ? static_cast<KvCache&>(blocks) : rows;
      if (paged) REQUIRE(blocks.reserve(0, static_cast<int>(text.size())));
      model.next_logits(std::span(text).first(9), cache);
      std::span<const float> last;
      for (const int& token : std::span(text).subspan(9))
        last = model.next_logits(std::span(&token, 1), cache);
      return std::vector<float>(last.begin(), last.end());
    };
    CAPTURE(name);
    INFO(to_string(dtype));
    const std::vector<float> want = logits(make_cpu_device(1), false),
                             got = logits(make_cuda_device(), false);
    CHECK(difference("logits", got, want, want.size(), tolerance) == "");
    CHECK(logits(make_cuda_device(), true) == got);
  }
}

TEST_CASE("on the emulated GPU a cache of 8 or 4 bits gives the CPU's logits, in rows and in blocks") {
  check_cache(DType::kInt8, 2e-2);  // a rounding may flip
  check_cache(DType::kInt4, 5e-2);
}

Model tiny_on_gpu() {
  const TemporaryFolder folder;
  TinyModel().write(folder.path());
  return Model::load(folder.path(), make_cuda_device());
}

/// What `work` copies to the host.
template <typename Work>
std::size_t bytes_to_host(const Work& work) {
  const std::size_t before = cuda_emulation::bytes_to_host;
  work();
  return cuda_emulation::bytes_to_host - before;
}

TEST_CASE("on the emulated GPU four bytes a row come to the host, unless logits are read") {
  Model model = tiny_on_gpu();
  constexpr std::size_t kRows = 5;
  const auto width = static_cast<std::size_t>(model.config().vocab_size);
  const std::vector<int> tokens = {1, 2, 3, 50, 7};
  std::vector<std::span<const int>> sequences;
  for (const int& token : tokens) sequences.emplace_back(&token, 1);
  StaticKvCache cache(model, kRows), other(model, kRows);
  const std::size_t ids = 4 * kRows, row_of_logits = 4 * width, logits = kRows * row_of_logits;
  struct Pass {
    std::size_t reads;  // rows
    std::size_t copies;
  };
  // Up to half of the rows come alone. After a pass that has read more, all are copied at once.
  for (const Pass& pass : {Pass{0, ids},
                           {0, ids},
                           {1, ids + row_of_logits},
                           {2, ids + 2 * row_of_logits},
                           {0, ids},
                           {3, ids + 3 * row_of_logits},
                           {3, logits},
                           {1, logits},
                           {1, ids + row_of_logits}}) {
    std::vector<float> want;
    CHECK(bytes_to_host([&] {
            const std::span<const float> all = model.next_logits(sequences, other);
            want.assign(all.begin(), all.end());
          }) == logits);
    const std::size_t bytes = bytes_to_host([&] {
      const Logits got = model.lazy_logits(sequences, cache);
      REQUIRE(got.size() == want.size());
      for (std::size_t r = 0; r < kRows; ++r) {
        const Logits row = got.subspan(r * width, width);
        const auto own = std::span(want).subspan(r * width, width);
        CHECK(row.argmax() == argmax(own));
        if (kRows - r > pass.reads) continue;
        for (int time = 0; time < 2; ++time) CHECK(std::ranges::equal(std::span<const float>(row), own));
      }
    });
    CAPTURE(pass.reads);
    CHECK(bytes == pass.copies);
  }
}

/// Reads the logits of each pass.
struct ReadingEngine : StaticEngine {
  using StaticEngine::StaticEngine;
  Logits forward(std::span<const std::span<const int>> sequences) override {
    return std::span<const float>(StaticEngine::forward(sequences));
  }
};

TEST_CASE(
    "on the emulated GPU greedy texts and drawn ones of one batch are the same with and without logits") {
  Model model = tiny_on_gpu();
  const Tokenizer tokenizer = Tokenizer::load(kSource / "models/tales-1m");
  RowOptions greedy, drawn, with_logprobs, from_few;
  greedy.stopping = {.max_new_tokens = 6, .ignore_eos = true};
  drawn = with_logprobs = greedy;
  drawn.sampling = {.do_sample = true, .seed = 3};
  with_logprobs.logprobs.count = 2;
  from_few = drawn;
  from_few.sampling.top_k = 5;
  using Lines = std::vector<std::pair<int, std::vector<int>>>;
  const auto texts = [&](const std::vector<RowOptions>& rows, bool reads) {
    StaticKvCache cache(model, static_cast<int>(rows.size()));
    StaticEngine lazy(model, cache);
    ReadingEngine reading(model, cache);
    Lines lines;
    Scheduler scheduler(
        reads ? reading : lazy, tokenizer, static_cast<int>(rows.size()), {}, [](int, const Token&) {},
        [&](int number, Generation text) { lines.emplace_back(number, text.tokens); });
    for (int i = 0; i < std::ssize(rows); ++i)
      scheduler.submit(i, {1, 2 + i, 7}, rows[static_cast<std::size_t>(i)]);
    while (!scheduler.idle()) scheduler.pass();
    return lines;
  };
  for (const auto& rows : {std::vector{greedy, greedy},
                           {greedy, drawn, greedy},
                           {drawn},
                           {with_logprobs, greedy},
                           {from_few},
                           {greedy, from_few, from_few},
                           {from_few, drawn}}) {
    CAPTURE(rows.size());
    CHECK(texts(rows, false) == texts(rows, true));
  }
  texts({greedy}, false);
  CHECK(bytes_to_host([&] { texts({greedy, greedy, greedy}, false); }) == 6 * 3 * 4);
}

TEST_CASE("on the emulated GPU each sequence gives logits after as many of its tokens as it wants") {
  Model model = tiny_on_gpu();
  const std::vector<int> first{1, 5, 7, 9}, second{3, 2, 8}, third{4};
  const std::vector<std::span<const int>> batch{first, second, third};
  const std::vector<int> counts{1, 3, 1};
  StaticKvCache cache(model, 3);
  const Logits got = model.lazy_logits(batch, counts, cache);
  const std::size_t width = got.size() / 5;
  std::vector<int> largest;
  for (std::size_t row = 0; row < 5; ++row) largest.push_back(got.subspan(row * width, width).argmax());
  const std::span<const float> all = got;
  const std::vector<float> rows(all.begin(), all.end());
  std::size_t row = 0;
  for (std::size_t s = 0; s < batch.size(); ++s) {
    for (int i = counts[s]; i > 0; --i, ++row) {
      const auto before = batch[s].first(batch[s].size() + 1 - static_cast<std::size_t>(i));
      const auto own = std::span(rows).subspan(row * width, width);
      CHECK(other_logits(own, model.next_logits(before)) == "");
      CHECK(argmax(own) == largest[row]);
    }
  }
}

TEST_CASE("on the emulated GPU rows with a top-k need 516 bytes each, and the same texts come of it") {
  const Tokenizer tokenizer = Tokenizer::load(kSource / "models/tales-1m");
  constexpr int kRows = 3, kTokens = 12;
  std::vector<std::vector<int>> texts[2];
  const auto run = [&](Model& model, const SamplingOptions& sampling, int tokens, auto& into, bool reads) {
    into.resize(kRows);
    StaticKvCache cache(model, kRows);
    StaticEngine lazy(model, cache);
    ReadingEngine reading(model, cache);
    Scheduler scheduler(
        reads ? reading : lazy, tokenizer, kRows, {}, [](int, const Token&) {},
        [&](int number, Generation text) { into[static_cast<std::size_t>(number)] = text.tokens; });
    for (int i = 0; i < kRows; ++i) {
      RowOptions options;
      options.stopping = {.max_new_tokens = tokens, .ignore_eos = true};
      options.sampling = sampling;
      options.sampling.seed = static_cast<unsigned>(i);
      scheduler.submit(i, {1, 2 + i, 7}, options);
    }
    while (!scheduler.idle()) scheduler.pass();
  };
  struct Case {
    SamplingOptions sampling;
    std::size_t k;
  };
  for (const auto& [sampling, k] :
       {Case{{.do_sample = true, .temperature = 0.8f, .top_k = 50}, 64},
        Case{{.do_sample = true, .temperature = 0.6f, .top_k = 100, .top_p = 0.9f}, 128}}) {
    CAPTURE(k);
    Model model = Model::load(kSource / "models/tales-1m", make_cuda_device());
    const auto vocab_size = static_cast<std::size_t>(model.config().vocab_size);
    run(model, sampling, kTokens, texts[1], true);
    run(model, {}, 1, texts[0], false);  // so that no row has read any
    const std::size_t bytes = bytes_to_host([&] { run(model, sampling, kTokens, texts[0], false); });
    CHECK(texts[0] == texts[1]);
    // The first pass does not know what will be asked for.
    CHECK(bytes == 4 * kRows * (1 + vocab_size + (kTokens - 1) * (2 * k + 1)));
    // A greedy batch after that needs as little as ever, after one pass.
    CHECK(bytes_to_host([&] { run(model, {}, kTokens, texts[0], false); }) ==
          4 * kRows * (2 * k + 1 + kTokens - 1));
  }
}

TEST_CASE("on the emulated GPU a graph is of one model and of one cache") {
  // What decides is where their memory is, which may be where that of others was.
  const std::shared_ptr<Device> device = make_cuda_device();
  const std::vector<int> text = {1, 2, 3, 500, 7, 8, 9, 10, 11};
  const auto logits_of = [&](Model& model, KvCache& cache) {
    std::vector<std::vector<float>> all;
    for (const int& token : text) {
      const std::span<const float> row = model.next_logits(std::span(&token, 1), cache);
      all.emplace_back(row.begin(), row.end());
    }
    return all;
  };
  const char* const names[] = {"models/tales-1m", "models/tales-6m", "models/tales-1m"};
  std::vector<std::vector<std::vector<float>>> want;
  for (const char* const name : names) {
    Model model = Model::load(kSource / name, make_cuda_device());
    StaticKvCache cache(model);
    want.push_back(logits_of(model, cache));
  }
  for (int time = 0; time < 2; ++time) {
    for (std::size_t m = 0; m < std::size(names); ++m) {
      CAPTURE(m);
      Model model = Model::load(kSource / names[m], device);
      std::optional<StaticKvCache> cache(std::in_place, model);
      CHECK(logits_of(model, *cache) == want[m]);
      cache.emplace(model, 1);
      const int before = cuda_emulation::graphs_launched;
      CHECK(logits_of(model, *cache) == want[m]);
      CHECK(cuda_emulation::graphs_launched > before);
      StaticKvCache two_rows(model, 2);
      CHECK(logits_of(model, two_rows) == want[m]);
    }
  }
}

TEST_CASE("on the emulated GPU a graph is of one batch, and of what it finds of the logits") {
  Model model = tiny_on_gpu();
  const auto width = static_cast<std::size_t>(model.config().vocab_size);
  const std::vector<int> one = {1, 2}, other = {50, 7};
  const auto whole = [&](std::size_t others, KvCache& cache) {
    const std::span<const int> sequences[] = {one, std::span(other).first(others)};
    const std::span<const float> all = model.next_logits(sequences, cache);
    return std::vector<float>(all.begin(), all.end());
  };
  StaticKvCache cache(model, 2);
  const auto anew = [&]() -> KvCache& {
    cache.truncate(0, 0);
    cache.truncate(1, 0);
    return cache;
  };
  // Each is done in the same memory, as a graph from the third time on.
  std::vector<std::vector<float>> want;
  for (const std::size_t others : {1u, 2u}) {
    Model fresh = tiny_on_gpu();
    StaticKvCache own(fresh, 2);
    const std::span<const int> sequences[] = {one, std::span(other).first(others)};
    const std::span<const float> all = fresh.next_logits(sequences, own);
    want.emplace_back(all.begin(), all.end());
  }
  for (int time = 0; time < 4; ++time) CHECK(whole(1, anew()) == want[0]);
  for (int time = 0; time < 4; ++time) CHECK(whole(2, anew()) == want[1]);
  for (int time = 0; time < 4; ++time) CHECK(whole(1, anew()) == want[0]);
  for (int time = 0; time < 8; ++time) {
    CAPTURE(time);
    const std::size_t others = time % 4 < 2 ? 1 : 2;
    const std::span<const int> sequences[] = {one, std::span(other).first(others)};
    const Logits logits = model.lazy_logits(sequences, anew());
    for (std::size_t r = 0; r < 2; ++r) {
      const Logits row = logits.subspan(r * width, width);
      CHECK(row.argmax() == argmax(std::span(want[others - 1]).subspan(r * width, width)));
      if (time >= 4) CHECK(row.largest(50).has_value() == (time > 4));
    }
  }
}

TEST_CASE("on the emulated GPU models of different types take turns, as a draft and its target do") {
  const std::vector<int> text = {1, 2, 3, 500, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
  constexpr DType kDTypes[] = {DType::kInt4, DType::kFloat16, DType::kInt8};
  // Many tokens, then one at a time, then a few to verify.
  constexpr std::size_t kPasses[] = {0, 9, 10, 11, 12, 16};
  const auto pass = [&](Model& model, KvCache& cache, std::size_t i) {
    const std::size_t first = kPasses[i], count = kPasses[i + 1] - first;
    const std::span<const float> rows = model.last_logits(std::span(text).subspan(first, count), 1, cache);
    return std::vector<float>(rows.begin(), rows.end());
  };
  const auto load = [](const std::shared_ptr<Device>& device, DType dtype) {
    return Model::load(kSource / "models/tales-1m", device, dtype);
  };
  std::vector<std::vector<float>> want;
  for (const DType dtype : kDTypes) {
    Model model = load(make_cuda_device(), dtype);
    StaticKvCache cache(model);
    for (std::size_t i = 0; i + 1 < std::size(kPasses); ++i) want.push_back(pass(model, cache, i));
  }
  const std::shared_ptr<Device> device = make_cuda_device();
  Model one = load(device, kDTypes[0]), two = load(device, kDTypes[1]), three = load(device, kDTypes[2]);
  for (int time = 0; time < 2; ++time) {
    StaticKvCache caches[] = {StaticKvCache(one), StaticKvCache(two), StaticKvCache(three)};
    for (std::size_t i = 0; i + 1 < std::size(kPasses); ++i) {
      for (std::size_t m = 0; m < 3; ++m) {
        CAPTURE(to_string(kDTypes[m]));
        CAPTURE(i);
        Model& model = m == 0 ? one : m == 1 ? two : three;
        CHECK(pass(model, caches[m], i) == want[m * (std::size(kPasses) - 1) + i]);
      }
    }
  }
}

const bench::GpuOptions kSmallMeasurement{.model = kSource / "models/tales-6m",
                                          .dtype = DType::kFloat16,
                                          .prompt_tokens = 9,
                                          .batches = {1, 2},
                                          .new_tokens = 3,
                                          .rounds = 1,
                                          .copy_bytes = 1 << 20,
                                          .product_size = 64};

/// Operations for the logits after the last of n tokens, product by product and pair by pair.
double operations_counted_one_by_one(const ModelConfig& config, int n) {
  const double d = config.n_embd;
  double multiply_adds = 0.0;
  for (int layer = 0; layer < config.n_layer; ++layer) {
    for (int query = 0; query < n; ++query) {
      multiply_adds += d * 2 * d;  // its key and value
      // Of the last layer, only the last token's row is needed.
      if (layer == config.n_layer - 1 && query < n - 1) continue;
      multiply_adds += d * d;  // the query itself
      for (int key = 0; key <= query; ++key) {
        for (int head = 0; head < config.n_head; ++head) {
          multiply_adds += config.head_size;  // the score
          multiply_adds += config.head_size;  // the weighted value
        }
      }
      multiply_adds += d * d;                   // attention's output
      multiply_adds += 2 * d * config.n_inner;  // the MLP
    }
  }
  multiply_adds += d * config.vocab_size;  // the logits
  return 2 * multiply_adds;
}

TEST_CASE("the figures of tools/gpu-check exist and add up") {
  const nlohmann::json result = bench::measure_gpu(kSmallMeasurement);
  CHECK(result.at("dtype") == "float16");
  CHECK(result.at("copy_gb_per_s") > 0.0);
  const auto figure = [&](const char* key) {
    CAPTURE(key);
    const double value = result.at(key);
    CHECK(std::isfinite(value));
    CHECK(value > 0.0);
    return value;
  };
  const double operations =
      operations_counted_one_by_one(read_config(kSmallMeasurement.model), kSmallMeasurement.prompt_tokens);
  CHECK(1e12 * figure("prefill_tflop") == doctest::Approx(operations).epsilon(1e-9));
  const double prefill = figure("prefill_tflop_per_s");
  CHECK(1e9 * prefill * figure("ttft_ms") == doctest::Approx(operations));
  CHECK(figure("cublas_size") == 64);
  CHECK(figure("prefill_percent_of_cublas") / 100 == doctest::Approx(prefill / figure("cublas_tflop_per_s")));
  CHECK(figure("prefill_percent_of_cublas_block") / 100 ==
        doctest::Approx(prefill / figure("cublas_block_tflop_per_s")));
  REQUIRE(result.at("decode").size() == 2);
  for (const auto& decode : result.at("decode")) {
    const double batch = decode.at("batch"), seconds = decode.at("ms_per_step").get<double>() / 1e3;
    CHECK(decode.at("tokens_per_s").get<double>() == doctest::Approx(batch / seconds));
    // 11.8 MB of weights, and a cache of some kB.
    CHECK(1e9 * decode.at("gb_per_s").get<double>() * seconds == doctest::Approx(11.5e6).epsilon(0.05));
  }
}

TEST_CASE("cuBLAS's rate for weights in few bits is measured in the type of their operands") {
  // In int8 5.8 MB of weights and 0.4 MB of scales; in int4 2.4 MB and 0.3 MB, and 1.1 MB of the embedding in
  // int8. In both 0.1 MB of norms and biases, and a cache of up to 0.2 MB.
  for (const auto& [dtype, bytes] : {std::pair{DType::kInt8, 6.2e6}, {DType::kInt4, 3.95e6}}) {
    bench::GpuOptions options = kSmallMeasurement;
    options.dtype = dtype;
    const nlohmann::json result = bench::measure_gpu(options);
    CHECK(result.at("dtype") == to_string(dtype));
    CHECK(result.at("cublas_tflop_per_s") > 0.0);
    CHECK(result.at("cublas_block_tflop_per_s") > 0.0);
    for (const auto& decode : result.at("decode")) {
      const double seconds = decode.at("ms_per_step").get<double>() / 1e3;
      CHECK(1e9 * decode.at("gb_per_s").get<double>() * seconds == doctest::Approx(bytes).epsilon(0.05));
    }
  }
}

TEST_CASE(
    "a GPU with too little memory to be measured reports it, as tools/gpu-check expects, and keeps nothing") {
  const cuda_emulation::Settings before = cuda_emulation::settings;
  cuda_emulation::settings.memory = 36'000'000;
  CHECK_THROWS_WITH(bench::measure_gpu(kSmallMeasurement),
                    doctest::Contains("the GPU has too little memory: "));
  CHECK(cuda_emulation::allocations.empty());
  cuda_emulation::settings = before;
}

TEST_CASE("cuBLAS's rate counts the products that it does, and every copy of them") {
  std::unique_ptr<Device> device = make_cuda_device();
  constexpr int kRows = 200, kCopies = 3;
  const double a_pass = kCopies * (2.0 * kRows * 24 * 40 + 2.0 * kRows * 40 * 8);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    CAPTURE(to_string(dtype));
    const double before = cuda_emulation::cublas_operations;
    const double start = bench::now();
    const double rate =
        bench::cublas_tflop_per_s(*device, dtype, kRows, {{"one", 24, 40}, {"two", 40, 8}}, kCopies);
    const double seconds = bench::now() - start;
    const double passes = (cuda_emulation::cublas_operations - before) / a_pass;
    CHECK(passes == std::round(passes));
    CHECK(passes > 7 * 10);  // in rounds; some more to warm up
    CHECK(std::isfinite(rate));
    // The fastest is no slower than all of it together, which includes making the matrices.
    CHECK(rate >= passes * a_pass / seconds / 1e12);
  }
  device.reset();
  CHECK(cuda_emulation::allocations.empty());
}

// ── What fails ──

struct Ended {
  int status;
  std::string error;  ///< all of standard error
};

/// Runs a program of one token on the emulated GPU, and `before_computing` when the model is loaded.
Ended run_program_on_gpu(const std::function<void()>& before_computing = [] {}) {
  const std::string model = (kSource / "models/tales-6m").string();
  const char* arguments[] = {"program",     "--device", "cuda",     "--model",
                             model.c_str(), "--prompt", "Once upon"};
  Program program("A test.");
  const Captured errors(stderr);
  const int status = program.run(static_cast<int>(std::size(arguments)), const_cast<char**>(arguments),
                                 [&](Model& gpt2, const std::vector<int>& prompt, Output&) {
                                   before_computing();
                                   gpt2.next_logits(prompt);
                                 });
  return {status, errors.text()};
}

/// Checks that a program ends with status 1, a line that begins so and no memory left on the GPU.
void check_ends_with(
    const std::string& beginning, const std::function<void()>& before_computing = [] {}) {
  const Ended ended = run_program_on_gpu(before_computing);
  CAPTURE(ended.error);
  CHECK(ended.status == 1);
  CHECK(begins_with(ended.error, "error: " + beginning));
  CHECK(std::count(ended.error.begin(), ended.error.end(), '\n') == 1);
  CHECK(cuda_emulation::allocations.empty());
}

TEST_CASE("a program on a GPU that fails ends with one sentence and status 1") {
  const cuda_emulation::Settings before = cuda_emulation::settings;
  auto& settings = cuda_emulation::settings;
  CHECK(run_program_on_gpu().status == 0);
  settings.devices = 0;
  check_ends_with("--device cuda: the NVIDIA driver finds no GPU");
  settings = before;
  settings.memory = 36'000'000;
  check_ends_with("the GPU has too little memory: 4.2 MB were requested, 1.4 MB of 36.0 MB are free");
  settings = before;
  settings.calls_until_lost = 2;
  check_ends_with("--device cuda: the GPU failed while cuBLAS was started");
  settings.calls_until_lost = 10;
  check_ends_with("the GPU failed while ");
  settings = before;
  check_ends_with("the GPU failed while ", [] { cuda_emulation::settings.calls_until_lost = 40; });
  settings = before;
}

}  // namespace
}  // namespace staircase
