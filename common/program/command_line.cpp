#include "common/program/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <string_view>
#include <type_traits>

#include "common/base/error.h"
#include "common/base/quoted.h"

namespace staircase {
namespace {

/// How often an option may be repeated. With a limit of 2^25 or less, CLI11 would let several values follow
/// one name, despite allow_extra_args. With its own "any number", the help would show dots after the option.
constexpr int kAnyNumber = 1 << 28;

/// The decimal number that the whole of `text` spells; infinity or 0 if a T cannot hold it. Some standard
/// libraries lack std::from_chars for floating-point numbers.
template <typename T>
std::optional<double> decimal(const std::string& text) {
  if constexpr (std::is_integral_v<T>) {
    const std::size_t sign = text.starts_with('-') ? 1 : 0;
    if (text.size() == sign || text.find_first_not_of("0123456789", sign) != text.npos) return {};
  }
  // Rejects what only strtod accepts: leading blanks and a +, and hexadecimal digits.
  if (text.empty() || std::string_view(" \t\n\v\f\r+").find(text[0]) != std::string_view::npos ||
      text.find_first_of("xX") != text.npos) {
    return {};
  }
  char* end = nullptr;
  double value = 0.0;
  if constexpr (std::is_same_v<T, float>) {
    value = std::strtof(text.c_str(), &end);
  } else {
    value = std::strtod(text.c_str(), &end);
  }
  if (end != text.data() + text.size()) return {};
  return value;
}

/// The number that was typed for an option. Throws UsageError if the text is not a number, or if a T cannot
/// hold it; require_range checks the range.
template <typename T>
T number(const std::string& name, const std::string& text, const Range& range, const char* or_else = "") {
  constexpr bool kIsWhole = std::is_integral_v<T>;
  const std::optional<double> value = decimal<T>(text);
  if (!value) {
    throw UsageError("{} is {}, but it must be {}{}{}", name, typed(text), range.text_with_kind(kIsWhole),
                     or_else, kSeeHelp);
  }
  const auto refuse = [&](const Range& possible) {
    throw UsageError("{} is {}, but it must be {}{}", name, typed(text), possible.text(kIsWhole), or_else);
  };
  if constexpr (kIsWhole) {
    // A double holds every number of 32 bits exactly.
    if (*value < std::numeric_limits<T>::min() || *value > std::numeric_limits<T>::max()) {
      refuse(range.holds(*value) || !range.is_bounded() ? held_by<T>(range) : range);
    }
  } else {
    const std::string digits = text.substr(0, text.find_first_of("eE"));
    if (std::isinf(*value) && text.find_first_of("iI") == text.npos) {
      refuse(range.holds(*value < 0 ? -1e300 : 1e300) ? held_by<T>(range) : range);
    }
    if (*value == 0 && digits.find_first_of("123456789") != text.npos) {
      throw UsageError("{} is {}, but a number so close to 0 must be 0 or at least {:.2g}", name, typed(text),
                       std::numeric_limits<T>::denorm_min());
    }
  }
  return static_cast<T>(*value);
}

/// The note after the option's name in the help: the kind of value, and the valid numbers.
std::string kind(const char* letter, const Range& range, bool whole = true) {
  return range.is_bounded() ? fmt::format("{} ({})", letter, range.text(whole)) : letter;
}

/// Splits at commas.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// Declares an option of any kind to the parser. The parser only stores the typed texts. They are parsed
/// later, so that all errors about a wrong value come from this file.
struct Declare {
  CLI::App& app;
  const std::string& name;
  const std::string& help;
  const Range& range;
  std::vector<std::string>& texts;

  void operator()(bool* value) const {
    app.add_flag(*value ? fmt::format("{},!--no-{}", name, name.substr(2)) : name, *value, help);
  }
  void operator()(int* value) const { add(kind("N", range), fmt::format("{}", *value)); }
  void operator()(unsigned* value) const { add(kind("N", range), fmt::format("{}", *value)); }
  void operator()(float* value) const { add(kind("X", range, false), fmt::format("{}", *value)); }
  void operator()(std::optional<int>* value) const {
    add(kind("N", range), *value ? fmt::format("{}", **value) : "");
  }
  void operator()(std::optional<float>* value) const {
    add(kind("X", range, false), *value ? fmt::format("{}", **value) : "");
  }
  void operator()(std::vector<int>* values) const {
    add(kind("N,N", range), fmt::format("{}", fmt::join(*values, ",")));
  }
  void operator()(std::vector<std::string>*) const { add("TEXT", ""); }
  void operator()(NumberOrAuto value) const {
    add(kind("N|auto", range), *value.value ? std::to_string(**value.value) : "auto");
  }
  void operator()(const Path& path) const { add(path.kind, *path.value); }
  void operator()(const Choice& choice) const {
    add(fmt::format("{}", fmt::join(choice.words, "|")), choice.present);
  }

