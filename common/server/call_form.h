// The form in which a model writes function calls. Each family has its own, and the model's template shows
// it: the template writes the calls of earlier answers as the model has learned to write them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/server/conversation.h"
#include "common/text/grammar_rules.h"

namespace staircase {

/// Calls consist of `begin`, then the name, `middle` and arguments (a JSON object) of each call, separated by
/// `between`, and finally `end`. For example, Hermes and Qwen write
///
///     <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>
///
/// Here `middle` is `", "arguments": `.
struct CallForm {
  static constexpr char kOfId = '\0';  ///< in these texts, any letter or digit of a call's id

  std::string marker = {};  ///< the beginning of `begin`; a text with it calls a function
  bool is_whole_text =
      false;  ///< whether the marker counts only at the start of the text, not after other text
  std::string begin = {}, middle = {}, end = {};
  std::string between = {};  ///< text from one call's arguments to the next name; empty: at most one call
};

/// Finds the form of calls by letting the template write some. Nothing if it leaves out functions or their
/// results, if calls are not part of an answer, or if the arguments are not JSON after the name.
std::optional<CallForm> call_form_of(ChatPrompts& prompts);

/// The form of Hermes, for models whose template has none: Conversation::write_calls writes it into messages.
CallForm plain_call_form();

/// A function that an answer may call. Its name needs no escape in JSON.
struct CalledFunction {
  std::string name, parameters;  ///< `parameters` is a JSON Schema of objects
};

/// The grammar of answers that may or must call these functions, once or, if `may_repeat`, several times. If
/// no call is required, any text without the marker is also an answer, and may precede calls. With a
/// `format`, such an answer is either only calls or a text of the format. Throws UsageError with the
/// function's name for parameters that json_schema_rules rejects, and for a format with a text that begins
/// like a call.
GrammarRules answer_rules(const CallForm& form, const std::vector<CalledFunction>& functions, bool must_call,
                          bool may_repeat, const GrammarRules& format = {});

}  // namespace staircase
