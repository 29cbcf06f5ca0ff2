#include "common/program/inputs.h"

#include <algorithm>
#include <sstream>
#include <system_error>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/message.h"
#include "common/base/quoted.h"
#include "kernels/platform.h"

namespace staircase {
namespace {

/// Standard input, byte for byte.
std::string read_standard_input(const std::string& option) {
  std::string text;
  char buffer[1 << 16];
  try {
    while (const std::size_t count = platform::read_standard_input(buffer)) text.append(buffer, count);
  } catch (const std::system_error& fault) {
    throw Error("{} -: standard input cannot be read: {}", option, fault.code().message());
  }
  return text;
}

}  // namespace

std::string read_input(const std::string& option, const std::string& file) {
  return file == "-" ? read_standard_input(option) : read_file_or_pipe(file);
}

std::vector<std::string> read_prompts(const std::string& file) {
  std::vector<std::string> prompts;
  std::istringstream lines(std::string(without_byte_order_mark(read_input("--prompts", file))));
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    prompts.push_back(line);
  }
  if (prompts.empty()) throw Error("--prompts {}: it contains no prompt", typed(file));
  return prompts;
}

RequestTexts read_requests(const std::string& file, const Tokenizer& tokenizer, const ModelConfig& config,
                           const std::function<void(RequestLine&)>& take) {
  RequestTexts texts;
  std::istringstream lines(std::string(without_byte_order_mark(read_input("--requests", file))));
  int number = 0;
  for (std::string text; std::getline(lines, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == text.npos) continue;
    try {
      RequestLine line(text, tokenizer, config);
      take(line);
      texts.prompts.push_back(line.tokens());
      texts.options.push_back(line.options());
    } catch (const Error& error) {
      say_error(fmt::format("--requests {}, line {}: {}", typed(file), number, error.what()));
      texts.complete = false;
    }
  }
  if (texts.prompts.empty() && texts.complete) {
    throw Error("--requests {}: it contains no request to run", typed(file));
  }
  return texts;
}

void warn_of_long_prompts(const Prompts& prompts, int n_positions) {
  const auto is_long = [&](const std::vector<int>& prompt) { return std::ssize(prompt) > n_positions; };
  const auto count = std::ranges::count_if(prompts, is_long);
  if (count == 0) return;
  const auto first = std::ranges::find_if(prompts, is_long);
  const std::string name =
      prompts.size() == 1 ? "the prompt" : fmt::format("prompt {}", first - prompts.begin() + 1);
  const std::string others = count == 1 ? "" : fmt::format("; {} more are also too long", count - 1);
  warn("{} has {} tokens, and the model sees only the last {} of them{}", name, first->size(), n_positions,
       others);
}

}  // namespace staircase
