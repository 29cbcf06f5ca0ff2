#include "common/program/live_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/error.h"
#include "common/base/quoted.h"
#include "common/program/command_line.h"

namespace staircase {
namespace {

/// The variable's current value, as a person would type it.
struct Typed {
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const NumberOrAuto& value) const {
    return *value.value ? fmt::format("{}", **value.value) : "auto";
  }
  std::string operator()(const Path& path) const { return *path.value; }
  std::string operator()(const Choice& choice) const { return choice.present; }
  template <typename T>
  std::string operator()(const std::optional<T>* value) const {
    return *value ? fmt::format("{}", **value) : "off";
  }
  template <typename T>
  std::string operator()(const std::vector<T>* values) const {
    return fmt::format("{}", fmt::join(*values, ","));
  }
  template <typename T>
  std::string operator()(const T* value) const {
    return fmt::format("{}", *value);
  }
};

/// Removes the value of a variable that need not have one. Returns false for any other variable.
struct SwitchOff {
  template <typename T>
  bool operator()(std::optional<T>* value) const {
    value->reset();
    return true;
  }
  template <typename T>
  bool operator()(const T&) const {
    return false;
  }
};

/// Returns a function that restores the variable's current value.
struct Keep {
  std::function<void()> operator()(const NumberOrAuto& value) const { return (*this)(value.value); }
  std::function<void()> operator()(const Path& path) const { return (*this)(path.value); }
  std::function<void()> operator()(const Choice&) const {
    return [] {};
  }
  template <typename T>
  std::function<void()> operator()(T* value) const {
    return [value, old = *value] { *value = old; };
  }
};

}  // namespace

LiveOptions::LiveOptions(OptionSink& command_line) : command_line_(command_line) {
  command_line.rule([this] { apply_rules(); });
  command_line.model_rule([this](const ModelConfig& config) { apply_model_rules(config); });
}

void LiveOptions::add(const std::string& name, OptionValue value, const std::string& help, Range range) {
  settings_.push_back({name, value, range});
  command_line_.add(name, std::move(value), help, range);
}

void LiveOptions::set(const std::string& name, const std::string& value) {
  const auto found = std::ranges::find(settings_, "--" + name, &Setting::name);
  if (found == settings_.end()) {
    std::vector<std::string> names;
    for (const Setting& setting : settings_) names.push_back(setting.name.substr(2));
    throw UsageError("there is no option {}; the options are {}", typed(name), fmt::join(names, ", "));
  }
  const std::function<void()> put_back = std::visit(Keep(), found->value);
  try {
    if (bool* const* flag = std::get_if<bool*>(&found->value)) {
      if (value != "true" && value != "false")
        throw UsageError("{} is {}, but it must be true or false", name, typed(value));
      **flag = value == "true";
    } else if (value != "off" || !std::visit(SwitchOff(), found->value)) {
      set_option(name, found->value, found->range, {value});
    }
    apply_rules();
  } catch (const UsageError&) {
    put_back();
    throw;
  }
  if (const auto changed = changed_.find("--" + name); changed != changed_.end()) changed->second();
}

std::vector<std::string> LiveOptions::values() const {
  std::vector<std::string> lines;
  for (const Setting& setting : settings_)
    lines.push_back(setting.name.substr(2) + " " + std::visit(Typed(), setting.value));
  return lines;
}

}  // namespace staircase
