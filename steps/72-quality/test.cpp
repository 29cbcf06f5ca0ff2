#include "quality.h"

#include <doctest/doctest.h>

#include <fstream>

#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/plot_script.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

/// The sums of quality in double precision, over one window: Σ −log q(token) and Σ KL(p ‖ q).
struct Sums {
  double surprise = 0.0, divergence = 0.0, count = 0.0;
};

std::vector<double> log_softmax(std::span<const float> logits) {
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  std::vector<double> result;
  for (const float logit : logits) result.push_back(logit - std::log(sum));
  return result;
}

Sums sums(Model& model, Model& exact, const std::vector<int>& window) {
  const auto vocab_size = static_cast<std::size_t>(model.config().vocab_size);
  const auto rows = [&](Model& of) {
    const std::span<const float> logits = of.last_logits(window, static_cast<int>(window.size()));
    return std::vector<float>(logits.begin(), logits.end());
  };
  const std::vector<float> want = rows(exact), got = rows(model);
  Sums found;
  for (std::size_t i = 0; i + 1 < window.size(); ++i, ++found.count) {
    const std::vector<double> p = log_softmax(std::span(want).subspan(i * vocab_size, vocab_size)),
                              q = log_softmax(std::span(got).subspan(i * vocab_size, vocab_size));
    found.surprise -= q[static_cast<std::size_t>(window[i + 1])];
    for (std::size_t j = 0; j < vocab_size; ++j) found.divergence += std::exp(p[j]) * (p[j] - q[j]);
  }
  return found;
}

std::vector<int> unseen(std::size_t text) {
  return reference("unseen.json")["texts"][text];
}

}  // namespace

TEST_CASE("the divergence of two distributions is that of its formula") {
  // Worked out by hand: 0.25 · log ½ + 0.75 · log 1.5.
  const std::vector<float> p{0.25f, 0.75f, 0.0f}, q{0.5f, 0.5f, 0.0f}, other{0.5f, 0.25f, 0.25f};
  CHECK(kl_divergence(p, q) == doctest::Approx(0.130812));
  CHECK(kl_divergence(p, p) == 0.0);
  CHECK(kl_divergence(q, p) == doctest::Approx(0.143841));  // the divergence is not symmetric
  CHECK(kl_divergence(other, p) > 1.0);                     // if p excludes a token, its surprise is infinite
}

TEST_CASE("the perplexity of a text equals Hugging Face's, and nothing diverges from itself") {
  for (const auto& one : reference("logits.json")["cases"]) {
    if (one["mean_nll"].is_null()) continue;
    CAPTURE(one["name"].get<std::string>());
    const std::vector<int> text = one["tokens"];
    const Quality found = quality(tales(), tales(), text);
    CHECK(std::log(found.perplexity) == doctest::Approx(one["mean_nll"].get<double>()).epsilon(1e-5));
    CHECK(found.divergence == 0.0);
  }
}

TEST_CASE("both figures of rounded weights equal sums in double precision") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Model rounded = tales_in(dtype);
    const std::vector<int> text = unseen(0);
    const Sums want = sums(rounded, tales(), text);
    const Quality found = quality(rounded, tales(), text);
    CHECK(std::log(found.perplexity) == doctest::Approx(want.surprise / 511).epsilon(1e-6));
    CHECK(std::abs(found.divergence - want.divergence / 511) < 1e-6);
    if (!tests_are_for_gpu()) CHECK((found.divergence > 1e-5) == (dtype == DType::kBFloat16));
  }
}

TEST_CASE("a text longer than the context is cut into windows, and all of its tokens but their first count") {
  const TemporaryFolder folder;
  TinyModel(1, 5, 13).write(folder.path());
  Model exact = Model::load(folder.path(), make_test_device(1));
  Model model = with_matrices(exact, [](const WeightMatrix& matrix) {
    std::vector<float> values = matrix.values;
    for (float& value : values) value *= 3.0f;
    return values;
  });
  for (const std::size_t length : {2u, 13u, 14u, 15u, 26u, 27u, 30u}) {
    std::vector<int> text;
    for (std::size_t i = 0; i < length; ++i) text.push_back(static_cast<int>(i * i % 5));
    Sums want;
    for (std::size_t first = 0; first < length; first += 13) {
      const auto begin = text.begin() + static_cast<std::ptrdiff_t>(first);
      const std::vector<int> window(
          begin, begin + static_cast<std::ptrdiff_t>(std::min<std::size_t>(13, length - first)));
      const Sums part = sums(model, exact, window);
      want.surprise += part.surprise;
      want.divergence += part.divergence;
      want.count += part.count;
    }
    CAPTURE(length);
    const Quality found = quality(model, exact, text);
    CHECK(std::log(found.perplexity) == doctest::Approx(want.surprise / want.count).epsilon(1e-5));
    CHECK(found.divergence == doctest::Approx(want.divergence / want.count).epsilon(1e-3));
    CHECK(found.divergence > 1e-4);
  }
}

