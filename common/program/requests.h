// Requests to a program that serves several of them: one JSON object a line, with what to continue, when it
// arrives, and options of its own.
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

/// A prompt in tokens. Without any it is the end-of-text token: between two texts of its training data the
/// model saw that one, and from there it begins a new one.
std::vector<int> prompt_tokens(const std::string& text, const Tokenizer& tokenizer,
                               const ModelConfig& config);

/// One line. A step asks for the options that it knows by their keys; then every other key is an error.
class RequestLine : public OptionSink {
 public:
  /// Throws Error unless `text` is a JSON object with a "prompt".
  RequestLine(std::string_view text, const Tokenizer& tokenizer, const ModelConfig& config);
  ~RequestLine() override;

  const std::string& prompt() const { return prompt_; }

  /// The prompt in tokens, for a model of that configuration: what a request must fit.
  const std::vector<int>& tokens() const { return tokens_; }
  const ModelConfig& config() const { return config_; }

  /// When the request is made, in seconds from the start: 0 unless the line says otherwise, at most a day.
  /// Throws Error for another value.
  double arrival();

  /// --top-k is the key top_k. Sets the value to the line's value for the key, if there is one; null counts
  /// as missing. A list of texts may also be a single text. Throws Error for a value of another type.
  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

  /// Throws Error for a key that no option has, and for values that break a rule.
  void end() const;

  /// The options that the line has itself, as they would be typed on the command line: a flag is true or
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

/// Throws UsageError for a text that may have more tokens than `positions` hold; its newest one needs none.
/// Without new tokens the prompt is not read.
void check_fits(std::size_t prompt_tokens, int max_new_tokens, std::size_t positions);

}  // namespace staircase
