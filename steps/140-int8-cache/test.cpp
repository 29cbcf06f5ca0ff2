#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <map>
#include <random>
#include <sstream>

#include "common/decoding/probabilities.h"
#include "rounded_kv_cache.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

using Floats = std::vector<float>;

/// A text of that many tokens.
std::vector<int> text_of(int length) {
  std::vector<int> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back((i * 1237 + 31) % tales().config().vocab_size);
  return tokens;
}

/// The keys of a layer of a cache in float32, [n_kv_head, n_positions, head_size], and its values.
struct Kept {
  Floats keys, values;

  Kept(KvCache& cache, int layer) {
    const KeysValues kept = cache.layer(layer);
    keys.resize(static_cast<std::size_t>(kept.keys.size()));
    values.resize(keys.size());
    tales().device().copy_to_host(kept.keys, keys);
    tales().device().copy_to_host(kept.values, values);
  }
};

/// Fills all positions of a cache with numbers whose size differs from head to head.
void fill(KvCache& cache) {
  for (int l = 0; l < tales().config().n_layer; ++l) {
    const KeysValues kept = cache.layer(l);
    for (Tensor tensor : {kept.keys, kept.values}) {
      Floats numbers(static_cast<std::size_t>(tensor.size()));
      std::mt19937 generator(static_cast<unsigned>(l));
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = static_cast<float>(generator() % 2001) / 1000.0f - 1.0f;
        numbers[i] *= std::exp2(static_cast<float>(i / 64 % 7));
      }
      tales().device().copy_from_host(numbers, tensor);
    }
  }
}

/// Rounds row by row in a plain loop from position `first` up to `end`, with a scale for `size` numbers.
Floats rounded(Floats numbers, int first, int end, std::size_t size) {
  const auto head_size = static_cast<std::size_t>(tales().config().head_size);
  for (std::size_t i = 0; i < numbers.size(); i += size) {
    const int position = static_cast<int>(i / head_size) % tales().config().n_positions;
    if (position < first || position >= end) continue;
    float largest = 0.0f;
    for (std::size_t j = i; j < i + size; ++j) largest = std::max(largest, std::abs(numbers[j]));
    const float scale = largest / 127.0f;
    for (std::size_t j = i; j < i + size && scale > 0.0f; ++j) {
      numbers[j] = std::nearbyint(numbers[j] / scale) * scale;
    }
  }
  return numbers;
}

void append(KvCache& cache, std::initializer_list<int> counts) {
  for (const int count : counts) cache.append(0, count);
}

double divergence(const Floats& exact, const Floats& logits) {
  return kl_divergence(softmax(exact), softmax(logits));
}

/// The logits after a text whose tokens go through the model one by one.
Floats decoded(Model& model, const std::vector<int>& text, KvCache& cache) {
  Floats logits;
  for (const int& token : text) logits = copy_of(model.next_logits(std::span(&token, 1), cache));
  return logits;
}

/// The lines of a table as {first column: numbers}; the names have one word.
std::map<std::string, std::vector<double>> lines_of(const std::string& table) {
  std::map<std::string, std::vector<double>> lines;
  std::istringstream input(table);
  for (std::string line; std::getline(input, line);) {
    const std::size_t end = line.find("  ");
    std::istringstream numbers(line.substr(std::min(end, line.size())));
    std::vector<double>& row = lines[line.substr(0, end)];
    for (double number = 0.0; numbers >> number;) row.push_back(number);
  }
  return lines;
}

}  // namespace

TEST_CASE("the positions of earlier passes are rounded, each head with scales of its own, and no others") {
  for (const std::size_t size : {16u, 32u, 64u}) {
    RoundedKvCache cache(tales(), size);
    append(cache, {5});
    fill(cache);
    std::vector<Kept> before;
    for (int l = 0; l < tales().config().n_layer; ++l) before.emplace_back(cache, l);
    append(cache, {1});
    for (int l = 0; l < tales().config().n_layer; ++l) {
      CAPTURE(size);
      CAPTURE(l);
      const Kept after(cache, l);
      CHECK(after.keys == rounded(before[static_cast<std::size_t>(l)].keys, 0, 5, size));
      CHECK(after.values == rounded(before[static_cast<std::size_t>(l)].values, 0, 5, size));
    }
  }
}

TEST_CASE("a position is rounded once, after its pass, and again if other tokens have taken its place") {
  RoundedKvCache cache(tales(), 64);
  append(cache, {3, 2});
  fill(cache);
  const Kept before(cache, 2);
  append(cache, {4});
  CHECK(Kept(cache, 2).keys == rounded(before.keys, 3, 5, 64));
  fill(cache);
  cache.truncate(0, 4);
  append(cache, {1});
  CHECK(Kept(cache, 2).keys == before.keys);  // the first four positions were rounded before
  append(cache, {1});
  CHECK(Kept(cache, 2).values == rounded(before.values, 4, 5, 64));
  CHECK(cache.length(0) == 6);
}