  void add(const std::string& kind_of_value, const std::string& present) const {
    app.add_option(name, texts, help)
        ->expected(1, kAnyNumber)
        ->allow_extra_args(false)
        ->type_name(kind_of_value)
        ->default_str(present);
  }
};

/// Sets the variable of an option from the typed texts: one text, or several for a list.
struct Set {
  const std::string& name;
  const Range& range;
  const std::vector<std::string>& texts;

  void operator()(bool*) const {}  // the parser sets flags
  void operator()(int* value) const { *value = number<int>(name, texts[0], range); }
  void operator()(unsigned* value) const { *value = number<unsigned>(name, texts[0], range); }
  void operator()(float* value) const { *value = number<float>(name, texts[0], range); }
  void operator()(std::optional<int>* value) const { *value = number<int>(name, texts[0], range); }
  void operator()(std::optional<float>* value) const { *value = number<float>(name, texts[0], range); }
  void operator()(std::vector<int>* values) const {
    values->clear();
    for (const std::string& text : texts) {
      for (const std::string& part : split(text)) values->push_back(number<int>(name, part, range));
    }
  }
  void operator()(std::vector<std::string>* values) const { *values = texts; }
  void operator()(NumberOrAuto value) const {
    value.value->reset();
    if (texts[0] != "auto") *value.value = number<int>(name, texts[0], range, ", or auto");
  }
  void operator()(const Path& path) const {
    if (texts[0].empty() && !path.may_be_empty) {
      if (std::string_view(path.kind) == "PATTERN")
        throw UsageError("{} is empty, but it must have at least one character", name);
      throw UsageError("{}: the name is empty", name);
    }
    *path.value = texts[0];
  }
  void operator()(const Choice& choice) const {
    const auto word = std::ranges::find(choice.words, texts[0]);
    if (word == choice.words.end()) {
      throw UsageError("{} is {}, but it must be one of {}{}", name, typed(texts[0]),
                       fmt::join(choice.words, ", "), kSeeHelp);
    }
    choice.choose(static_cast<std::size_t>(word - choice.words.begin()));
  }
};

}  // namespace

void set_option(const std::string& name, const OptionValue& value, const Range& range,
                const std::vector<std::string>& texts) {
  std::visit(Set{name, range, texts}, value);
  require_range(name, value, range);
}

struct CommandLine::Impl {
  struct Option {
    std::string name;
    OptionValue value;
    Range range;
    bool repeatable;
    std::vector<std::string> texts = {};  ///< the typed texts
  };

  CLI::App app;
  std::deque<Option> options = {};  // the parser keeps pointers to their texts
  std::vector<std::pair<std::string, std::string>> exclusions = {};

