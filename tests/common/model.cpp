// The whole model: against Hugging Face transformers, against plain loops for odd sizes, and against itself
// with a cache, in batches and from every layout of a weight file.
#include "common/model/model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>

#include "common/decoding/static_kv_cache.h"
#include "common/model/model_folder.h"
#include "common/model/pass.h"
#include "common/model/safetensors.h"
#include "common/model/share.h"
#include "common/model/weight_matrices.h"
#include "common/model/weights.h"
#include "tests/captured.h"
#include "tests/compare.h"
#include "tests/error_message.h"
#include "tests/idle_device.h"
#include "tests/kernels/naive.h"
#include "tests/same_logits.h"
#include "tests/test_device.h"
#include "tests/tiny_model.h"

namespace staircase {
namespace {

using Values = std::vector<float>;
using Tokens = std::vector<int>;

const std::filesystem::path kSource = STAIRCASE_SOURCE_TREE;

/// On the CPU a token's logits do not depend, to the bit, on what else is computed. A GPU has several kernels
/// for it.
const bool kManyKernels = tests_are_for_gpu();

/// How far a logit may be off: so little on the CPU, and 1e-3 on a GPU, which sums in other orders.
double tolerance(double on_cpu) {
  return kManyKernels ? 1e-3 : on_cpu;
}

Model& tales() {
  static Model model = Model::load(kSource / "models/tales-6m", make_test_device(2));
  return model;
}

Model load_tiny(const TinyModel& model, const std::string& dtype = "F32", const std::string& prefix = "",
                DType kept = DType::kFloat32) {
  const TemporaryFolder folder;
  model.write(folder.path(), dtype, prefix);
  return Model::load(folder.path(), make_test_device(2), kept);
}

void set_config(const std::filesystem::path& folder, const std::string& key, const nlohmann::json& value) {
  nlohmann::json config = nlohmann::json::parse(std::ifstream(folder / "config.json"));
  config[key] = value;
  std::ofstream(folder / "config.json") << config;
}

Values copy(std::span<const float> values) {
  return {values.begin(), values.end()};
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

Tokens some_tokens(std::size_t count, int vocab_size, std::uint32_t seed = 1) {
  std::mt19937 generator(seed);
  Tokens tokens(count);
  for (int& token : tokens) token = static_cast<int>(generator() % static_cast<std::uint32_t>(vocab_size));
  return tokens;
}

/// The simplest cache there can be: memory for all positions from the start. NaN fills memory that was never
/// written or was released, so no read of it goes unnoticed.
class TestCache final : public KvCache {
 public:
  TestCache(Model& model, int rows, int capacity, DType dtype = DType::kFloat32)
      : device_(model.device()), capacity_(capacity), lengths_(static_cast<std::size_t>(rows)) {
    const ModelConfig& config = model.config();
    for (int l = 0; l < config.n_layer; ++l) {
      const std::vector<std::int64_t> shape{rows, config.n_head, capacity, config.head_size};
      layers_.push_back({device_.allocate(dtype, shape), device_.allocate(dtype, shape)});
    }
    for (int row = 0; row < rows; ++row) forget(row, 0);
  }

  int length(int row) const override { return lengths_[static_cast<std::size_t>(row)]; }

  void append(int row, int count) override {
    if (length(row) + count > capacity_) throw Error("the cache is full");
    lengths_[static_cast<std::size_t>(row)] += count;
  }

  KeysValues layer(int index) override { return layers_[static_cast<std::size_t>(index)]; }

  void truncate(int row, int length) override {
    lengths_[static_cast<std::size_t>(row)] = length;
    forget(row, length);
  }

  CacheUse use() const override { return {}; }

 private:
  void forget(int row, int from) {
    for (const KeysValues& layer : layers_) {
      for (const Tensor* tensor : {&layer.keys, &layer.values}) {
        const std::int64_t n_head = tensor->dim(1), head_size = tensor->dim(3);
        for (std::int64_t head = 0; head < n_head; ++head) {
          // All bits set are NaN in every type.
          const std::int64_t elements = (capacity_ - from) * head_size;
          const std::vector<std::int32_t> nan(bytes_of(tensor->dtype(), {elements}) / sizeof(std::int32_t),
                                              -1);
          Tensor positions = tensor->reshaped({tensor->dim(0) * n_head * capacity_, head_size})
                                 .rows((row * n_head + head) * capacity_ + from, capacity_ - from);
          device_.copy_from_host(nan, positions);
        }
      }
    }
  }

  Device& device_;
  int capacity_;
  std::vector<int> lengths_;
  std::vector<KeysValues> layers_;
};

struct Reference {
  nlohmann::json cases;
  Safetensors tensors;

  static const Reference& get() {
    static const Reference reference = [] {
      const std::filesystem::path folder = kSource / "tests/reference";
      std::ifstream file(folder / "logits.json");
      return Reference{nlohmann::json::parse(file).at("cases"), Safetensors(folder / "logits.safetensors")};
    }();
    return reference;
  }

  const nlohmann::json& by_name(const std::string& name) const {
    for (const auto& c : cases) {
      if (c.at("name") == name) return c;
    }
    throw Error("no reference case {}", name);
  }

  Values values(const std::string& name) const {
    const StoredTensor* const stored = tensors.find(name);
    REQUIRE_MESSAGE(stored != nullptr, name);
    Values values(stored->bytes.size() / sizeof(float));
    std::memcpy(values.data(), stored->bytes.data(), stored->bytes.size());
    return values;
  }
};

// ── Against transformers ──

TEST_CASE("the logits are those of transformers") {
  double largest = 0.0;
  for (const auto& reference : Reference::get().cases) {
    const std::string name = reference.at("name");
    CAPTURE(name);
    const Values want = Reference::get().values(name + ".last_logits");
    const Values got = copy(tales().next_logits(reference.at("tokens").get<Tokens>()));
    CHECK(difference(name + ".last_logits", got, want, want.size(), tolerance(1e-4)) == "");
    CHECK(argmax(got) == reference.at("argmax").get<int>());
    largest = std::max(largest, largest_difference<float>(got, want).largest);
  }
  MESSAGE("largest difference of a logit: ", largest);
}

TEST_CASE("the mean negative log-likelihood of each text is that of transformers") {
  for (const auto& reference : Reference::get().cases) {
    if (reference.at("mean_nll").is_null()) continue;
    const auto tokens = reference.at("tokens").get<Tokens>();
    const auto vocab_size = static_cast<std::size_t>(tales().config().vocab_size);
    const std::span<const float> logits = tales().last_logits(tokens, static_cast<int>(tokens.size()));
    REQUIRE(logits.size() == tokens.size() * vocab_size);
    double nll = 0.0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto row = logits.subspan(i * vocab_size, vocab_size);
      double sum = 0.0;
      for (const float logit : row) sum += std::exp(static_cast<double>(logit));
      nll += std::log(sum) - static_cast<double>(row[static_cast<std::size_t>(tokens[i + 1])]);
    }
    CAPTURE(reference.at("name").get<std::string>());
    CHECK(nll / static_cast<double>(tokens.size() - 1) ==
          doctest::Approx(reference.at("mean_nll").get<double>()).epsilon(kManyKernels ? 1e-5 : 1e-6));
  }
}

TEST_CASE("every hidden state is that of transformers, and the first that differs is named first") {
  const auto& reference = Reference::get().by_name("len17");
  const auto tokens = reference.at("tokens").get<Tokens>();
  std::vector<std::string> names;
  std::vector<Values> states;
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    names.push_back("len17." + std::string(name));
    states.push_back(copy(values));
  });
  const Values logits = copy(tales().last_logits(tokens, 17));
  tales().on_stage(nullptr);

