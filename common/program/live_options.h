// Options that a person can change while the program runs: /set temperature 0.5.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/options.h"

namespace staircase {

/// Passes declarations of options on to a command line, and can set the options again later.
class LiveOptions : public OptionSink {
 public:
  /// `command_line` must outlive this object, and must not set the declared options after this object is
  /// gone.
  explicit LiveOptions(OptionSink& command_line);

  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

  /// Sets an option as if it had been typed: ("top-k", "40"), ("do-sample", "true"). "off" removes the value
  /// of an option that need not have one. Throws UsageError with one sentence, and changes nothing, for an
  /// unknown option, a value outside its range, and values that break a rule.
  void set(const std::string& name, const std::string& value);

  /// Calls `changed` each time set() has set this option, even to the value that it already had.
  void on_set(const std::string& name, std::function<void()> changed) { changed_[name] = std::move(changed); }

  /// All options with their values: "top-k 40".
  std::vector<std::string> values() const;

 private:
  struct Setting {
    std::string name;  ///< --top-k
    OptionValue value;
    Range range;
  };

  OptionSink& command_line_;
  std::vector<Setting> settings_;
  std::map<std::string, std::function<void()>> changed_;
};

}  // namespace staircase
