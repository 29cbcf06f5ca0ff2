// The form in which a model writes calls of functions. Each family has its own, and the model's template
// shows it: it writes the calls of earlier answers as the model has learned to make them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/server/conversation.h"
#include "common/text/grammar_rules.h"

namespace staircase {

/// Calls are `begin`, then each call's name, `middle` and arguments (a JSON object), with `between`
/// separating the calls, and finally `end`. The texts hold what the template writes around them, for Hermes
/// and Qwen with
///
///     <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>
///
/// `middle` is `", "arguments": `.
struct CallForm {
  static constexpr char kOfId = '\0';  ///< in these texts: any letter or digit, of a call's id

  std::string marker = {};  ///< the beginning of `begin`: a text that has it calls a function
  bool is_whole_text =
      false;  ///< the marker counts only where the text begins; otherwise text may precede it
  std::string begin = {}, middle = {}, end = {};
  std::string between =
      {};  ///< the arguments of a call and the next name; empty if there is at most one call
};

/// The form of calls in the template's text: it is asked to write some. Nothing if it leaves out functions or
/// their results, if calls are no part of an answer, or if the arguments are not in JSON after the name.
std::optional<CallForm> call_form_of(ChatPrompts& prompts);

/// That of Hermes, for models whose template has none: Conversation::write_calls writes it into the messages.
CallForm plain_call_form();

/// A function that an answer may call. Its name needs no escape in JSON.
struct CalledFunction {
  std::string name, parameters;  ///< the latter a JSON Schema of objects
};

/// The texts of answers that may or must call these functions: one or, if `may_repeat`, more of them. If no
/// call is needed, any text without the marker is an answer, and may precede the calls. With a `format`, an
/// answer that need not call is the calls alone or a text of the format. Throws UsageError with the
/// function's name for parameters that json_schema_rules refuses, and for a format with a text that begins
/// like a call.
GrammarRules answer_rules(const CallForm& form, const std::vector<CalledFunction>& functions, bool must_call,
                          bool may_repeat, const GrammarRules& format = {});

}  // namespace staircase