  std::vector<std::string> wanted_names = reference.at("all_positions");
  const std::vector<double> scales = reference.at("all_positions_max_abs");
  names.insert(names.begin(), "len17.logits");
  states.insert(states.begin(), logits);
  REQUIRE(names == wanted_names);
  double largest = 0.0;
  // The logits, first in the list, come last of all.
  for (std::size_t i = 1; i <= names.size(); ++i) {
    const std::size_t n = i % names.size();
    const Values want = Reference::get().values(names[n]);
    CHECK(difference(names[n], states[n], want, want.size() / 17, (kManyKernels ? 2e-5 : 2e-6) * scales[n]) ==
          "");
    largest = std::max(largest, largest_difference<float>(states[n], want).largest / scales[n]);
  }
  MESSAGE("largest difference of a hidden state, relative to the largest value of its layer: ", largest);
}

Model tales_in(DType dtype) {
  return Model::load(find_model("tales-6m"), make_test_device(2), dtype);
}

TEST_CASE("16 bits change the logits as much as rounding does" * doctest::skip(kManyKernels)) {
  const auto reference =
      nlohmann::json::parse(std::ifstream(STAIRCASE_SOURCE_TREE "/tests/reference/bfloat16.json"));
  Model half = tales_in(DType::kFloat16), brain = tales_in(DType::kBFloat16);
  CHECK(half.weight_bytes() < 0.53 * tales().weight_bytes());
  CHECK(brain.weight_bytes() == half.weight_bytes());
  double mean = 0.0, operands = 0.0, everything = 0.0;
  for (const auto& run : reference["cases"]) {
    const Tokens tokens = run["tokens"];
    CAPTURE(run["name"]);
    const Values exact = copy(tales().next_logits(tokens));
    CHECK(same_bits(half.next_logits(tokens), exact));  // the file's own format
    const Values got = copy(brain.next_logits(tokens));
    CHECK(difference("logits", got, exact, exact.size(), 0.1) == "");
    for (std::size_t i = 0; i < got.size(); ++i) {
      mean += std::abs(static_cast<double>(got[i] - exact[i])) / static_cast<double>(got.size());
    }
    operands += run["operands"]["mean_abs_diff"].get<double>();
    everything += run["everything"]["mean_abs_diff"].get<double>();
  }
  // "operands" is the same mathematics. Sums in another order differ in their last bits, and some values are
  // then rounded the other way. That moves all logits of a text together, so texts vary by a third.
  MESSAGE("bfloat16 moves a logit by ", mean / operands, " of what it should, ", mean / everything,
          " of what Hugging Face's moves it");
  CHECK(mean > 0.8 * operands);
  CHECK(mean < 1.2 * operands);
  // That sums, norms and the residual stream stay in float32 is worth it.
  CHECK(mean < 0.8 * everything);
}

/// Logits [rows, vocab_size] as log-probabilities.
Values log_probabilities(std::span<const float> logits) {
  const auto vocab_size = static_cast<std::size_t>(tales().config().vocab_size);
  Values result = copy(logits);
  for (std::size_t row = 0; row < result.size(); row += vocab_size) {
    const std::span<float> values(result.data() + row, vocab_size);
    double sum = 0.0;
    for (const float logit : values) sum += std::exp(static_cast<double>(logit));
    for (float& value : values) value -= static_cast<float>(std::log(sum));
  }
  return result;
}

/// What keeping the weights in that type costs over texts that the model has not seen.
struct Quality {
  double perplexity, exact_perplexity;  ///< in that type, and in float32
  double divergence;                    ///< from float32, nats a token
};

Quality quality(Model& small) {
  const auto texts =
      nlohmann::json::parse(std::ifstream(STAIRCASE_SOURCE_TREE "/tests/reference/unseen.json"));
  double nll = 0.0, exact_nll = 0.0, divergence = 0.0;
  std::size_t count = 0;
  for (const Tokens tokens : texts["texts"]) {
    const int wanted = static_cast<int>(tokens.size());
    const Values exact = log_probabilities(tales().last_logits(tokens, wanted)),
                 got = log_probabilities(small.last_logits(tokens, wanted));
    const auto vocab_size = static_cast<std::size_t>(tales().config().vocab_size);
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const std::size_t next = i * vocab_size + static_cast<std::size_t>(tokens[i + 1]);
      nll -= static_cast<double>(got[next]);
      exact_nll -= static_cast<double>(exact[next]);
      for (std::size_t j = i * vocab_size; j < (i + 1) * vocab_size; ++j) {
        divergence += std::exp(static_cast<double>(exact[j])) * static_cast<double>(exact[j] - got[j]);
      }
      ++count;
    }
  }
  REQUIRE(count == 8 * 511);
  const double tokens = static_cast<double>(count);
  const Quality result{std::exp(nll / tokens), std::exp(exact_nll / tokens), divergence / tokens};
  MESSAGE("perplexity in ", std::string(to_string(small.dtype())), " ", result.perplexity, ", in float32 ",
          result.exact_perplexity, "; divergence from it ", result.divergence, " nats a token");
  return result;
}

TEST_CASE("int8 moves the logits little and leaves each text equally likely" * doctest::skip(kManyKernels)) {
  Model small = tales_in(DType::kInt8);
  CHECK(small.dtype() == DType::kInt8);
  CHECK(small.kv_dtype() == DType::kBFloat16);
  // A byte for each number of a matrix and a scale for 64 of them; 151,552 others stay in float32.
  CHECK(small.weight_bytes() == 5'767'168 + 4 * 5'767'168 / 64 + 4 * 151'552);
  const Quality got = quality(small);
  CHECK(got.perplexity == doctest::Approx(got.exact_perplexity).epsilon(0.005));
  CHECK(got.divergence > 1e-5);
  CHECK(got.divergence < 2e-3);
}

TEST_CASE("int4 leaves each text nearly as likely as it was" * doctest::skip(kManyKernels)) {
  Model small = tales_in(DType::kInt4);
  CHECK(small.dtype() == DType::kInt4);
  CHECK(small.kv_dtype() == DType::kBFloat16);
  // Half a byte for each number of a block's matrices and two for a scale of 32 of them; the embedding of
  // 4,096 · 256 as in int8.
  CHECK(small.weight_bytes() ==
        4'718'592 / 2 + 2 * 4'718'592 / 32 + 1'048'576 + 4 * 1'048'576 / 64 + 4 * 151'552);
  const Quality got = quality(small);
  CHECK(got.perplexity == doctest::Approx(got.exact_perplexity).epsilon(0.05));
  CHECK(got.divergence > 5e-3);
  CHECK(got.divergence < 0.04);
}

TEST_CASE("an unknown type of weights is answered with all known ones") {
  for (const std::string name : {"float32", "float16", "bfloat16", "int8", "int4"}) {
    CHECK(to_string(weight_dtype(name)) == name);
  }
  for (const std::string name : {"int2", "int32", ""}) {
    CHECK(error_message([&] { weight_dtype(name); }) ==
          "--dtype " + name + ": weights are kept in float32, float16, bfloat16, int8 or int4");
  }
}

// ── Against plain loops ──

/// Logits after every token, [tokens.size(), vocab_size].
Values naive_logits(const TinyModel& model, const Tokens& tokens) {
  const std::size_t rows = tokens.size(), width = static_cast<std::size_t>(model.n_embd),
                    inner = static_cast<std::size_t>(model.n_inner),
                    vocab = static_cast<std::size_t>(model.vocab_size);
  const auto narrow = [](const naive::Doubles& values) { return Values(values.begin(), values.end()); };
  const auto norm = [&](const Values& x, const std::string& name) {
    return narrow(naive::layer_norm(x, model.values(name + ".weight"), model.values(name + ".bias"), 1e-5,
                                    rows, width));
  };
  const auto linear = [&](const Values& x, const std::string& name, std::size_t in, std::size_t out,
                          Epilogue epilogue, const Values& before = {}) {
    return narrow(naive::linear(x, model.values(name + ".weight"), model.values(name + ".bias"), rows, in,
                                out, epilogue, before));
  };
  Values x(rows * width);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto token = static_cast<std::size_t>(tokens[i / width]);
    x[i] = model.values("wte.weight")[token * width + i % width] + model.values("wpe.weight")[i];
  }
  for (int l = 0; l < model.n_layer; ++l) {
    const std::string block = fmt::format("h.{}.", l);
    const Values qkv =
        linear(norm(x, block + "ln_1"), block + "attn.c_attn", width, 3 * width, Epilogue::kStore);
    Values parts[3];
    for (Values& part : parts) part.resize(rows * width);
    const std::size_t head_size = width / static_cast<std::size_t>(model.n_head);
    for (std::size_t i = 0; i < qkv.size(); ++i) {
      const std::size_t row = i / (3 * width), part = i / width % 3, column = i % width;
      // Queries are [rows, width], keys and values [n_head, rows, head_size].
      const std::size_t place = part == 0
                                    ? row * width + column
                                    : (column / head_size * rows + row) * head_size + column % head_size;
      parts[part][place] = qkv[i];
    }
    const Values attended =
        narrow(naive::attention({{0, static_cast<int>(rows)}}, parts[0], parts[1], parts[2], rows, width,
                                static_cast<std::size_t>(model.n_head)));
    x = linear(attended, block + "attn.c_proj", width, width, Epilogue::kAdd, x);
    const Values hidden = linear(norm(x, block + "ln_2"), block + "mlp.c_fc", width, inner, Epilogue::kGelu);
    x = linear(hidden, block + "mlp.c_proj", inner, width, Epilogue::kAdd, x);
  }
  Values output_layer(width * vocab);
  for (std::size_t i = 0; i < output_layer.size(); ++i) {
    output_layer[i] = model.values("wte.weight")[i % vocab * width + i / vocab];
  }
  return narrow(naive::linear(norm(x, "ln_f"), output_layer, {}, rows, width, vocab));
}

TEST_CASE("a model of odd sizes gives the logits of plain loops, at every position up to the last") {
  const TinyModel tiny;
  Model model = load_tiny(tiny);
  for (const std::size_t length : {1u, 2u, 15u, 16u, 37u}) {
    const Tokens tokens = some_tokens(length, tiny.vocab_size);
    const Values want = naive_logits(tiny, tokens);
    for (const std::size_t count : {std::size_t{1}, (length + 1) / 2, length}) {
      CAPTURE(length);
      const Values got = copy(model.last_logits(tokens, static_cast<int>(count)));
      const Values last(want.end() - static_cast<std::ptrdiff_t>(count * 101), want.end());
      CHECK(difference("logits", got, last, 101, tolerance(2e-5)) == "");
    }
  }
}

// ── Batches and caches ──

TEST_CASE("a batch of sequences of different lengths gives each the same as alone" *
          doctest::skip(kManyKernels)) {
  std::vector<Tokens> texts;
  for (const auto& reference : Reference::get().cases) texts.push_back(reference.at("tokens").get<Tokens>());
  const std::vector<std::span<const int>> batch(texts.begin(), texts.end());
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt4}) {
    Model model = tales_in(dtype);
    const Values together = copy(model.next_logits(batch));
    const std::size_t vocab_size = 4096;
    REQUIRE(together.size() == texts.size() * vocab_size);
    for (std::size_t s = 0; s < texts.size(); ++s) {
      CAPTURE(to_string(dtype));
      CAPTURE(texts[s].size());
      const auto row = std::span(together).subspan(s * vocab_size, vocab_size);
      CHECK(same_bits(row, model.next_logits(texts[s])));
    }
  }
}

