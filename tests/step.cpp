#include "tests/step.h"

#include <cstdlib>
#include <fstream>
#include <map>

namespace staircase {

std::shared_ptr<Device> test_device() {
  const char* const name = std::getenv("STAIRCASE_TEST_DEVICE");
  if (name != nullptr && std::string(name) == "cuda") return make_cuda_device();
  return make_cpu_device(available_processors());
}

Gpt2& tales() {
  static Gpt2 model = Gpt2::load(find_model("tales-6m"), test_device());
  return model;
}

const nlohmann::json& reference(const std::string& name) {
  static std::map<std::string, nlohmann::json> files;
  if (!files.contains(name)) {
    std::ifstream file(STAIRCASE_SOURCE_TREE "/tests/reference/" + name);
    files[name] = nlohmann::json::parse(file);
  }
  return files[name];
}

int first_difference(const std::vector<int>& got, const std::vector<int>& want,
                     const std::vector<double>& gaps) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (i < got.size() && got[i] == want[i]) continue;
    return gaps[i] < 1e-3 ? -1 : static_cast<int>(i);
  }
  return got.size() == want.size() ? -1 : static_cast<int>(want.size());
}

std::vector<int> behind(std::size_t prompt_length, const std::vector<int>& tokens) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt_length), tokens.end()};
}

std::string difference_from_greedy(
    const std::function<std::vector<int>(const std::vector<int>& prompt, int count)>& continued) {
  for (const auto& run : reference("greedy.json")["cases"]) {
    const std::vector<int> prompt = run["prompt_ids"], want = run["ids"];
    const int place = first_difference(continued(prompt, 64), want, run["gaps"]);
    if (place != -1) return run["name"].get<std::string>() + ", token " + std::to_string(place);
  }
  return "";
}

}  // namespace staircase
