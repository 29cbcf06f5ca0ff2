// print-logits FOLDER COUNT < TOKENS: the logits after each of the last COUNT of the token ids on standard
// input, as raw float32 on standard output. For comparisons with other engines; see make_gpt2_logits.py.
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/model/model.h"

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw staircase::UsageError("usage: print-logits FOLDER COUNT < TOKENS");
    const std::vector<int> tokens{std::istream_iterator<int>(std::cin), {}};
    staircase::Model model =
        staircase::Model::load(argv[1], staircase::make_cpu_device(staircase::available_processors()));
    const std::span<const float> logits = model.last_logits(tokens, std::stoi(argv[2]));
    return std::fwrite(logits.data(), sizeof(float), logits.size(), stdout) == logits.size() ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