TEST_CASE("the first layer holds the numbers of the core's cache in 8 bits, to the bit") {
  // Its keys and values depend on the tokens alone.
  Model model = tales_in(DType::kFloat32);
  RoundedKvCache mine(model, static_cast<std::size_t>(model.config().head_size));
  const std::vector<int> text = text_of(20);
  decoded(model, text, mine);
  mine.append(0, 1);
  try {
    model.use_cache_dtype(DType::kInt8);
  } catch (const UsageError&) {
    return;  // not supported on a GPU
  }
  StaticKvCache core(model);
  decoded(model, text, core);
  const KeysValues kept = core.layer(0);
  const auto positions = static_cast<std::size_t>(kept.keys.dim(2)),
             head_size = static_cast<std::size_t>(model.config().head_size);
  const Floats got = Kept(mine, 0).keys;
  for (std::size_t head = 0; head < static_cast<std::size_t>(kept.keys.dim(1)); ++head) {
    for (std::size_t p = 0; p < text.size(); ++p) {
      const std::int8_t* const stored =
          kept.keys.data<std::int8_t>() + (head * positions + p) * (head_size + sizeof(float));
      float scale = 0.0f;
      std::memcpy(&scale, stored + head_size, sizeof scale);
      for (std::size_t i = 0; i < head_size; ++i) {
        REQUIRE(got[(head * positions + p) * head_size + i] == static_cast<float>(stored[i]) * scale);
      }
    }
  }
}

TEST_CASE("rounding moves the next token's probabilities a little, and as much as the core's 8 bits") {
  Model model = tales_in(DType::kFloat32);
  const std::vector<int> text = text_of(100);
  StaticKvCache exact(model);
  const Floats want = decoded(model, text, exact);
  RoundedKvCache mine(model, static_cast<std::size_t>(model.config().head_size));
  const double found = divergence(want, decoded(model, text, mine));
  CHECK(found > 0.0);
  CHECK(found < 1e-3);
}

TEST_CASE("a rounded cache has a byte for each number, and four for each scale") {
  const std::size_t numbers = StaticKvCache(tales()).use().bytes / sizeof(float);
  for (const std::size_t size : {16u, 64u}) {
    CHECK(RoundedKvCache(tales(), size).use().bytes == numbers + numbers / size * 4);
  }
}

TEST_CASE("caches_of has each type that the device takes, the exact one first, and leaves the model's type") {
  Model model = tales_in(DType::kFloat32);
  model.use_cache_dtype(DType::kBFloat16);
  std::vector<std::string> names;
  for (const TriedCache& tried : caches_of(model)) names.push_back(tried.name);
  CHECK(names == std::vector<std::string>{"float32", "float16", "bfloat16", "int8", "int4", "rounded by 16",
                                          "rounded by 32", "rounded by 64"});
  CHECK(model.kv_dtype() == DType::kBFloat16);
}

TEST_CASE("a type that does not fit the heads is left out, with a warning") {
  const TemporaryFolder folder;
  TinyModel().write(folder.path());  // heads of 8 numbers
  Model model = Model::load(folder.path(), make_test_device(1));
  const Captured captured(stderr);
  std::vector<std::string> names;
  for (const TriedCache& tried : caches_of(model)) names.push_back(tried.name);
  CHECK(names[0] == "float32");
  for (const std::string type : {"int8", "int4"}) {
    CHECK(std::ranges::count(names, type) == 0);
    CHECK(contains(captured.text(), fmt::format("warning: {0} is left out: --cache-dtype {0} needs", type)));
  }
}

TEST_CASE("--compare-caches prints memory, divergence and speed of each cache") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--compare-caches --max-new-tokens 1 --prompt 'Once upon a time there was a king who had "
                  "three sons, and the youngest was called Simpleton.'");
  CHECK(run.status == 0);
  auto lines = lines_of(run.err);
  REQUIRE(lines["float32"].size() == 4);
  REQUIRE(lines["rounded by 16"].size() == 2);
  CHECK(lines["float32"][0] == doctest::Approx(2.0 * 6 * 512 * 256 * 4 / (1 << 20)));
  CHECK(lines["float32"][1] == 0.0);
  CHECK(lines["float32"][3] == 1.0);
  CHECK(lines["bfloat16"][0] == lines["float32"][0] / 2);
  CHECK(lines["rounded by 64"][0] < lines["rounded by 16"][0]);
  CHECK(lines["rounded by 64"][1] < 1.0);
  CHECK(lines["int8"][0] == lines["rounded by 64"][0]);
}

TEST_CASE("--cache-dtype is the type of the program's cache") {
  const auto bytes = [](const std::string& arguments) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 1 --prompt Once " + arguments);
    CHECK(run.status == 0);
    return run.json()["stats"]["cache_bytes"].get<std::size_t>();
  };
  const std::size_t whole = bytes("");
  CHECK(bytes("--cache-dtype auto") == whole);
  CHECK(bytes("--cache-dtype float32 --dtype bfloat16") == whole);
  CHECK(bytes("--cache-dtype float16") == whole / 2);
  CHECK(bytes("--cache-dtype int8") == whole / 4 + whole / 64);
  CHECK(bytes("--cache-dtype int4") == whole / 8 + whole / 16);
}

TEST_CASE("the estimate counts the bytes of the cache's type") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM,
                                     "--max-new-tokens 1 --prompt Once --cache-dtype bfloat16 --context 256");
  CHECK(run.err.find("a cache of up to 1.5 MiB for each text") != std::string::npos);
}

TEST_CASE("a type of the cache that is unknown, or without a cache, is refused in one sentence") {
  const ProgramRun unknown = run_program(STAIRCASE_STEP_PROGRAM, "--cache-dtype int5");
  CHECK(unknown.status == 2);
  CHECK(unknown.err.find("--cache-dtype") != std::string::npos);
  const ProgramRun none = run_program(STAIRCASE_STEP_PROGRAM, "--cache-dtype bfloat16 --no-use-cache");
  CHECK(none.status == 2);
  CHECK(none.err == "error: --cache-dtype bfloat16 needs a cache; leave out --no-use-cache\n");
}
