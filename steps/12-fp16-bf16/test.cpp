#include <doctest/doctest.h>

#include <cmath>

#include "generate.h"
#include "memory_estimate.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

/// The largest distance between two vectors of logits.
float distance(std::span<const float> a, std::span<const float> b) {
  float largest = 0.0f;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

}  // namespace

TEST_CASE("the formula of the weights is their real size, in every type") {
  for (const DType dtype : weight_dtypes()) {
    CHECK(weight_bytes(tales().config(), dtype) == tales_in(dtype).weight_bytes());
  }
  // Worked out by hand: 6 blocks of 4 · 256² + 2 · 256 · 1024 numbers and 4,096 · 256 of the embedding, then
  // 6 · 2,304 biases, 13 · 512 of the norms and 512 · 256 positions.
  CHECK(weight_bytes(tales().config(), DType::kFloat16) == 2 * 5'767'168 + 4 * 151'552);
  CHECK(weight_bytes(tales().config(), DType::kFloat32) == 4 * 5'767'168 + 4 * 151'552);
  // In int8, 64 weights share a scale of four bytes.
  CHECK(weight_bytes(tales().config(), DType::kInt8) == 5'767'168 + 4 * 90'112 + 4 * 151'552);
  // In int4, two weights share a byte and 32 share a scale of two bytes; the embedding stays in int8.
  CHECK(weight_bytes(tales().config(), DType::kInt4) ==
        4'718'592 / 2 + 2 * 147'456 + 1'048'576 + 4 * 16'384 + 4 * 151'552);
}

TEST_CASE("weights of odd sizes have the formula's size, plus the zeros that pad their panels") {
  const TinyModel tiny;
  const TemporaryFolder folder;
  tiny.write(folder.path());
  for (const DType dtype : kDTypes) {
    const Model model = Model::load(folder.path(), make_test_device(1), dtype);
    // On a CPU a matrix is stored as panels of 64 columns, the last one padded. The number of inputs is
    // always even, as bfloat16 needs.
    std::size_t zeros = 0;
    const auto fill_up = [&](int in, int out) {
      zeros += static_cast<std::size_t>(in * ((64 - out % 64) % 64));
    };
    if (!tests_are_for_gpu()) {
      fill_up(tiny.n_embd, tiny.vocab_size);
      for (int l = 0; l < tiny.n_layer; ++l) {
        fill_up(tiny.n_embd, 3 * tiny.n_embd);
        fill_up(tiny.n_embd, tiny.n_embd);
        fill_up(tiny.n_embd, tiny.n_inner);
        fill_up(tiny.n_inner, tiny.n_embd);
      }
    }
    CHECK(model.weight_bytes() == weight_bytes(model.config(), dtype) + zeros * size_of(dtype));
  }
}

TEST_CASE("the formula of the activations is their real size" * doctest::skip(tests_are_for_gpu())) {
  // The model also keeps an index of four bytes for each token, and four more for the sequence.
  const auto measured = [](Model model, int n_tokens) {
    model.next_logits(std::vector<int>(n_tokens, 1));
    return model.activation_bytes() - 4 * static_cast<std::size_t>(n_tokens + 4);
  };
  for (const DType dtype : weight_dtypes()) {
    for (const int n_tokens : {2, 17, 512}) {
      CHECK(measured(tales_in(dtype), n_tokens) == activation_bytes(tales().config(), n_tokens));
    }
  }
  const TinyModel tiny;
  const TemporaryFolder folder;
  tiny.write(folder.path());
  Model model = Model::load(folder.path(), make_test_device(1));
  const ModelConfig config = model.config();
  CHECK(measured(std::move(model), 37) == activation_bytes(config, 37));
  // Worked out by hand: 512 tokens of 5 · 256 + 1,024 numbers, three rows of 256, and 4,096 logits.
  CHECK(activation_bytes(tales().config(), 512) == 4 * 1'184'512);
}

TEST_CASE("16-bit weights take half the memory") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const double share =
        static_cast<double>(tales_in(dtype).weight_bytes()) / static_cast<double>(tales().weight_bytes());
    CHECK(share > 0.5);  // biases, norms and positions stay in float32
    CHECK(share < 0.53);
  }
}

TEST_CASE("float16 changes no logit of a model that is stored in float16") {
  Model half = tales_in(DType::kFloat16);
  // Only a GPU rounds more than the weights: its tensor cores multiply two factors of one type.
  const float allowed = tests_are_for_gpu() ? 2e-2f : 0.0f;
  for (const auto& run : reference("precision.json")["cases"]) {
    const std::vector<int> prompt = run["prompt_ids"];
    CHECK(distance(half.next_logits(prompt), tales().next_logits(prompt)) <= allowed);
  }
}

TEST_CASE("bfloat16 moves the logits less than Hugging Face's bfloat16 moves them") {
  // Both round the factors; here the sums, the norms and the results between two products stay in float32.
  Model brain = tales_in(DType::kBFloat16);
  float moved = 0.0f, moved_there = 0.0f;
  for (const auto& run : reference("bfloat16.json")["cases"]) {
    CAPTURE(run["name"]);
    const std::vector<int> tokens = run["tokens"];
    const float here = distance(brain.next_logits(tokens), tales().next_logits(tokens));
    CHECK(here > 0.0f);
    CHECK(here < 0.1f);
    moved += here;
    moved_there += run["everything"]["max_abs_diff"].get<float>();
  }
  CHECK(moved < 0.8f * moved_there);
}

TEST_CASE("greedy decoding with bfloat16 agrees until the first token that is nearly a tie") {
  Model brain = tales_in(DType::kBFloat16);
  for (const auto& run : reference("greedy.json")["cases"]) {
    CAPTURE(run["name"]);
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    std::mt19937 generator;
    const TextOptions options{.stopping = {.max_new_tokens = 64}};
    const std::vector<int> got =
        tokens_after(prompt.size(), generate(brain, prompt, options, generator, [](const Token&) {}).tokens);
    const auto parting = std::mismatch(got.begin(), got.end(), want.begin(), want.end()).first - got.begin();
    // Each of two logits may move by 0.1; see the test above.
    if (parting < std::ssize(want)) CHECK(run["gaps"][static_cast<std::size_t>(parting)].get<double>() < 0.2);
  }
}

TEST_CASE("the estimate is printed before the model loads") {
  CHECK(memory_estimate(tales().config(), DType::kFloat32) ==
        "by formula: weights 22.6 MiB, activations up to 4.5 MiB");
  CHECK(memory_estimate(tales().config(), DType::kFloat16) ==
        "by formula: weights 11.6 MiB, activations up to 4.5 MiB");
  const TemporaryFolder folder;
  std::filesystem::copy(find_model("tales-6m"), folder.path());
  std::filesystem::remove(folder.path() / "model.safetensors");
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--dtype bfloat16 --model " + folder.path().string());
  CHECK(run.status == 1);
  CHECK(begins_with(run.err, "by formula: weights 11.6 MiB, activations up to 4.5 MiB\nerror: "));
  const ProgramRun whole = run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --dtype bfloat16");
  CHECK(whole.status == 0);
  CHECK(begins_with(whole.err, "by formula: weights 11.6 MiB, activations up to 4.5 MiB\n"));
}

TEST_CASE("--dtype is the type of the program's weights") {
  const std::string arguments = "--max-new-tokens 1 --json --dtype ";
  for (const DType dtype : weight_dtypes()) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, arguments + std::string(to_string(dtype)));
    REQUIRE(run.status == 0);
    CHECK(run.json()["stats"]["weight_bytes"] == tales_in(dtype).weight_bytes());
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, arguments + "int32").status == 2);
}
