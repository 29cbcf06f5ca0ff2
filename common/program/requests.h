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

/// A prompt in tokens. An empty one is the end-of-text token: in training, it separated two texts, so the
/// model begins a new one after it.
std::vector<int> prompt_tokens(const std::string& text, const Tokenizer& tokenizer,
                               const ModelConfig& config);

/// One line. A step reads the options that it knows by their keys; afterwards every other key is an error.
class RequestLine : public OptionSink {
 public:
  /// Throws Error unless `text` is a JSON object with a "prompt".
  RequestLine(std::string_view text, const Tokenizer& tokenizer, const ModelConfig& config);
  ~RequestLine() override;

  const std::string& prompt() const { return prompt_; }

  /// The prompt in tokens, for a model of that configuration: the request must fit into it.
  const std::vector<int>& tokens() const { return tokens_; }
  const ModelConfig& config() const { return config_; }

  /// When the request arrives, in seconds from the start: 0 unless the line sets it, at most a day.
  /// Throws Error for another value.
  double arrival();

  /// --top-k is the key top_k. Sets the value to the line's value for the key, if there is one; null counts
  /// as missing. A list of texts may also be a single text. Throws Error for a value of another type.
  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

  /// Throws Error for a key that no option has, and for values that break a rule.
  void end() const;

  /// The options that the line itself sets, as they would be typed on the command line: a flag is true or
  /// false, and an option that is off is "".
  const OptionTexts& options() const { return options_; }

 private:
  struct Object;
  std::unique_ptr<Object> object_;
  std::string prompt_;
  std::vector<int> tokens_;
  ModelConfig config_;
  OptionTexts options_;
};

/// Throws UsageError for a text that may need more than `positions`; its newest token needs none. If no new
/// tokens are requested, the prompt is not computed.
void check_fits(std::size_t prompt_tokens, int max_new_tokens, std::size_t positions);

}  // namespace staircase