TEST_CASE("every type of the device is compared, and 8 bits in groups of four sizes") {
  std::vector<std::string> names, want;
  std::vector<std::size_t> bytes;
  for (const DType dtype : weight_dtypes()) {
    if (dtype == DType::kFloat32 || !tests_are_for_gpu()) want.emplace_back(to_string(dtype));
  }
  want.insert(want.end(), {"rounded by 32", "rounded by 64", "rounded by 128", "rounded by output"});
  for (const Variant& variant : variants(tales())) {
    names.push_back(variant.name);
    bytes.push_back(variant.model.weight_bytes() - variant.saved);
  }
  if (!tests_are_for_gpu()) CHECK(names == want);
  REQUIRE(bytes.size() >= 5);
  // Worked out by hand: 5,767,168 weights, a scale of four bytes for each group, 151,552 numbers in float32.
  // Six matrices have outputs of 1,024 inputs, and all others of 256.
  const std::size_t wide = 6 * 256 * 1024, narrow = 5'767'168 - wide;
  const std::vector<std::size_t> last(bytes.end() - 4, bytes.end());
  const auto with_scales = [](std::size_t scales) { return 5'767'168 + 4 * scales + 4 * 151'552; };
  CHECK(last == std::vector<std::size_t>{with_scales(5'767'168 / 32), with_scales(5'767'168 / 64),
                                         with_scales(5'767'168 / 128),
                                         with_scales(wide / 1024 + narrow / 256)});
}

TEST_CASE("a type that cannot hold a weight is left out, with a warning") {
  if (tests_are_for_gpu()) return;
  const TemporaryFolder folder;
  TinyModel tiny;
  tiny.tensors.at("h.0.mlp.c_fc.weight").values[0] = 1e5f;  // the largest float16 is 65504
  tiny.write(folder.path());
  const Model exact = Model::load(folder.path(), make_test_device(1));
  const Captured captured(stderr);
  std::vector<std::string> names;
  for (const Variant& variant : variants(exact)) names.push_back(variant.name);
  CHECK(std::ranges::count(names, "float16") == 0);
  CHECK(std::ranges::count(names, "bfloat16") == 1);
  CHECK(contains(captured.text(), "warning: float16 is left out: "));
}

TEST_CASE("weights alone cost less than int8, and larger groups more") {
  std::vector<double> divergences;
  for (Variant& variant : variants(tales())) {
    if (variant.saved == 0 && variant.name != "int8") continue;
    const Quality found = quality(variant.model, tales(), unseen(2));
    CAPTURE(variant.name);
    CHECK(found.divergence > 1e-5);
    CHECK(found.divergence < 2e-3);
    CHECK(found.perplexity ==
          doctest::Approx(quality(tales(), tales(), unseen(2)).perplexity).epsilon(0.005));
    divergences.push_back(found.divergence);
  }
  const std::span<const double> simulated = std::span(divergences).last(4);
  CHECK(std::ranges::is_sorted(simulated));
  if (!tests_are_for_gpu()) CHECK(divergences[0] > simulated[3]);
}

TEST_CASE("--benchmark writes a line for each form of the weights") {
  const TemporaryFolder folder;
  const PlotScript script;
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--prompt \"Once upon a time there was a man\" --max-new-tokens 3 --benchmark \"" +
                      folder.path().string() + "\"");
  REQUIRE(run.status == 0);
  const std::string plot = PlotScript::text(folder.path() / "quality.svg");
  CHECK(contains(plot, axes("MiB of weights", "KL divergence from float32, 1/1000 nats")));
  std::ifstream csv(folder.path() / "quality.csv");
  std::vector<std::string> lines;
  for (std::string line; std::getline(csv, line);) lines.push_back(line);
  REQUIRE(lines.size() >= 6);
  CHECK(lines[0] == "weights,MiB,perplexity,change %,KL mnats,tokens/s,speed-up\r");
  CHECK(begins_with(lines[1], "float32,22.578125,"));
  CHECK(contains(lines[1], ",0.000000,0.000000,"));
  CHECK(ends_with(lines[1], ",1.000000\r"));
  CHECK(begins_with(lines.back(), "rounded by output,"));
  for (std::size_t i = 1; i < lines.size(); ++i) {
    std::istringstream fields(lines[i]);
    std::string name, mebibytes, perplexity, change, divergence;
    for (std::string* field : {&name, &mebibytes, &perplexity, &change, &divergence})
      std::getline(fields, *field, ',');
    const auto points = points_of(plot, static_cast<int>(i) - 1);
    REQUIRE(points.size() == 1);
    CHECK(points[0][0] == doctest::Approx(std::stod(mebibytes)));
    CHECK(points[0][1] == doctest::Approx(std::stod(divergence)).epsilon(1e-4));
  }
  CHECK(ends_with(lines.back(), ",–,–\r"));
}

TEST_CASE("a text without a token to predict is refused") {
  const TemporaryFolder folder;
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--benchmark \"" + (folder.path() / "results").string() + "\"");
  CHECK(run.status == 2);
  CHECK(contains(run.err, "--benchmark needs a --prompt of two tokens or more"));
  CHECK(!std::filesystem::exists(folder.path() / "results"));
}
