// The command line: turns declarations of options into a parser and its help.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/options.h"

namespace staircase {

/// The end of a sentence about a wrong value.
inline constexpr std::string_view kSeeHelp = " (--help lists the options)";

class CommandLine : public OptionSink {
 public:
  explicit CommandLine(const std::string& description);
  ~CommandLine() override;

  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

  /// An option that takes a text, of the kind that the help shows: TEXT, DIR. If it is `repeatable`, it may
  /// be given more than once.
  void add_texts(const std::string& name, std::vector<std::string>* texts, const std::string& kind,
                 bool repeatable, const std::string& help);

  /// Lets a text option be given more than once.
  void make_repeatable(const std::string& name);

  /// Rejects the two options together.
  void exclude(const std::string& name, const std::string& other);

  /// Gives a flag that is off by default a --no-NAME, since set_default may switch it on.
  void make_negatable(const std::string& name);

  /// Sets the values. Returns the help if it was requested. Throws UsageError with one sentence for an
  /// unknown argument, for a value outside its range, and for values that break a rule. In between, once all
  /// values are set, `set_defaults` may call set_default.
  std::optional<std::string> parse(int argc, char** argv, const std::function<void()>& set_defaults = {});

  /// Another default for an option, from a text as if it were typed; the help shows it. An option that was
  /// given keeps its value. Returns false if there is no such option. Throws UsageError for a wrong value.
  bool set_default(const std::string& name, const std::string& text);

  /// Whether the option was given.
  bool has(const std::string& name) const;

  /// What was typed for each option, or otherwise its default in the same form; a flag is true or false, and
  /// an option that is off is "".
  OptionTexts values() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Sets the variable of an option to what was typed for it: one text, or more for a list. A flag is left
/// unchanged. Throws UsageError with the option, the value and what would be right.
void set_option(const std::string& name, const OptionValue& value, const Range& range,
                const std::vector<std::string>& texts);

}  // namespace staircase
