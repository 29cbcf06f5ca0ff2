// What the checks of every step share: the embedded model, loaded once, and the reference outputs.
#pragma once

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/gpt2.h"
#include "common/model_folder.h"

namespace staircase {

/// Sanitizers make products twenty times slower: what takes seconds without them is left out.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// The CPU, or the GPU where STAIRCASE_TEST_DEVICE is cuda: tools/gpu-check sets it.
inline std::shared_ptr<Device> test_device() {
  const char* const name = std::getenv("STAIRCASE_TEST_DEVICE");
  if (name != nullptr && std::string(name) == "cuda") return make_cuda_device();
  return make_cpu_device(available_processors());
}

/// tales-6m on the device of the tests.
inline Gpt2& tales() {
  static Gpt2 model = Gpt2::load(find_model("tales-6m"), test_device());
  return model;
}

/// tests/reference/`name`, made with Hugging Face transformers; read once.
inline const nlohmann::json& reference(const std::string& name) {
  static std::map<std::string, nlohmann::json> files;
  if (!files.contains(name)) {
    std::ifstream file(STAIRCASE_SOURCE_TREE "/tests/reference/" + name);
    files[name] = nlohmann::json::parse(file);
  }
  return files[name];
}

/// The first place where `got` differs from the `want` of the reference, or -1. Where the two best logits lie
/// closer together than 1e-3 (`gaps`, one for each token) another correct program may choose the other token,
/// and everything behind it may differ: the comparison ends there.
inline int first_difference(const std::vector<int>& got, const std::vector<int>& want,
                            const std::vector<double>& gaps) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (i < got.size() && got[i] == want[i]) continue;
    return gaps[i] < 1e-3 ? -1 : static_cast<int>(i);
  }
  return got.size() == want.size() ? -1 : static_cast<int>(want.size());
}

/// The tokens of `tokens` behind a prompt of `prompt_length`.
inline std::vector<int> behind(std::size_t prompt_length, const std::vector<int>& tokens) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt_length), tokens.end()};
}

/// Empty when `continued(prompt, 64)`, the new tokens, gives every greedy run of the reference; else the
/// first place where it does not.
template <typename Continued>
std::string difference_from_greedy(const Continued& continued) {
  for (const auto& run : reference("greedy.json")["cases"]) {
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    const int place = first_difference(continued(prompt, 64), want, run["gaps"]);
    if (place != -1) return run["name"].get<std::string>() + ", token " + std::to_string(place);
  }
  return "";
}

}  // namespace staircase