TEST_CASE("tokens get the same logits all at once, after a cache and one by one, to the bit" *
          doctest::skip(kManyKernels)) {
  const auto tokens = Reference::get().by_name("len64").at("tokens").get<Tokens>();
  const std::size_t prompt = 40, vocab_size = 4096;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt4}) {
    Model model = tales_in(dtype);
    for (const std::size_t drafted : {2u, 5u, 15u, 24u}) {
      // Without a cache, keys and values are of the type that products take.
      const DType kept = model.device().operand_dtype(64, dtype);
      TestCache together(model, 1, 64, kept), single(model, 1, 64, kept);
      for (TestCache* cache : {&together, &single})
        model.next_logits(std::span(tokens).first(prompt), *cache);
      const auto draft = std::span(tokens).subspan(prompt, drafted);
      const Values got = copy(model.last_logits(draft, static_cast<int>(drafted), together));
      INFO(to_string(dtype));
      const auto all = std::span(tokens).first(prompt + drafted);
      CHECK(same_bits(model.last_logits(all, static_cast<int>(drafted)), got));
      for (std::size_t i = 0; i < drafted; ++i) {
        CAPTURE(i);
        CHECK(same_bits(model.next_logits(draft.subspan(i, 1), single),
                        std::span(got).subspan(i * vocab_size, vocab_size)));
      }
    }
  }
}

TEST_CASE("a check between the parts of a long input changes no logit, and may end it there") {
  const TinyModel tiny(1, 101, 4 * Model::kPart);
  Model whole = load_tiny(tiny), model = load_tiny(tiny);
  int checks = 0, last = 100;
  model.check_between_parts([&] {
    if (++checks == last) throw std::string("stopped");
  });
  struct Case {
    int length, count, checks;
  };
  constexpr int kPart = Model::kPart;
  for (const auto& [length_, count_, wanted] :
       {Case{1, 1, 0}, Case{kPart, 1, 0}, Case{kPart + 1, 1, 1}, Case{2 * kPart, kPart, 1},
        Case{2 * kPart, kPart + 1, 0}, Case{2 * kPart + 2, 2, 2}, Case{4 * kPart, 1, 3}}) {
    const auto& count = count_;    // clang 14 captures no structured binding
    const auto& length = length_;  // clang 14 captures no structured binding
    CAPTURE(length);
    CAPTURE(count);
    const Tokens tokens = some_tokens(static_cast<std::size_t>(length), tiny.vocab_size);
    TestCache at_once(whole, 1, length), in_parts(model, 1, length);
    checks = 0;
    CHECK(other_logits(model.last_logits(tokens, count, in_parts),
                       whole.last_logits(tokens, count, at_once)) == "");
    CHECK(checks == wanted);
    CHECK(in_parts.length(0) == length);
  }
  // Neither without a cache nor in a batch.
  const Tokens tokens = some_tokens(3 * kPart, tiny.vocab_size);
  TestCache rows(model, 2, 3 * kPart);
  checks = 0;
  model.next_logits(tokens);
  model.next_logits(std::vector<std::span<const int>>{tokens, tokens}, rows);
  CHECK(checks == 0);
  // What was computed before the end of an input stays.
  TestCache at_once(whole, 1, 3 * kPart), stopped(model, 1, 3 * kPart);
  last = 2;
  CHECK_THROWS_AS(model.next_logits(tokens, stopped), std::string);
  REQUIRE(stopped.length(0) == 2 * kPart);
  CHECK(other_logits(model.next_logits(std::span(tokens).last(kPart), stopped),
                     whole.next_logits(tokens, at_once)) == "");
  // An input that is refused is refused before its first part.
  Tokens wrong = some_tokens(2 * kPart, tiny.vocab_size);
  wrong.back() = 101;
  TestCache empty(model, 1, 2 * kPart);
  CHECK(says(error_message([&] { model.next_logits(wrong, empty); }), "token 101"));
  CHECK(empty.length(0) == 0);
}

TEST_CASE("prefill and decoding with a cache give the same as recomputing") {
  const auto tokens = Reference::get().by_name("len64").at("tokens").get<Tokens>();
  const std::size_t vocab_size = 4096;
  const Values want = copy(tales().last_logits(tokens, 64));
  // How many tokens go in at a time, after a prefill of the first number.
  for (const std::vector<std::size_t>& steps : {std::vector<std::size_t>{1, 1},
                                                {5, 1},
                                                {16, 1},
                                                {40, 1},
                                                {63, 1},
                                                {64, 1},
                                                {1, 5},
                                                {7, 17},
                                                {20, 33}}) {
    TestCache cache(tales(), 1, 64 + 3);
    std::size_t done = 0;
    while (done < tokens.size()) {
      const std::size_t count = std::min(done == 0 ? steps[0] : steps[1], tokens.size() - done);
      const auto next = std::span(tokens).subspan(done, count);
      const Values got = copy(tales().last_logits(next, static_cast<int>(count), cache));
      done += count;
      REQUIRE(cache.length(0) == static_cast<int>(done));
      const Values rows(want.begin() + static_cast<std::ptrdiff_t>((done - count) * vocab_size),
                        want.begin() + static_cast<std::ptrdiff_t>(done * vocab_size));
      CAPTURE(steps[0]);
      CAPTURE(steps[1]);
      CAPTURE(done);
      CHECK(difference("logits", got, rows, vocab_size, tolerance(1e-4)) == "");
    }
  }
}

