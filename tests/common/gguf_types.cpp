// Quantized types: the contents of a block equal, to the bit, those of gguf-py.
#include "common/model/gguf_types.h"

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/gguf.h"
#include "common/model/safetensors.h"

using namespace staircase;

namespace {

const std::filesystem::path kReference = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "tests/reference";

}  // namespace

TEST_CASE("numbers of every type are those of gguf-py to the bit") {
  const GgufFile file(kReference / "gguf.gguf");
  const Safetensors expected(kReference / "gguf.safetensors");
  REQUIRE(file.tensors().size() == expected.tensors().size());
  std::set<std::string> types;
  for (const auto& [name_, tensor] : file.tensors()) {
    const auto& name = name_;  // clang 14 captures no structured binding
    CAPTURE(name);
    const GgufType* const type = find_gguf_type(tensor.dtype);
    REQUIRE(type != nullptr);
    REQUIRE((type->to_floats != nullptr));
    const StoredTensor* const wanted = expected.find(name);
    REQUIRE(wanted != nullptr);
    REQUIRE(wanted->shape == tensor.shape);
    const std::int64_t count = tensor.shape[0] * tensor.shape[1];
    REQUIRE(tensor.shape[1] >= 3 * type->block);
    std::vector<float> values(static_cast<std::size_t>(count));
    type->to_floats(tensor.bytes.data(), count / type->block, values.data());
    int differing = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      differing += std::memcmp(&values[i], wanted->bytes.data() + i * sizeof(float), sizeof(float)) != 0;
    }
    CHECK(differing == 0);
    types.emplace(type->name);
  }
  CHECK(types == std::set<std::string>{"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL",
                                       "Q4_K", "Q5_K", "Q6_K"});
}

TEST_CASE("a type is found by its number and by its name") {
  CHECK(find_gguf_type(3) == find_gguf_type("Q4_1"));
  CHECK(find_gguf_type(3)->bytes == 20);
  CHECK(find_gguf_type(10)->name == "Q2_K");
  CHECK((find_gguf_type(10)->to_floats == nullptr));
  CHECK(find_gguf_type(4) == nullptr);
  CHECK(find_gguf_type(1000) == nullptr);
  CHECK(find_gguf_type("Q9_9") == nullptr);
  CHECK(readable_gguf_types() == "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, Q4_K, Q5_K, Q6_K");
}

TEST_CASE("a type that cannot be read has the name that ggml gives to its number") {
  // enum ggml_type in ggml.h.
  const std::map<std::uint32_t, std::string_view> names{
      {9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},  {15, "Q8_K"},  {16, "IQ2_XXS"},
      {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"},
      {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},   {26, "I32"},   {27, "I64"},
      {28, "F64"},    {29, "IQ1_M"},   {34, "TQ1_0"}, {35, "TQ2_0"}, {39, "MXFP4"}};
  for (const auto& [number, name] : names) {
    CAPTURE(number);
    const GgufType* const type = find_gguf_type(number);
    REQUIRE(type != nullptr);
    CHECK(type->name == name);
    CHECK((type->to_floats == nullptr));
    CHECK(find_gguf_type(name) == type);
  }
}
