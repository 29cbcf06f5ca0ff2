// Requests to a program that serves several of them: one JSON object per line, with the text to continue,
// when it arrives, and its own options.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/options.h"
#include "common/model/config.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// Turns a prompt into tokens. An empty prompt becomes the end-of-text token: in training, this token
/// separated two texts, so the model begins a new text after it.
std::vector<int> prompt_tokens(const std::string& text, const Tokenizer& tokenizer,
                               const ModelConfig& config);

/// One line of a file of requests. A step reads its options by their keys; afterwards, `end` rejects every
/// other key.
class RequestLine : public OptionSink {
 public:
  /// Throws Error unless `text` is a JSON object with a "prompt".
  RequestLine(std::string_view text, const Tokenizer& tokenizer, const ModelConfig& config);
  ~RequestLine() override;

  const std::string& prompt() const { return prompt_; }

  /// The tokens of the prompt, and the configuration of the model: the request must fit into its context.
  const std::vector<int>& tokens() const { return tokens_; }
  const ModelConfig& config() const { return config_; }

  /// When the request arrives, in seconds from the start: from 0, the default, to one day. Throws Error for
  /// any other value.
  double arrival();

  /// Reads an option; the key of --top-k is top_k. If the line has the key, sets the variable to its value;
  /// null counts as missing. A single text also counts as a list of one text. Throws Error for a value of
  /// another type.
  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

  /// Throws Error for a key that belongs to no option, and for values that break a rule.
  void end() const;

  /// The options that the line itself sets, as a person would type them on the command line. A flag is true
  /// or false, and an option that is off is "".
  const OptionTexts& options() const { return options_; }

 private:
  struct Object;
  std::unique_ptr<Object> object_;
  std::string prompt_;
  std::vector<int> tokens_;
  ModelConfig config_;
  OptionTexts options_;
};

/// Throws UsageError for a sequence that may need more than `positions`. Its newest token needs no position.
/// A request for no new tokens always fits, because its prompt is not computed.
void check_fits(std::size_t prompt_tokens, int max_new_tokens, std::size_t positions);

}  // namespace staircase
