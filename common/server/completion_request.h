// What the body of POST /v1/completions asks for.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/options.h"
#include "common/decoding/results.h"
#include "common/model/config.h"
#include "common/server/http.h"
#include "common/text/tokenizer.h"

namespace staircase {

/// The model that clients ask for, and what fits into it.
struct ServedModel {
  /// `folder`: of the model, or its name. A text may have so many positions, if not fewer fit into the model.
  ServedModel(const std::string& folder, const Tokenizer& tokenizer, const ModelConfig& config,
              std::int64_t most_positions = std::numeric_limits<int>::max());

  std::string name;
  const Tokenizer* tokenizer;
  int n_positions, vocab_size;
  EndTokens ends;
  std::size_t most_bytes;  ///< of a text that fits: so many tokens of the longest kind
};

struct BodyKeys;

/// A body in OpenAI's interface. null is the same as no key. A key that changes the text elsewhere and is not
/// implemented here is refused, and so is what looks like a misspelt one; all others are ignored. A step
/// asks for the options of a text as of a command line: "--top-k" is the key top_k, and where OpenAI has
/// another name for an option it is that one.
class CompletionRequest : public OptionSink {
 public:
  static constexpr int kMaxTexts = 128, kMaxStops = 16, kMaxStopBytes = 256, kDefaultTokens = 16;
  static constexpr int kMaxKeys = 2000, kMaxBiases = 1024;

  /// Throws HttpError: 404 for another model, and else 400, with the key that it is about.
  CompletionRequest(std::string_view body, const ServedModel& model);
  ~CompletionRequest() override;

  const Prompts& prompts() const { return prompts_; }  ///< in tokens, none of them empty

  int n = 1;               ///< texts behind each prompt
  bool stream = false;     ///< the answer comes in parts
  bool tells_use = false;  ///< the last part of a stream counts the tokens
  bool echo = false;       ///< the prompt is a part of the text
  int max_tokens = 0;
  std::optional<int> logprobs = {};                    ///< for how many of the most likely tokens
  std::vector<std::pair<int, float>> logit_bias = {};  ///< what is added to the logits of these tokens

  /// Texts that are asked for altogether.
  int texts() const { return static_cast<int>(prompts_.size()) * n; }

  /// What the text with that number is behind.
  const std::vector<int>& prompt(int text) const { return prompts_[static_cast<std::size_t>(text / n)]; }

  /// The numbers of all texts, those behind equal prompts one after the other: what one of them needs of its
  /// prompt serves the next.
  std::vector<int> texts_by_prompt() const;

  /// With how many of the likeliest tokens to tell the log-probabilities of the prompts, if at all.
  std::optional<int> score() const { return echo ? logprobs : std::nullopt; }

  /// Throws HttpError for a value that is not possible. A text is drawn
  /// unless its temperature is 0, and what else only a command line offers is left alone.
  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

  /// Those keys that are options of a text in each interface.
  static const std::set<std::string>& option_keys();

 protected:
  struct Body;

  /// For another interface: reads everything but the prompts, how many tokens are wanted, and
  /// log-probabilities.
  CompletionRequest(std::string_view body, const ServedModel& model, const BodyKeys& keys);

  std::unique_ptr<Body> body_;
  Prompts prompts_ = {};

 private:
  void read_bias(const ServedModel& model);
  void read_prompts(const ServedModel& model);
};

}  // namespace staircase
