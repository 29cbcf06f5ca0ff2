#include "tests/step.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "common/base/quoted.h"
#include "common/text/tokenizer.h"

template class nlohmann::basic_json<>;

namespace staircase {

Model& tales() {
  static Model model = tales_in(DType::kFloat32);
  return model;
}

Model tales_in(DType dtype) {
  return Model::load(find_model("tales-6m"), make_test_device(available_processors()), dtype);
}

const Tokenizer& tales_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  return tokenizer;
}

const nlohmann::json& reference(const std::string& name) {
  static std::map<std::string, nlohmann::json> files;
  if (!files.contains(name)) {
    std::ifstream file(STAIRCASE_SOURCE_TREE "/tests/reference/" + name);
    files[name] = nlohmann::json::parse(file);
  }
  return files[name];
}

std::string first_difference(const std::vector<int>& got, const std::vector<int>& want,
                             const std::vector<double>& gaps) {
  const auto told = [](const std::vector<int>& tokens, std::size_t i) -> std::string {
    if (i >= tokens.size()) return "nothing";
    if (tokens[i] < 0 || tokens[i] >= tales().config().vocab_size) return fmt::format("the id {}", tokens[i]);
    return quoted(std::string(tales_tokenizer().bytes(tokens[i])));
  };
  for (std::size_t i = 0; i < std::max(got.size(), want.size()); ++i) {
    if (i < got.size() && i < want.size() && got[i] == want[i]) continue;
    if (i < want.size() && gaps[i] < 1e-3) return "";
    return fmt::format("token {}: got {}, want {}", i, told(got, i), told(want, i));
  }
  return "";
}

std::vector<int> tokens_after(std::size_t prompt_length, const std::vector<int>& tokens) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt_length), tokens.end()};
}

std::string difference_from_greedy(
    const std::function<std::vector<int>(const std::vector<int>& prompt, int count)>& continued) {
  for (const auto& run : reference("greedy.json")["cases"]) {
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    const std::string difference = first_difference(continued(prompt, 64), want, run["gaps"]);
    if (!difference.empty()) return "after " + quoted(run["prompt"]) + ", " + difference;
  }
  return "";
}

}  // namespace staircase

namespace doctest {

String StringMaker<std::vector<int>>::convert(const std::vector<int>& values) {
  return fmt::format("{}", values).c_str();
}

String StringMaker<std::vector<float>>::convert(const std::vector<float>& values) {
  return fmt::format("{}", values).c_str();
}

String StringMaker<std::vector<std::vector<int>>>::convert(const std::vector<std::vector<int>>& values) {
  return fmt::format("{}", values).c_str();
}

String StringMaker<staircase::FinishReason>::convert(staircase::FinishReason reason) {
  switch (reason) {
    case staircase::FinishReason::kLength:
      return "FinishReason::kLength";
    case staircase::FinishReason::kEos:
      return "FinishReason::kEos";
    case staircase::FinishReason::kStop:
      return "FinishReason::kStop";
  }
  return "no FinishReason";
}

String StringMaker<staircase::Logprobs>::convert(const staircase::Logprobs& logprobs) {
  String text = "its own " + toString(logprobs.own) + ", the most likely [";
  for (const staircase::Logprob& one : logprobs.likeliest)
    text += fmt::format(" {}: {}", one.token_id, one.logprob).c_str();
  return text + " ]";
}

String StringMaker<nlohmann::json>::convert(const nlohmann::json& value) {
  return value.dump().c_str();
}

}  // namespace doctest
