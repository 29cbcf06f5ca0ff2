// The body of POST /v1/completions.
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
#include "common/server/call_form.h"
#include "common/server/http.h"
#include "common/server/text_constraint.h"
#include "common/text/tokenizer.h"
#include "row.h"

namespace staircase {

/// The model that clients request, and its limits.
struct ServedModel {
  /// `folder` is the model's folder or its name. A text may have `most_positions` positions, or as many as
  /// the model has if that is fewer.
  ServedModel(const std::string& folder, const Tokenizer& tokenizer, const ModelConfig& config,
              std::int64_t most_positions = std::numeric_limits<int>::max());

  /// The name of the model, or of one of its adapters.
  const std::string& name_of(int adapter) const {
    return adapter == kNoAdapter ? name : adapters[static_cast<std::size_t>(adapter)];
  }

  std::string name, folder;
  std::vector<std::string> adapters = {};  ///< names that a request can choose as its model
  const Tokenizer* tokenizer;
  int n_positions, vocab_size;
  EndTokens ends;
  std::size_t most_bytes;  ///< the longest text that fits: all its tokens are of the longest kind
  /// Default keys of a chat and JSON values, such as ("temperature", "0.7"); its body overrides them.
  std::vector<std::pair<std::string, std::string>> chat_defaults = {};
  bool searches = false;  ///< whether requests may use beam search
  std::shared_ptr<Constraints> constraints;
  CallForm call_form = plain_call_form();  ///< for functions that chats call
  bool writes_calls = true;                ///< into the messages, because the template cannot
  /// The tokens of answers with calls, if these differ from the usual ones.
  std::shared_ptr<const SortedTokens> call_tokens = {};

  /// Sets the template's form, in which special tokens such as [TOOL_CALLS] are text.
  void set_call_form(const std::optional<CallForm>& form);
};

struct BodyKeys;

/// A body in OpenAI's interface. null counts as a missing key. A key that changes the text elsewhere but is
/// not implemented here is rejected, and so is a misspelling of a known key; all other keys are ignored. A
/// step reads the options of a text as from a command line: "--top-k" is the key top_k, or OpenAI's name for
/// the option if it differs.
class CompletionRequest : public OptionSink {
 public:
  static constexpr int kMaxTexts = 128, kMaxStops = 16, kMaxStopBytes = 256, kDefaultTokens = 16;
  static constexpr int kMaxKeys = 2000, kMaxBiases = 1024;

  /// Throws HttpError: 404 for another model, otherwise 400, with the key concerned.
  CompletionRequest(std::string_view body, const ServedModel& model);
  ~CompletionRequest() override;

  const Prompts& prompts() const { return prompts_; }  ///< token ids; no prompt is empty

  int adapter = kNoAdapter;    ///< index of the model's adapter for all texts
  int n = 1;                   ///< texts per prompt that the client gets
  int best_of = 1;             ///< texts generated per prompt, at least n; the client gets the best n
  bool votes = false;          ///< whether the most frequent answer is the best, not the most likely
  bool stream = false;         ///< whether the answer is sent in parts
  bool include_usage = false;  ///< whether the last part of a stream counts the tokens
  bool echo = false;           ///< whether the prompt is part of the text
  int max_tokens = 0;
  /// Whether the prompt of a chat ends within reasoning. Unset if reasoning and content stay together.
  std::optional<bool> within_reasoning = {};
  std::optional<CallForm> calls = {};                  ///< how the texts may call functions, if at all
  std::optional<int> logprobs = {};                    ///< number of most likely tokens to report
  std::vector<std::pair<int, float>> logit_bias = {};  ///< added to the logits of these tokens
  std::shared_ptr<TextConstraint> constraint = {};     ///< of the new texts, or nullptr
  std::shared_ptr<BeamOptions> search = {};            ///< for best_of beams; nullptr without a search

  /// The number of texts to generate.
  int texts() const { return static_cast<int>(prompts_.size()) * best_of; }

  /// Whether the client gets only some of the texts, or all by their rank.
  bool ranks() const { return best_of > n || search; }

  /// The prompt of the text with this number.
  const std::vector<int>& prompt(int text) const {
    return prompts_[static_cast<std::size_t>(text / best_of)];
  }

  /// The numbers of all texts. Texts with equal prompts follow each other, so each reuses what the previous
  /// one computed.
  std::vector<int> texts_by_prompt() const;

  /// For how many of the most likely tokens to score the prompts; nothing if they are not scored.
  std::optional<int> score() const { return echo ? logprobs : std::nullopt; }

  /// Throws HttpError for an invalid value. A text is sampled unless its temperature is 0; options that only
  /// a command line offers keep their values.
  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

  /// The keys that set options of a text in each interface.
  static const std::set<std::string>& option_keys();

 protected:
  struct Body;

  /// For another interface: reads everything except the prompts, the number of tokens, and log-probabilities.
  /// `defaults` are values for keys that the body lacks.
  CompletionRequest(std::string_view body, const ServedModel& model, const BodyKeys& keys,
                    const std::vector<std::pair<std::string, std::string>>& defaults = {});

  std::unique_ptr<Body> body_;
  Prompts prompts_ = {};

 private:
  void read_best();
  void read_search();
  void read_bias(const ServedModel& model);
  void read_prompts(const ServedModel& model);
};

/// The options of the texts of a request. Throws HttpError for an invalid value.
RowOptions row_options(CompletionRequest& request);

}  // namespace staircase