TEST_CASE("a cache can be used up to the last position of the context") {
  const auto tokens = Reference::get().by_name("len512").at("tokens").get<Tokens>();
  const Values want = Reference::get().values("len512.last_logits");
  TestCache cache(tales(), 1, 512);
  tales().next_logits(std::span(tokens).first(510), cache);
  tales().next_logits(std::span(tokens).subspan(510, 1), cache);
  const Values got = copy(tales().next_logits(std::span(tokens).last(1), cache));
  CHECK(difference("len512.last_logits", got, want, want.size(), tolerance(1e-4)) == "");
  CHECK(error_message([&] { tales().next_logits(std::span(tokens).last(1), cache); }) ==
        "513 tokens do not fit into the model's context of 512 positions");
  CHECK(cache.length(0) == 512);
}

TEST_CASE("after a roll-back everything is as if there had been no rejected tokens") {
  const auto tokens = Reference::get().by_name("len64").at("tokens").get<Tokens>();
  const auto rejected = some_tokens(23, 4096, 7);
  for (const std::size_t draft : {1u, 4u, 23u}) {
    TestCache straight(tales(), 1, 100), detour(tales(), 1, 100);
    for (TestCache* cache : {&straight, &detour}) tales().next_logits(std::span(tokens).first(20), *cache);
    tales().next_logits(std::span(rejected).first(draft), detour);
    detour.truncate(0, 20);
    for (std::size_t i = 20; i < 30; ++i) {
      const Values want = copy(tales().next_logits(std::span(tokens).subspan(i, 1), straight));
      CAPTURE(draft);
      CAPTURE(i);
      CHECK(same_bits(tales().next_logits(std::span(tokens).subspan(i, 1), detour), want));
    }
  }
}

TEST_CASE("rows of one cache may differ in length and grow by different numbers of tokens") {
  const TinyModel tiny;
  Model model = load_tiny(tiny);
  const std::vector<Tokens> texts = {some_tokens(36, 101, 1), some_tokens(20, 101, 2),
                                     some_tokens(37, 101, 3)};
  const std::vector<std::vector<std::size_t>> rounds = {{1, 17, 20}, {30, 1, 1}, {1, 1, 16}, {4, 1, 0}};
  TestCache cache(model, 3, 41);
  std::vector<std::size_t> done(3);
  for (const auto& counts : rounds) {
    std::vector<std::span<const int>> batch;
    for (std::size_t s = 0; s < 3; ++s) {
      if (counts[s] > 0) batch.push_back(std::span(texts[s]).subspan(done[s], counts[s]));
      done[s] += counts[s];
    }
    const Values got = copy(model.next_logits(batch, cache));
    for (std::size_t s = 0; s < batch.size(); ++s) {
      const Values want = naive_logits(
          tiny, Tokens(texts[s].begin(), texts[s].begin() + static_cast<std::ptrdiff_t>(done[s])));
      const Values row(got.begin() + static_cast<std::ptrdiff_t>(s * 101),
                       got.begin() + static_cast<std::ptrdiff_t>((s + 1) * 101));
      CAPTURE(s);
      CAPTURE(done[s]);
      CHECK(difference("logits", row, Values(want.end() - 101, want.end()), 101, tolerance(2e-5)) == "");
    }
  }
}

TEST_CASE("the number of threads changes no bit of the logits" * doctest::skip(kManyKernels)) {
  const auto tokens = Reference::get().by_name("len64").at("tokens").get<Tokens>();
  const Values want = copy(tales().next_logits(tokens));
  for (const int threads : {1, 3}) {
    Model model = Model::load(kSource / "models/tales-6m", make_cpu_device(threads));
    CHECK(same_bits(model.next_logits(tokens), want));
  }
}

// ── Errors ──

TEST_CASE("intermediate results take as much memory as the largest batches so far needed") {
  const TinyModel tiny;  // n_embd 24, n_inner 50, 101 tokens; in float32 every element takes 4 bytes
  const Tokens seven = some_tokens(7, tiny.vocab_size);
  const std::span<const int> all(seven), sequences[] = {all.first(5), all.last(2)};

  Model model = load_tiny(tiny);
  CHECK(model.activation_bytes() == 0);
  model.next_logits(sequences);
  // For 7 tokens: the residual stream, queries and results of attention, then the hidden layer. For 2
  // sequences as long as the longer one: keys and values. For the 2 tokens with logits: their rows of the
  // residual stream and of attention, the rows after the last norm, and the logits. And as indices 7 tokens,
  // 3 offsets, 2 starts and 2 rows.
  const std::size_t tokens = 7 * (3 * 24 + 50), keys_values = 2 * 2 * 5 * 24, kept = 2 * 2 * 24;
  CHECK(model.activation_bytes() == 4 * (tokens + keys_values + kept + 2 * (24 + 101) + 14));

  const std::size_t before = model.activation_bytes();
  model.next_logits(all.first(3));
  CHECK(model.activation_bytes() == before);

  // Logits after each of 7 tokens: the last norm has 7 rows, and 7 tokens, 2 offsets, 1 start and 7 rows are
  // the indices. No row is dropped, so nothing new is kept.
  model.last_logits(seven, 7);
  CHECK(model.activation_bytes() == 4 * (tokens + keys_values + kept + 7 * (24 + 101) + 17));

  // No model needs less on a processor that multiplies 16 bits: what it stores in them has room for 32.
  for (const DType kept : {DType::kFloat16, DType::kBFloat16}) {
    Model rounded = load_tiny(tiny, "F32", "", kept);
    rounded.next_logits(sequences);
    CHECK(rounded.activation_bytes() == before);
  }

  // A cache has the keys and values.
  Model cached = load_tiny(tiny);
  TestCache cache(cached, 2, 8);
  cached.next_logits(sequences, cache);
  CHECK(cached.activation_bytes() == before - 4 * keys_values);
}

TEST_CASE("input that the model cannot take is refused in one sentence") {
  const Tokens tokens = some_tokens(512, 4096);
  const auto refused = [&](Tokens input, int count = 1) {
    return error_message([&] { tales().last_logits(input, count); });
  };
  CHECK(refused({}) == "the model needs at least one token to predict the next one");
  CHECK(refused(Tokens(513, 0)) == "513 tokens do not fit into the model's context of 512 positions");
  CHECK(refused({5, -1}) == "token -1 is not in the model's vocabulary of 4096 tokens");
  CHECK(refused({4096}) == "token 4096 is not in the model's vocabulary of 4096 tokens");
  CHECK(refused({1, 2, 3}, 0) == "logits after the last 0 of 3 tokens were requested");
  CHECK(refused({1, 2, 3}, -1) == "logits after the last -1 of 3 tokens were requested");
  CHECK(refused({1, 2, 3}, 4) == "logits after the last 4 of 3 tokens were requested");
  CHECK(refused(tokens) == "");
  CHECK(refused({0, 4095}, 2) == "");
  TestCache cache(tales(), 1, 512);
  tales().next_logits(some_tokens(10, 4096), cache);
  CHECK(error_message([&] { tales().next_logits(Tokens(503, 0), cache); }) ==
        "513 tokens do not fit into the model's context of 512 positions");
}

