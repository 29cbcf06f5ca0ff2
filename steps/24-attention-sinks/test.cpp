#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>

#include "streaming.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/plot_script.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/temporary_folder.h"

namespace staircase {
namespace {

/// The position that `mark` wrote into the entry at each index of a layer's first head.
std::vector<float> places(KvCache& cache, int layer) {
  const KeysValues entries = cache.layer(layer);
  std::vector<float> found;
  for (int p = 0; p < cache.length(0); ++p) {
    const float* const key = entries.keys.data<float>() + p * entries.keys.dim(3);
    const float* const value = entries.values.data<float>() + p * entries.values.dim(3);
    found.push_back(key[0]);
    CHECK(value[0] == key[0]);
  }
  return found;
}

/// Marks the entries of each position with its number, in the first head of all layers.
void mark(KvCache& cache, int layers) {
  for (int l = 0; l < layers; ++l) {
    KeysValues entries = cache.layer(l);
    for (Tensor* tensor : {&entries.keys, &entries.values}) {
      for (int p = 0; p < cache.length(0); ++p)
        tensor->data<float>()[p * tensor->dim(3)] = static_cast<float>(p);
    }
  }
}

std::vector<int> some_text(int count) {
  std::vector<int> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 1237 + 31) % 4000);
  return tokens;
}

TEST_CASE("sinks stay in place, the oldest of the others leave, and `slid` counts them") {
  Model model = Model::load(find_model("tales-1m"), make_cpu_device(1));
  SinkCache cache(model, 2);
  cache.append(0, 10);
  mark(cache, model.config().n_layer);
  cache.slide(0, 3);
  REQUIRE(cache.length(0) == 7);
  CHECK(cache.slid(0) == 3);
  for (int l = 0; l < model.config().n_layer; ++l)
    CHECK(places(cache, l) == std::vector<float>{0, 1, 5, 6, 7, 8, 9});
  cache.slide(0, 1);
  CHECK(places(cache, 0) == std::vector<float>{0, 1, 6, 7, 8, 9});
  CHECK(cache.slid(0) == 4);
}

TEST_CASE("with room for all, the losses are those of the text as a whole") {
  Model model = Model::load(find_model("tales-1m"), make_cpu_device(2));
  const std::vector<int> tokens = some_text(40);
  const std::vector<double> found = losses(model, tokens, 40, 0);
  REQUIRE(found.size() == 39);
  for (std::size_t t = 0; t < 39; ++t) {
    const auto row = model.last_logits(std::span(tokens).first(t + 1), 1);
    double sum = 0.0;
    for (const float logit : row) sum += std::exp(double{logit});
    CHECK(found[t] == doctest::Approx(std::log(sum) - double{row[tokens[t + 1]]}).epsilon(1e-4));
  }
}

TEST_CASE("a window changes nothing before it is full, and something afterwards") {
  Model model = Model::load(find_model("tales-llama-1m"), make_cpu_device(2));
  const std::vector<int> tokens = some_text(40);
  const auto all = losses(model, tokens, 40, 0), window = losses(model, tokens, 16, 0),
             sinks = losses(model, tokens, 16, 3);
  for (int i = 0; i < 16; ++i) {
    CHECK(window[i] == all[i]);
    CHECK(sinks[i] == all[i]);
  }
  double without = 0.0, with = 0.0;
  for (int i = 16; i < 39; ++i) {
    without += std::abs(window[i] - all[i]);
    with += std::abs(sinks[i] - window[i]);
  }
  CHECK(without > 1e-3);
  CHECK(with > 1e-3);
}

TEST_CASE("the perplexities are those of the tokens beyond the window, at the end of the text") {
  Model model = Model::load(find_model("tales-1m"), make_cpu_device(2));
  const int context = model.config().n_positions, window = 40;
  const PlotScript script;
  const std::vector<int> tokens = some_text(context + 9);
  std::string lines;
  {
    const Captured told(stderr);
    compare_windows(model, tokens, {.file = script.file().string(), .window = window, .sinks = 3});
    lines = told.text();
  }
  const std::span<const int> seen = std::span(tokens).subspan(9);
  const auto perplexity = [&](int positions, int sinks) {
    const std::vector<double> loss = losses(model, seen, positions, sinks);
    double sum = 0.0;
    for (int i = window; i < context - 1; ++i) sum += loss[i];
    return std::exp(sum / (context - 1 - window));
  };
  CHECK(begins_with(
      lines, fmt::format("perplexity of the {} tokens beyond the window\n"
                         "  {:<28}{:.2f}\n  {:<28}{:.2f}\n  {:<28}{:.2f}\n",
                         context - 1 - window, "all positions", perplexity(context, 0), "the newest 40",
                         perplexity(window, 0), "the first 3, the newest 37", perplexity(window, 3))));
}

TEST_CASE("a text needs two tokens more than the window") {
  const TemporaryFolder folder;
  const auto message = [&](std::size_t length) {
    return error_message([&] {
      compare_windows(tales(), std::vector<int>(length, 100),
                      {.file = (folder.path() / "x.svg").string(), .window = 4, .sinks = 1});
    });
  };
  CHECK(message(5) == "a text of 5 tokens is too short for a window of 4");
  CHECK(message(6).find("too short") == std::string::npos);
}

TEST_CASE("a text that fits into the window is refused, and so are sinks that fill it") {
  const ProgramRun brief = run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --streaming /tmp/x.svg");
  CHECK(brief.status == 1);
  CHECK(contains(brief.err, "a text of 2 tokens is too short for a window of 256"));
  const ProgramRun full = run_program(STAIRCASE_STEP_PROGRAM, "--prompt 'A fox' --sinks 8 --window 8");
  CHECK(full.status == 2);
  CHECK(contains(full.err, "--sinks must be less than --window"));
}

TEST_CASE("the program scores a text with three caches and plots the losses") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "sinks.svg").string();
  std::string prompt;
  for (int i = 0; i < 60; ++i) prompt += " the wolf and the fox";
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--model tales-llama-1m --prompt - --window 64 --sinks 4 --streaming " + file, prompt);
  for (const char* line : {"all positions", "the newest 64", "the first 4, the newest 60"})
    CHECK(contains(run.err, line));
  if (std::system("command -v gnuplot >/dev/null") == 0) {
    CHECK(run.status == 0);
    std::ifstream svg(file);
    CHECK(std::string(std::istreambuf_iterator<char>(svg), {}).find("What a window costs") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace staircase