  Option& add(const std::string& name, OptionValue value, const std::string& help, Range range) {
    const bool is_list = std::holds_alternative<std::vector<std::string>*>(value) ||
                         std::holds_alternative<std::vector<int>*>(value);
    Option& option = options.emplace_back(Option{name, std::move(value), range, is_list});
    std::visit(Declare{app, option.name, help, option.range, option.texts}, option.value);
    return option;
  }
};

CommandLine::CommandLine(const std::string& description) : impl_(new Impl{CLI::App(description)}) {}

CommandLine::~CommandLine() = default;

void CommandLine::add(const std::string& name, OptionValue value, const std::string& help, Range range) {
  impl_->add(name, std::move(value), help, range);
}

void CommandLine::add_texts(const std::string& name, std::vector<std::string>* texts, const std::string& kind,
                            bool repeatable, const std::string& help) {
  impl_->add(name, texts, help, {}).repeatable = repeatable;
  impl_->app.get_option(name)->type_name(kind);
}

void CommandLine::make_repeatable(const std::string& name) {
  std::ranges::find(impl_->options, name, &Impl::Option::name)->repeatable = true;
}

void CommandLine::exclude(const std::string& name, const std::string& other) {
  impl_->app.get_option(name)->excludes(other);
  impl_->exclusions.emplace_back(name, other);
}

void CommandLine::make_negatable(const std::string& name) {
  CLI::Option* const off = impl_->app.get_option(name);
  const std::string help = off->get_description();
  impl_->app.remove_option(off);
  bool* const value = std::get<bool*>(std::ranges::find(impl_->options, name, &Impl::Option::name)->value);
  impl_->app.add_flag(fmt::format("{},!--no-{}", name, name.substr(2)), *value, help)->default_str("false");
}

bool CommandLine::set_default(const std::string& name, const std::string& text) {
  const auto option = std::ranges::find(impl_->options, name, &Impl::Option::name);
  if (option == impl_->options.end()) return false;
  impl_->app.get_option(name)->default_str(text);
  if (has(name)) return true;
  if (bool* const* flag = std::get_if<bool*>(&option->value)) {
    if (text != "true" && text != "false")
      throw UsageError("{} is {}, but it must be true or false", name, typed(text));
    **flag = text == "true";
  } else {
    set_option(name, option->value, option->range, {text});
  }
  return true;
}

bool CommandLine::has(const std::string& name) const {
  const CLI::Option* const option = impl_->app.get_option_no_throw(name);
  return option != nullptr && option->count() > 0;
}

OptionTexts CommandLine::values() const {
  OptionTexts values;
  for (const CLI::Option* option : impl_->app.get_options([](const CLI::Option*) { return true; })) {
    const bool is_flag = option->get_items_expected_max() == 0;
    std::string value = option->get_default_str();
    if (is_flag && value.empty())
      value = option->get_fnames().empty() ? "false" : "true";  // --no-NAME exists for a flag that is on
    if (option->count() > 0) value = fmt::format("{}", fmt::join(option->results(), ","));
    if (option != impl_->app.get_help_ptr()) values.emplace_back(option->get_name(), value);
  }
  return values;
}

namespace {

/// The arguments in the order that CLI11 needs, the last one first. CLI11 would find no value in `--name=`
/// and use the next argument instead, so the empty text becomes a separate argument.
std::vector<std::string> reversed_arguments(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {
    const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
    const CLI::Option* const option = app.get_option_no_throw(name);
    const bool takes_a_value = option != nullptr && option->get_items_expected_max() > 0;
    if (option != nullptr && !takes_a_value && argument != name) {
      throw UsageError("{}: a flag is on or off, and takes no value{}", typed(argument), kSeeHelp);
    }
    if (takes_a_value && argument == name + "=") {
      arguments.insert(arguments.end(), {"", name});
    } else {
      arguments.push_back(argument);
    }
  }
  return arguments;
}

}  // namespace

std::optional<std::string> CommandLine::parse(int argc, char** argv,
                                              const std::function<void()>& set_defaults) {
  CLI::App& app = impl_->app;
  const auto set_values = [&] {
    for (auto& [name, value, range, repeatable, texts] : impl_->options) {
      if (texts.size() > 1 && !repeatable) {
        throw UsageError("{} is given {} times, but it takes only one value{}", name, texts.size(), kSeeHelp);
      }
      if (!texts.empty()) {
        set_option(name, value, range, texts);
      } else {
        require_range(name, value, range);
      }
    }
    if (set_defaults) set_defaults();
  };
  if (argc > 0) app.name(typed(argv[0]));
  try {
    app.parse(reversed_arguments(app, argc, argv));
  } catch (const CLI::CallForHelp&) {
    try {
      set_values();
    } catch (const std::exception&) {  // ignored, since the help shows what is valid
    }
    return app.help();
  } catch (const CLI::ExtrasError&) {  // its own message lists the arguments in reverse
    std::vector<std::string> extras;
    for (const std::string& text : app.remaining()) extras.push_back(typed(text));
    const std::size_t shown = std::min<std::size_t>(extras.size(), 10);
    throw UsageError(
        "not understood: {}{} (a text of several words needs quotation marks; --help lists the options)",
        fmt::join(extras.begin(), extras.begin() + static_cast<std::ptrdiff_t>(shown), " "),
        shown < extras.size() ? fmt::format(" and {} more", extras.size() - shown) : "");
  } catch (const CLI::ExcludesError&) {
    for (const auto& [name, other] : impl_->exclusions) {
      if (has(name) && has(other))
        throw UsageError("{} and {} cannot be given together{}", name, other, kSeeHelp);
    }
    throw;
  } catch (const CLI::ArgumentMismatch& error) {  // options here take any number of values
    const std::string message = error.what();
    throw UsageError("{} needs a value{}", message.substr(0, message.find(':')), kSeeHelp);
  }
  set_values();
  apply_rules();
  return {};
}

}  // namespace staircase
