// Files of llama.cpp's own quantizer, which mixes types: their logits are those of the weights that gguf-py
// finds in them, as llama.cpp computes them in float32.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "common/model/gguf.h"
#include "common/model/model.h"
#include "tests/compare.h"
#include "tests/test_device.h"
#include "tests/transformers.h"

namespace staircase {

TEST_CASE("files of llama.cpp's quantizer have their weights' logits, whatever types they mix") {
  const std::filesystem::path folder = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "tests/reference";
  const nlohmann::json reference = nlohmann::json::parse(std::ifstream(folder / "quantized.json"));
  const std::vector<int> tokens = reference.at("tokens");
  REQUIRE(reference.at("files").size() == 2);
  for (const std::string name : {"q4_k_m", "q5_k_m"}) {
    CAPTURE(name);
    const nlohmann::json& file = reference.at("files").at(name);
    const std::filesystem::path path = folder / "quantized" / (name + ".gguf");
    const GgufFile gguf(path);
    std::map<std::string, std::string> types;
    for (const auto& [tensor, stored] : gguf.tensors()) {
      if (stored.shape.size() > 1) types[tensor] = stored.dtype;
    }
    CHECK(types == file.at("types").get<std::map<std::string, std::string>>());
    Model model = Model::load(path, make_test_device(2), DType::kFloat32);
    const std::vector<float> want = file.at("logits");
    CHECK(difference("logits", model.next_logits(tokens), want, want.size(), 1e-4 * largest(want)) == "");
  }
}

}  // namespace staircase