TEST_CASE("a sequence without tokens rests while the others of its batch go on") {
  const Tokens first = some_tokens(7, 4096), second = some_tokens(5, 4096), none;
  TestCache cache(tales(), 3, 16), alone(tales(), 1, 16);
  const std::vector<std::span<const int>> start{first, first, none}, next{none, second, none};
  tales().next_logits(start, cache);
  const std::span<const float> logits = tales().next_logits(next, cache);
  const std::vector<float> got(logits.begin() + 4096, logits.begin() + 2 * 4096);
  CHECK(logits.size() == 3 * 4096);
  CHECK(cache.length(0) == 7);
  CHECK(cache.length(1) == 12);
  CHECK(cache.length(2) == 0);
  tales().next_logits(first, alone);
  const std::span<const float> want = tales().next_logits(second, alone);
  CHECK(other_logits(got, want) == "");
  const std::vector<std::span<const int>> nobody{none, none};
  CHECK(error_message([&] { tales().next_logits(nobody, cache); }) ==
        "the model needs at least one token to predict the next one");
}

TEST_CASE("with a cache that keeps nothing each pass is one without a cache, to the bit") {
  NoCache none;
  CHECK(!none.keeps());
  const Tokens tokens = some_tokens(9, 4096), other = some_tokens(4, 4096, 2);
  for (const Tokens& text : {tokens, other, tokens}) {  // nothing of one is left for the next
    const Values want = copy(tales().last_logits(text, 2));
    CHECK(same_bits(tales().last_logits(text, 2, none), want));
    CHECK(none.length(0) == 0);
  }
  const std::vector<std::span<const int>> batch{tokens, other};
  const Values want = copy(tales().next_logits(batch));
  CHECK(same_bits(tales().next_logits(batch, none), want));
  none.copy_row(0, 1);
  none.slide(0, 1);
  none.truncate(0, 0);
  CHECK(none.length(1) == 0);
  CHECK(none.use().bytes == 0);
}

TEST_CASE("a cache that can neither copy nor slide leaves a row empty, and the model computes it again") {
  const Tokens first = some_tokens(6, 4096), second = some_tokens(3, 4096, 2), none;
  TestCache cache(tales(), 3, 16), alone(tales(), 1, 16);
  CHECK(cache.keeps());
  tales().next_logits(std::vector<std::span<const int>>{first, second, second}, cache);
  cache.copy_row(0, 1);
  CHECK(cache.length(0) == 6);
  CHECK(cache.length(1) == 0);
  cache.slide(2, 1);
  CHECK(cache.length(2) == 0);
  const std::vector<std::span<const int>> again{none, first, second};
  const Values want = copy(tales().next_logits(second, alone));
  CHECK(other_logits(tales().next_logits(again, cache).last(4096), want) == "");
}

TEST_CASE("a refused batch leaves the cache unchanged") {
  const Tokens good = {1, 2, 3}, bad = {4, 4096};
  TestCache cache(tales(), 2, 16);
  const std::vector<std::span<const int>> batch{good, bad};
  CHECK(says(error_message([&] { tales().next_logits(batch, cache); }), "token 4096"));
  CHECK(cache.length(0) == 0);
  CHECK(cache.length(1) == 0);
}

TEST_CASE("logits that stay on the device are those of any other pass, and their largest are known") {
  Model model = load_tiny(TinyModel());
  const Tokens first = some_tokens(5, 101), second = some_tokens(2, 101);
  const std::vector<std::span<const int>> batch{first, second, first};
  const auto rows_equal = [&](const Logits& got, std::span<const float> want, bool reads) {
    REQUIRE(got.size() == want.size());
    for (std::size_t r = 0; r < batch.size(); ++r) {
      const auto row = want.subspan(r * 101, 101);
      CHECK(got.subspan(r * 101, 101).argmax() == argmax(row));
      if (reads) CHECK(same_bits(got.subspan(r * 101, 101), row));
    }
  };
  TestCache plain(model, 3, 37), lazy(model, 3, 37);
  for (const bool reads : {false, true, true, false, false}) {
    const Values want = copy(model.next_logits(batch, plain));
    rows_equal(model.lazy_logits(batch, lazy), want, reads);
  }
  // A vocabulary of another size, and a watcher: these logits are on the host.
  int watched = 0;
  model.after_pass([&](const ForwardPass& pass) { watched += static_cast<int>(pass.logits.size()); });
  TestCache one(model, 3, 37);
  const Values want = copy(model.next_logits(batch));
  rows_equal(model.lazy_logits(batch, one), want, true);
  CHECK(watched == 2 * 3 * 101);
  model.fit_vocabulary(50);
  TestCache other(model, 3, 37);
  const Tokens small = {1, 2, 3};
  const Logits fitted = model.lazy_logits(std::vector<std::span<const int>>{small}, other);
  CHECK(fitted.size() == 50);
  CHECK(same_bits(fitted, model.next_logits(small)));
}

TEST_CASE("each sequence of a batch gives logits after as many of its tokens as it wants") {
  const Tokens first = some_tokens(6, 4096), second = some_tokens(3, 4096, 2),
               third = some_tokens(4, 4096, 9);
  const std::vector<std::span<const int>> batch{first, second, third};
  for (const std::vector<int>& counts : {std::vector{1, 3, 2}, {6, 1, 4}, {1, 1, 1}, {2, 2, 2}}) {
    CAPTURE(counts[0]);
    TestCache cache(tales(), 3, 16);
    const Logits got = tales().lazy_logits(batch, counts, cache);
    REQUIRE(got.size() == static_cast<std::size_t>(std::reduce(counts.begin(), counts.end())) * 4096);
    const Values rows = copy(got);
    std::size_t row = 0;
    for (std::size_t s = 0; s < batch.size(); ++s) {
      CHECK(cache.length(static_cast<int>(s)) == std::ssize(batch[s]));
      for (int i = counts[s]; i > 0; --i, ++row) {
        const auto before = batch[s].first(batch[s].size() + 1 - static_cast<std::size_t>(i));
        const auto own = std::span(rows).subspan(row * 4096, 4096);
        CHECK(other_logits(own, tales().next_logits(before)) == "");
        CHECK(argmax(own) == got.subspan(row * 4096, 4096).argmax());
      }
    }
  }
  for (const std::vector<int>& counts : {std::vector{1, 0, 1}, {1, 4, 1}}) {
    TestCache cache(tales(), 3, 16);
    const std::string error = error_message([&] { tales().lazy_logits(batch, counts, cache); });
    CHECK(says(error, fmt::format("logits after the last {} of 3 tokens were requested", counts[1])));
    CHECK(cache.length(0) == 0);
  }
}

TEST_CASE("the largest logits are searched for where that takes less time than to read them all") {
  const Tokens tokens = some_tokens(5, 4096);
  const std::vector<std::span<const int>> batch{tokens};
  const auto finds = [&](std::size_t count) {
    TestCache asked(tales(), 1, 16), found(tales(), 1, 16);
    tales().lazy_logits(batch, asked).largest(count);
    const Logits logits = tales().lazy_logits(batch, found);
    const auto largest = logits.largest(count);
    std::vector<std::int32_t> order(4096);
    std::ranges::generate(order, [token = 0]() mutable { return token++; });
    const Values row = copy(logits.read_once());
    std::ranges::stable_sort(order, std::greater(), [&](std::int32_t token) { return row[token]; });
    if (largest) CHECK(std::ranges::equal(largest->tokens.first(count), std::span(order).first(count)));
    return largest.has_value();
  };
  CHECK(finds(41));
  CHECK(finds(64));
  CHECK(finds(65) == tests_are_for_gpu());
  CHECK(finds(1024) == tests_are_for_gpu());
}

TEST_CASE("logits that are not finite are found without being read, and the cache is as before") {
  TinyModel tiny;
  for (float& value : tiny.tensors["h.1.mlp.c_proj.weight"].values) value = std::numeric_limits<float>::max();
  Model model = load_tiny(tiny);
  TestCache cache(model, 2, 37);
  const Tokens tokens = some_tokens(20, 101);
  const std::vector<std::span<const int>> batch{tokens, tokens};
  CHECK(says(error_message([&] { model.lazy_logits(batch, cache); }), "a logit of", "weights are broken"));
  CHECK(cache.length(0) == 0);
  CHECK(cache.length(1) == 0);
}

// ── Weight files ──

