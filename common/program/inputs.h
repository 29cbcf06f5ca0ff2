// Reads the texts that a program continues: from the command line, from files and from standard input.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/decoding/results.h"
#include "common/program/requests.h"

namespace staircase {

/// All bytes of the file that an option names; standard input for the name "-". Throws Error if the file
/// cannot be read.
std::string read_input(const std::string& option, const std::string& file);

/// The lines of the file that --prompts names. Throws Error if there is no line.
std::vector<std::string> read_prompts(const std::string& file);

/// The result of reading a file of requests.
struct RequestTexts {
  Prompts prompts;                   ///< the prompts of the accepted requests
  std::vector<OptionTexts> options;  ///< of each request, the options that it sets itself
  bool complete = true;              ///< whether no request was rejected
};

/// Passes each line of the file that --requests names to `take`. A line that is not a request, or that `take`
/// rejects with an Error, is reported on standard error and skipped. Throws Error if there is no line.
RequestTexts read_requests(const std::string& file, const Tokenizer& tokenizer, const ModelConfig& config,
                           const std::function<void(RequestLine& line)>& take);

/// Warns, in a single line, about all prompts that have more tokens than the model's context.
void warn_of_long_prompts(const Prompts& prompts, int n_positions);

}  // namespace staircase
