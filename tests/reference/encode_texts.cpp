// Encodes texts with the tokenizer of a GGUF file, for foreign_vocabularies.py: it reads the file's keys as a
// JSON object from standard input, with "texts" besides, and writes a list of ids for each of them.
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/text/gguf_vocabulary.h"
#include "common/text/tokenizer.h"

using namespace staircase;
using nlohmann::json;

namespace {

template <typename T>
T value_or(const json& keys, const std::string& name, T otherwise) {
  return keys.value("tokenizer.ggml." + name, otherwise);
}

template <typename T>
std::optional<T> find(const json& keys, const std::string& name) {
  const auto found = keys.find("tokenizer.ggml." + name);
  return found == keys.end() ? std::nullopt : std::optional<T>(found->get<T>());
}

GgufVocabulary read(const json& keys) {
  using Texts = std::vector<std::string>;
  return {.architecture = keys.at("general.architecture"),
          .model = value_or(keys, "model", std::string()),
          .pre = value_or(keys, "pre", std::string()),
          .tokens = value_or(keys, "tokens", Texts()),
          .scores = value_or(keys, "scores", std::vector<float>()),
          .token_type = value_or(keys, "token_type", std::vector<int>()),
          .merges = value_or(keys, "merges", Texts()),
          .bos_token_id = find<int>(keys, "bos_token_id"),
          .eos_token_id = find<int>(keys, "eos_token_id"),
          .eot_token_id = find<int>(keys, "eot_token_id"),
          .eom_token_id = find<int>(keys, "eom_token_id"),
          .add_bos_token = find<bool>(keys, "add_bos_token"),
          .add_eos_token = find<bool>(keys, "add_eos_token"),
          .add_space_prefix = find<bool>(keys, "add_space_prefix")};
}

}  // namespace

int main() try {
  const json input = json::parse(std::cin);
  const Tokenizer tokenizer(describe(read(input), "the file"), "the file");
  json ids = json::array();
  for (const json& text : input.at("texts")) ids.push_back(tokenizer.encode(text.get<std::string>()));
  std::cout << ids << '\n';
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