TEST_CASE("every layout of a weight file gives the same logits") {
  TinyModel tiny;
  const Tokens tokens = some_tokens(20, tiny.vocab_size);
  const Values want = copy(load_tiny(tiny).next_logits(tokens));
  for (const bool extras : {false, true}) {
    if (extras) {
      tiny.add_masks();
      tiny.tensors["lm_head.weight"] = tiny.tensors["wte.weight"];
    }
    for (const std::string dtype : {"F32", "F16", "BF16"}) {
      for (const std::string prefix : {"", "transformer."}) {
        CAPTURE(dtype);
        CAPTURE(prefix);
        CAPTURE(extras);
        CHECK(same_bits(load_tiny(tiny, dtype, prefix).next_logits(tokens), want));
      }
    }
  }
}

TEST_CASE("tensors of different formats may be in one file") {
  TinyModel tiny;
  const Tokens tokens = some_tokens(20, tiny.vocab_size);
  const Values want = copy(load_tiny(tiny).next_logits(tokens));
  const char* const dtypes[] = {"F32", "BF16", "F16"};
  std::size_t i = 0;
  for (auto& [name, tensor] : tiny.tensors) tensor.dtype = dtypes[i++ % 3];
  CHECK(same_bits(load_tiny(tiny).next_logits(tokens), want));
}

TEST_CASE("a weight file that contradicts config.json is refused with the names of file and tensor") {
  const auto refused = [](const std::string& tensor, const auto& change) {
    TinyModel tiny;
    change(tiny);
    const std::string error = error_message([&] { load_tiny(tiny); });
    CAPTURE(error);
    CHECK(says(error, "model.safetensors", tensor));
    return error;
  };
  for (const std::string name :
       {"wte.weight", "wpe.weight", "h.1.attn.c_attn.bias", "h.0.ln_1.weight", "ln_f.bias"}) {
    const std::string missing = refused(name, [&](TinyModel& tiny) { tiny.tensors.erase(name); });
    CHECK(says(missing, "has no tensor"));
  }
  const std::string transposed = refused("h.0.mlp.c_fc.weight", [](TinyModel& tiny) {
    tiny.tensors["h.0.mlp.c_fc.weight"].shape = {50, 24};
  });
  CHECK(says(transposed, "has shape [50, 24], but the configuration requires [24, 50]"));
  refused("wte.weight", [](TinyModel& tiny) { tiny.vocab_size = 102; });
  refused("wpe.weight", [](TinyModel& tiny) { tiny.n_positions = 36; });
  refused("h.2.ln_1.weight", [](TinyModel& tiny) { tiny.n_layer = 3; });
  refused("h.0.attn.c_attn.bias", [](TinyModel& tiny) {
    tiny.tensors["h.0.attn.c_attn.bias"].shape = {1, 72};
  });
  const std::string integers =
      refused("wpe.weight", [](TinyModel& tiny) { tiny.tensors["wpe.weight"].dtype = "I64"; });
  CHECK(says(integers, "I64; F32, F16 and BF16 can be read"));
}

TEST_CASE("non-finite weights are refused with the tensor's name, in every format") {
  for (const std::string name :
       {"wte.weight", "wpe.weight", "h.1.mlp.c_fc.weight", "h.0.attn.c_attn.bias", "ln_f.weight"}) {
    for (const std::string dtype : {"F32", "BF16", "F16"}) {
      for (const float value :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
            -std::numeric_limits<float>::infinity()}) {
        TinyModel tiny;
        tiny.tensors[name].values.back() = value;
        CAPTURE(name);
        CAPTURE(value);
        CAPTURE(dtype);
        for (const DType kept : kManyKernels ? std::vector{DType::kFloat32, DType::kFloat16}
                                             : std::vector{DType::kFloat32, DType::kInt8, DType::kInt4}) {
          const std::string error = error_message([&] { load_tiny(tiny, dtype, "", kept); });
          CHECK(says(error, "model.safetensors", "tensor " + name, "a non-finite value"));
        }
      }
    }
  }
}

TEST_CASE("a weight beyond the range of its type is refused with the tensor's name") {
  const auto error = [](const std::string& name, float value, const std::string& stored, DType kept) {
    TinyModel tiny;
    tiny.tensors[name].values.back() = value;
    return error_message([&] { load_tiny(tiny, stored, "", kept); });
  };
  const float largest = std::numeric_limits<float>::max(), largest_bfloat16 = 255 * 0x1p120f;
  for (const std::string name : {"wte.weight", "h.1.mlp.c_fc.weight"}) {
    CAPTURE(name);
    CHECK(error(name, -largest, "F32", DType::kFloat32) == "");
    CHECK(says(error(name, 65536.0f, "F32", DType::kFloat16), "tensor " + name, "beyond ±65504",
               "in float16; float32 holds it"));
    CHECK(says(error(name, -65536.0f, "BF16", DType::kFloat16), "tensor " + name, "beyond ±65504"));
    CHECK(error(name, -65504.0f, "F32", DType::kFloat16) == "");
    CHECK(error(name, 65504.0f, "F16", DType::kFloat16) == "");
    CHECK(error(name, 65280.0f, "BF16", DType::kFloat16) == "");
    if (kManyKernels) continue;
    for (const DType kept : {DType::kBFloat16, DType::kInt8, DType::kInt4}) {
      CAPTURE(to_string(kept));
      for (const float value : {largest, -std::nextafter(largest_bfloat16, largest)}) {
        CHECK(says(error(name, value, "F32", kept), "tensor " + name, "beyond ±3.38",
                   fmt::format("in {}; float32 holds it", to_string(kept))));
      }
      for (const std::string stored : {"F32", "BF16"}) {
        CHECK(error(name, -largest_bfloat16, stored, kept) == "");
      }
    }
  }
  // Biases, norms and positions are floats for weights of any type.
  CHECK(error("h.0.attn.c_attn.bias", largest, "F32", DType::kInt8) == "");
}

TEST_CASE("sums that overflow end in an error, not in a token") {
  TinyModel tiny;
  for (float& value : tiny.tensors["h.1.mlp.c_proj.weight"].values) value = std::numeric_limits<float>::max();
  const std::string error = error_message([&] { load_tiny(tiny).next_logits(some_tokens(20, 101)); });
  CHECK(says(error, "a logit of", "its weights are broken"));
  CHECK_FALSE(says(error, "cache"));
}

TEST_CASE("a logit of infinity ends in an error as one of NaN does") {
  TinyModel tiny;
  const auto set = [&](const char* name, float value) {
    REQUIRE(tiny.tensors.contains(name));
    std::ranges::fill(tiny.tensors[name].values, value);
  };
  // The last norm yields its bias, and the output layer sums it once per feature.
  set("wte.weight", 1.0f);
  set("ln_f.weight", 0.0f);
  for (const float sign : {1.0f, -1.0f}) {
    set("ln_f.bias", sign * std::numeric_limits<float>::max() / 2);
    const std::string error = error_message([&] { load_tiny(tiny).next_logits(some_tokens(20, 101)); });
    CHECK(says(error, sign > 0 ? "a logit of inf" : "a logit of -inf", "its weights are broken"));
  }
}

TEST_CASE("keys beyond float16's range are named, with the types that hold them") {
  TinyModel tiny;
  std::vector<float>& bias = tiny.tensors["h.0.attn.c_attn.bias"].values;  // of queries, keys and values
  std::fill(bias.begin() + tiny.n_embd, bias.begin() + 2 * tiny.n_embd, 1e5f);
  const auto error = [&](DType dtype) {
    Model model = load_tiny(tiny, "F32", "", dtype);
    TestCache cache(model, 1, 20, dtype);
    return error_message([&] { model.next_logits(some_tokens(4, 101), cache); });
  };
  CHECK(says(error(DType::kFloat16), "a logit of", "beyond ±65504", "bfloat16 and float32 hold it"));
  CHECK(error(DType::kBFloat16) == "");
  CHECK(error(DType::kFloat32) == "");
}

