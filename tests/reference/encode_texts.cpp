// encode-texts MODEL < TEXTS: a list of ids for each text of a JSON list on standard input, by the tokenizer
// of a folder or a GGUF file. For foreign_vocabularies.py.
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/error.h"
#include "common/text/tokenizer.h"

int main(int argc, char** argv) try {
  if (argc != 2) throw staircase::UsageError("usage: encode-texts MODEL < TEXTS");
  const staircase::Tokenizer tokenizer = staircase::Tokenizer::load(argv[1]);
  nlohmann::json ids = nlohmann::json::array();
  for (const nlohmann::json& text : nlohmann::json::parse(std::cin)) {
    ids.push_back(tokenizer.encode(text.get<std::string>()));
  }
  std::cout << ids << '\n';
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
