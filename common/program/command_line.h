// The command line: turns declarations of options into a parser with a help text.
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

/// The end of an error about a wrong value.
inline constexpr std::string_view kSeeHelp = " (--help lists the options)";

class CommandLine : public OptionSink {
 public:
  explicit CommandLine(const std::string& description);
  ~CommandLine() override;

  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

  /// Adds an option that takes a text; the help shows `kind` as its value: TEXT, DIR. A `repeatable` option
  /// may be given more than once.
  void add_texts(const std::string& name, std::vector<std::string>* texts, const std::string& kind,
                 bool repeatable, const std::string& help);

  /// Lets a text option be given more than once.
  void make_repeatable(const std::string& name);

  /// Rejects a command line that contains both options.
  void exclude(const std::string& name, const std::string& other);

  /// Adds --no-NAME for a flag that is off by default, since set_default may switch the flag on.
  void make_negatable(const std::string& name);

  /// Parses the arguments and sets the options' variables. Returns the help if it was requested. Throws
  /// UsageError with one sentence for an unknown argument, for a value outside its range, and for values that
  /// break a rule. Calls `set_defaults` once all values are set, before the rules apply; it may call
  /// set_default.
  std::optional<std::string> parse(int argc, char** argv, const std::function<void()>& set_defaults = {});

  /// Sets another default for an option, from a text as a person would type it; the help shows the new
  /// default. An option that was given keeps its value. Returns false if there is no such option. Throws
  /// UsageError for a wrong value.
  bool set_default(const std::string& name, const std::string& text);

  /// Whether the option was given.
  bool has(const std::string& name) const;

  /// The text that was typed for each option, or its default in the same form. A flag is true or false, and
  /// an option that is off is "".
  OptionTexts values() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Sets the variable of an option from the typed texts: one text, or several for a list. Leaves a flag
/// unchanged. Throws UsageError that names the option, the value and what would be right.
void set_option(const std::string& name, const OptionValue& value, const Range& range,
                const std::vector<std::string>& texts);

}  // namespace staircase