TEST_CASE("a position that the cache has lost is named as a possible cause") {
  Model model = load_tiny(TinyModel());
  TestCache cache(model, 1, 20);
  const Tokens tokens = some_tokens(4, 101);
  model.next_logits(tokens, cache);
  cache.append(0, 1);  // and it is not filled
  const std::string error = error_message([&] { model.next_logits(tokens, cache); });
  CHECK(says(error, "a logit of", "the cache has lost a position", "never filled"));
}

TEST_CASE("a separate output layer replaces the token embedding") {
  TinyModel tiny;
  const Tokens tokens = some_tokens(20, tiny.vocab_size);
  const Values tied = copy(load_tiny(tiny).next_logits(tokens));
  // Its rows are those of the embedding, but in the other order, so the logits are, too.
  const Values& rows = tiny.values("wte.weight");
  TinyTensor head{{tiny.vocab_size, tiny.n_embd}, {}};
  for (int token = tiny.vocab_size - 1; token >= 0; --token) {
    const auto row = rows.begin() + token * tiny.n_embd;
    head.values.insert(head.values.end(), row, row + tiny.n_embd);
  }
  tiny.tensors["lm_head.weight"] = head;
  for (const bool said : {false, true}) {
    const TemporaryFolder folder;
    tiny.write(folder.path());
    if (said) set_config(folder.path(), "tie_word_embeddings", false);
    Model model = Model::load(folder.path(), make_test_device(2));
    const Values own = copy(model.next_logits(tokens));
    for (std::size_t i = 0; i < own.size(); ++i) {
      CHECK(std::abs(own[i] - tied[own.size() - 1 - i]) <= tolerance(1e-5));
    }
  }
}

TEST_CASE("a tied matrix may have the name of the output layer alone") {
  TinyModel tiny;
  const Tokens tokens = some_tokens(20, tiny.vocab_size);
  const Values tied = copy(load_tiny(tiny).next_logits(tokens));
  auto stored = tiny.tensors.extract("wte.weight");
  stored.key() = "lm_head.weight";
  tiny.tensors.insert(std::move(stored));
  CHECK(copy(load_tiny(tiny).next_logits(tokens)) == tied);
  const TemporaryFolder folder;
  tiny.write(folder.path());
  set_config(folder.path(), "tie_word_embeddings", false);
  CHECK(
      says(error_message([&] { Model::load(folder.path(), make_test_device(2)); }), "no tensor wte.weight"));
}

TEST_CASE("an output layer that config.json requires must be there") {
  const TemporaryFolder folder;
  TinyModel().write(folder.path());
  set_config(folder.path(), "tie_word_embeddings", false);
  const auto load = [&] { Model::load(folder.path(), make_test_device(2)); };
  CHECK(says(error_message(load), "model.safetensors", "no tensor lm_head.weight"));
}

TEST_CASE("the matrices come back with their names, an output's weights adjacent, in every type") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    TinyModel tiny;
    const auto embedding = static_cast<std::size_t>(tiny.n_embd);
    for (const bool own_output : {false, true}) {
      if (own_output) {
        Values values = tiny.values("wte.weight");
        values[0] = -values[0] - 0.5f;
        tiny.tensors["lm_head.weight"] = {{tiny.vocab_size, tiny.n_embd}, values};
      }
      const TemporaryFolder folder;
      tiny.write(folder.path());
      std::vector<std::string> names;
      for_each_matrix(
          Model::load(folder.path(), make_test_device(1), dtype), [&](const WeightMatrix& matrix) {
            names.push_back(matrix.name);
            CAPTURE(matrix.name);
            // Multiples of 1/128 below 1, which every format holds exactly; in the blocks [inputs, outputs].
            const Values& stored = tiny.values(matrix.name);
            REQUIRE(matrix.values.size() == stored.size());
            const std::size_t inputs = matrix.inputs, outputs = stored.size() / inputs;
            CHECK(inputs == (matrix.name.ends_with("mlp.c_proj.weight") ? 50 : embedding));
            int wrong = 0;
            for (std::size_t i = 0; i < stored.size(); ++i) {
              const bool output_first = !matrix.name.starts_with("h.");
              wrong += matrix.values[i] != stored[output_first ? i : i % inputs * outputs + i / inputs];
            }
            CHECK(wrong == 0);
          });
      std::vector<std::string> want{"wte.weight"};
      for (const std::string block : {"h.0.", "h.1."}) {
        for (const std::string layer : {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}) {
          want.push_back(block + layer + ".weight");
        }
      }
      if (own_output) want.push_back("lm_head.weight");
      CHECK(names == want);
    }
  }
}

TEST_CASE("a model with other matrices is the one that a file of them makes") {
  const std::vector<int> text{5, 100, 0, 7, 33};
  const auto changed = [](float weight) { return weight * 0.5f - 0.125f; };
  for (const bool own_output : {false, true}) {
    TinyModel tiny;
    if (own_output)
      tiny.tensors["lm_head.weight"] = {{tiny.vocab_size, tiny.n_embd}, TinyModel(2).values("wte.weight")};
    const TemporaryFolder folder, other_folder;
    tiny.write(folder.path());
    for (auto& [name, tensor] : tiny.tensors) {
      if (tensor.shape.size() == 2 && name != "wpe.weight")
        std::ranges::transform(tensor.values, tensor.values.begin(), changed);
    }
    tiny.write(other_folder.path());
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Model model = Model::load(folder.path(), make_test_device(1), dtype);
      const Values before = copy(model.next_logits(text));
      Model other = with_matrices(model, [&](const WeightMatrix& matrix) {
        Values values = matrix.values;
        std::ranges::transform(values, values.begin(), changed);
        return values;
      });
      CHECK(copy(other.next_logits(text)) ==
            copy(Model::load(other_folder.path(), make_test_device(1), dtype).next_logits(text)));
      CHECK(copy(model.next_logits(text)) == before);  // the first one stays as it was
      CHECK(copy(other.next_logits(text)) != before);
      CHECK(other.weight_bytes() == model.weight_bytes());
    }
  }
}

TEST_CASE("a copy of the token embedding as output layer takes no memory") {
  TinyModel tiny;
  const std::size_t bytes = load_tiny(tiny).weight_bytes();
  tiny.tensors["lm_head.weight"] = tiny.tensors["wte.weight"];
  CHECK(load_tiny(tiny).weight_bytes() == bytes);
  tiny.tensors["lm_head.weight"].values[7] += 0.5f;
  CHECK(load_tiny(tiny).weight_bytes() > bytes);
}

TEST_CASE("outputs of a gate and of what it scales are interleaved, and the last turn is padded with zeros") {
  constexpr int kInputs = 3, kOutputs = 20;
  TinyModel tiny;
  for (const float sign : {1.0f, -1.0f}) {
    TinyTensor& tensor = tiny.tensors[sign > 0.0f ? "gate" : "up"];
    tensor.shape = {kOutputs, kInputs};
    for (int i = 1; i <= kOutputs * kInputs; ++i) tensor.values.push_back(sign * static_cast<float>(i));
  }
  const TemporaryFolder folder;
  tiny.write(folder.path());
  const auto device = make_test_device(1);
  WeightReader reader(Checkpoint::open(folder.path()), *device, DType::kFloat32, "", Share(ModelConfig()));
  const Weight weight = reader.gated_matrix({"gate", kOutputs}, {"up", kOutputs}, kInputs);
  REQUIRE(weight.out_features == 4 * kGateColumns);
  for (int k = 0; k < kInputs; ++k) {
    std::vector<float> x(kInputs), outputs(4 * kGateColumns);
    x[k] = 1.0f;
    Tensor row = device->allocate(DType::kFloat32, {1, kInputs});
    Tensor product = device->allocate(DType::kFloat32, {1, weight.out_features});
    device->copy_from_host(x, row);
    device->linear(row, {}, weight, Tensor(), Epilogue::kStore, product);
    device->copy_to_host(product, outputs);
    for (int column = 0; column < std::ssize(outputs); ++column) {
      const int turn = column / kGateColumns, sign = turn % 2 == 0 ? 1 : -1;
      const int output = turn / 2 * kGateColumns + column % kGateColumns;
      CHECK(outputs[column] == (output < kOutputs ? sign * (output * kInputs + k + 1) : 0));
    }
  }
}

/// A cache of which only the key of a pass sees something.
struct ShownCache : KvCache {
  KeysValues kept;

  int length(int /*row*/) const override { return 0; }
  void append(int /*row*/, int /*count*/) override {}
  KeysValues layer(int /*index*/) override { return kept; }
  void truncate(int /*row*/, int /*length*/) override {}
  CacheUse use() const override { return {}; }
};

TEST_CASE("the key of a pass has each size of its batch, and place, type and shape of all that is cached") {
  Model model = load_tiny(TinyModel());
  std::vector<std::uint64_t> key;
  model.run_with([&](Pass& pass) {  // whose logits are zeros
    Tensor logits = pass.logits();
    pass.device().copy_from_host(Values(static_cast<std::size_t>(logits.size())), logits);
    key = pass.key();
  });
  const auto device = make_test_device(1);
  const Shape shape{2, 3, 10, 8};
  const auto made = [&] { return device->allocate(DType::kFloat32, shape); };
  ShownCache cache;
  cache.kept = {made(), made(), made()};
  const Tokens all(30, 1);
  model.last_logits(all, 30, cache);  // so that all memory is as large as any pass here needs
  const auto key_of_pass = [&](const std::vector<std::size_t>& lengths, int count = 1) {
    std::vector<std::span<const int>> sequences;
    for (const std::size_t length : lengths) sequences.push_back(std::span(all).first(length));
    count == 1 ? model.next_logits(sequences, cache) : model.last_logits(sequences[0], count, cache);
    return key;
  };
  CHECK(key_of_pass({2, 1}) == key_of_pass({2, 1}));
  CHECK(key_of_pass({2, 1}) != key_of_pass({2, 2}));  // tokens
  CHECK(key_of_pass({4}, 2) != key_of_pass({4, 0}));  // sequences
  CHECK(key_of_pass({4}, 2) != key_of_pass({4}));     // wanted logits
  CHECK(key_of_pass({3, 1}) != key_of_pass({2, 2}));  // the longest
  const auto before = key_of_pass({2, 1});
  for (Tensor KeysValues::*const part : {&KeysValues::keys, &KeysValues::values, &KeysValues::blocks}) {
    const KeysValues kept = cache.kept;
    const Tensor tensor = kept.*part;
    for (const Tensor& other :
         {made(), tensor.viewed_as(DType::kInt32, shape), tensor.reshaped({3, 2, 10, 8}),
          tensor.reshaped({2, 3, 8, 10}), tensor.reshaped({2, 3, 10, 7})}) {
      cache.kept.*part = other;
      CHECK(key_of_pass({2, 1}) != before);
    }
    cache.kept = kept;
    CHECK(key_of_pass({2, 1}) == before);
  }
  model.last_logits(Tokens(37, 1), 37);  // needs more memory
  CHECK(key_of_pass({2, 1}) != before);
}

/// A device that computes nothing and keeps the last key. All tensors are in the same place, so no key
/// differs by that.
class KeyDevice : public IdleDevice {
 public:
  std::vector<std::uint64_t> key;
  std::function<void()> before_matrix = [] {};

  void run(const std::function<void()>& work, std::span<const std::uint64_t> own) override {
    key.assign(own.begin(), own.end());
    work();
  }

  std::string description() const override { return "a device that keeps keys"; }
  Tensor allocate(DType dtype, const Shape& shape) override {
    REQUIRE(bytes_of(dtype, shape) <= zeros_.size());
    return {dtype, shape, std::shared_ptr<void>(zeros_.data(), [](void*) {})};
  }
  void copy_from_host(std::span<const std::int32_t>, Tensor&) override {}
  void copy_to_host(const Tensor&, std::span<std::byte> to) override { std::ranges::fill(to, std::byte{}); }
  using IdleDevice::load_weight;
  Weight load_weight(std::span<const HostArray> parts, WeightOrder order, DType dtype) override {
    before_matrix();
    return IdleDevice::load_weight(parts, order, dtype);
  }

 private:
  std::vector<std::byte> zeros_ = std::vector<std::byte>(1 << 20);
};

TEST_CASE("the key of a pass is of one model, and of what is found of its logits") {
  const TemporaryFolder folder;
  TinyModel().write(folder.path());
  const auto device = std::make_shared<KeyDevice>();
  Model model = Model::load(folder.path(), device), other = Model::load(folder.path(), device);
  StaticKvCache cache(model);
  const Tokens token{1};
  const std::span<const int> tokens = token;
  const auto batch = std::span(&tokens, 1);
  for (Model* const each : {&model, &other}) {  // until all memory has its place
    for (int time = 0; time < 2; ++time) each->lazy_logits(batch, cache).largest(70);
    each->lazy_logits(batch, cache);
  }
  const auto key_of_all = [&](Model& of) {
    of.next_logits(batch, cache);
    return device->key;
  };
  const auto key_of_found = [&](std::size_t asked) {
    for (int time = 0; time < 2; ++time) model.lazy_logits(batch, cache).largest(asked);
    return device->key;
  };
  const auto whole = key_of_all(model);
  CHECK(key_of_all(model) == whole);
  CHECK(key_of_all(other) != whole);
  model.lazy_logits(batch, cache);
  const auto largest = device->key;
  CHECK(largest != whole);
  CHECK(key_of_found(10) != largest);
  CHECK(key_of_found(10) == key_of_found(60));  // as many of them are found
  CHECK(key_of_found(10) != key_of_found(70));
  CHECK(key_of_found(10) != whole);
}

#ifdef __linux__

/// The bytes that a file in /proc/self has for this key, or 0 if the system does not tell.
std::size_t bytes_in(const char* file, const std::string& key) {
  std::ifstream lines(std::string("/proc/self/") + file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ":")) return 1024 * std::stoul(line.substr(key.size() + 1));
  }
  return 0;
}

/// Bytes of files that are in this process's memory. Pages of 2 MiB do not count: a file that was just
/// written may have them, and then one small vector brings in all of a page.
std::size_t bytes_of_files() {
  const std::size_t all = bytes_in("status", "RssFile"), huge = bytes_in("smaps_rollup", "FilePmdMapped");
  return all > huge ? all - huge : 0;
}

TEST_CASE("a matrix of the file leaves memory before the next one is loaded") {
  for (const char* name :
       {"tales-6m", "tales-moe-1m"}) {  // the second's gates are in order with its products
    CAPTURE(name);
    const std::filesystem::path folder = kSource / "models" / name;
    const auto device = std::make_shared<KeyDevice>();
    const std::size_t before = bytes_of_files(),
                      size = std::filesystem::file_size(folder / "model.safetensors");
    std::size_t most = before;
    device->before_matrix = [&] { most = std::max(most, bytes_of_files()); };
    Model::load(folder, device);
    CHECK(most - before < size / 2);  // a sixth of it is the largest matrix
  }
}

#endif

TEST_CASE("one line warns about all unused contents of a model's files") {
  const auto warning = [](const std::function<void()>& load) {
    Captured captured(stderr);
    load();
    const std::string text = captured.text();
    return text.substr(0, text.find_last_of('\n'));
  };
  TinyModel tiny;
  tiny.add_masks();
  CHECK(warning([&] { load_tiny(tiny); }) == "");
  tiny.n_layer = 1;
  CHECK(says(warning([&] { load_tiny(tiny); }), "warning: ", "model.safetensors", "no use for h.1.",
             "and 11 more tensors"));
  tiny = TinyModel();
  tiny.tensors["h.0.crossattention.bias"] = {{1}, {0.0f}};
  CHECK(says(warning([&] { load_tiny(tiny); }), "no use for h.0.crossattention.bias; "));

  const TemporaryFolder folder;
  TinyModel().write(folder.path());
  set_config(folder.path(), "reorder_and_upcast_attn", true);
  const std::string text = warning([&] { Model::load(folder.path(), make_test_device(2)); });
  CHECK(says(text, "warning: ", "config.json: reorder_and_upcast_attn has no effect here"));
}

}  // namespace
}  // namespace staircase
