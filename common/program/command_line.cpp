#include "common/program/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <type_traits>

#include "common/base/error.h"

namespace staircase {
namespace {

/// How often an option may be repeated. Up to 2^25 CLI11 would let several values follow one name, whatever
/// allow_extra_args says; its own "any number" would put dots behind the option in the help.
constexpr int kAnyNumber = 1 << 28;

struct ReadNumber {
  bool whole = false;  ///< the text is a number from its first letter to its last
  bool in_range = false;
};

/// Not every standard library has a std::from_chars for numbers with a fraction.
template <typename T>
ReadNumber read_number(const std::string& text) {
  const char* const last = text.data() + text.size();
  if constexpr (std::is_integral_v<T>) {
    T value{};
    const auto [end, fault] = std::from_chars(text.data(), last, value);
    return {end == last, fault == std::errc()};
  } else {
    // What strtod takes besides: blanks and a + in front, and hexadecimal digits.
    if (text.empty() || std::string_view(" \t\n\v\f\r+").find(text[0]) != std::string_view::npos ||
        text.find_first_of("xX") != text.npos) {
      return {};
    }
    char* end = nullptr;
    T value;
    if constexpr (std::is_same_v<T, float>) {
      value = std::strtof(text.c_str(), &end);
    } else {
      value = std::strtod(text.c_str(), &end);
    }
    const std::string digits = text.substr(0, text.find_first_of("eE"));
    const bool too_large = std::isinf(value) && text.find_first_of("iI") == text.npos;
    const bool too_small = value == 0 && digits.find_first_of("123456789") != text.npos;
    return {end == last, !too_large && !too_small};
  }
}

/// Accepts a number that the type can hold, and says what would be right otherwise.
template <typename T>
std::string fault_of_number(const std::string& text) {
  using Limits = std::numeric_limits<T>;
  const auto [whole, in_range] = read_number<T>(text);
  if (whole && in_range) return "";
  if constexpr (std::is_integral_v<T>) {
    return fmt::format("{} is not a whole number from {} to {}", text, Limits::min(), Limits::max());
  } else {
    if (whole) {
      return fmt::format("{} is too large or too small: at most {:.2g}, and no closer to 0 than {:.2g}", text,
                         Limits::max(), Limits::denorm_min());
    }
    return fmt::format("{} is not a number", text);
  }
}

template <typename T>
CLI::Validator number() {
  return {fault_of_number<T>, ""};
}

/// What the help says behind the name: the kind of value, and which numbers are possible.
std::string kind(const char* letter, const Range& range, bool whole = true) {
  return range.is_bounded() ? fmt::format("{} ({})", letter, range.text(whole)) : letter;
}

/// What is the same about all options of numbers of that type, however many they take.
template <typename T>
CLI::Option* as_number(CLI::Option* option, const char* letter, const Range& range) {
  return option->check(number<T>())->type_name(kind(letter, range, std::is_integral_v<T>));
}

/// Adds an option to a parser, each kind in its own way.
struct Adder {
  CLI::App& app;
  const std::string& name;
  const std::string& help;
  const Range& range;

  void operator()(bool* value) const {
    app.add_flag(*value ? fmt::format("{},!--no-{}", name, name.substr(2)) : name, *value, help);
  }
  void operator()(int* value) const { as_number<int>(app.add_option(name, *value, help), "N", range); }
  void operator()(unsigned* value) const {
    as_number<unsigned>(app.add_option(name, *value, help), "N", range);
  }
  void operator()(float* value) const { as_number<float>(app.add_option(name, *value, help), "X", range); }
  void operator()(std::optional<int>* value) const { add_optional(value, "N"); }
  void operator()(std::optional<float>* value) const { add_optional(value, "X"); }

  template <typename T>
  void add_optional(std::optional<T>* value, const char* letter) const {
    CLI::Option* const option = app.add_option(name, *value, help);
    as_number<T>(option, letter, range)->default_str(*value ? fmt::format("{}", **value) : "");
  }

  void operator()(std::vector<int>* values) const {
    as_number<int>(app.add_option(name, *values, help), "N,N", range)
        ->delimiter(',')
        ->expected(1, kAnyNumber)
        ->allow_extra_args(false)
        ->default_str(fmt::format("{}", fmt::join(*values, ",")));
  }

  void operator()(std::vector<std::string>* values) const {
    app.add_option(name, *values, help)
        ->expected(1, kAnyNumber)
        ->allow_extra_args(false)
        ->type_name("TEXT")
        ->default_str("");
  }

  void operator()(NumberOrAuto value) const {
    app.add_option_function<std::string>(
           name,
           [value](const std::string& text) {
             value.value->reset();
             if (text != "auto") *value.value = std::stoi(text);
           },
           help)
        ->check([](const std::string& text) { return text == "auto" ? "" : fault_of_number<int>(text); })
        ->type_name(kind("N|auto", range))
        ->default_str(*value.value ? std::to_string(**value.value) : "auto");
  }

  void operator()(const Path& path) const { app.add_option(name, *path.value, help)->type_name(path.kind); }

  void operator()(const Choice& choice) const {
    app.add_option_function<std::string>(
           name,
           [choice](const std::string& word) {
             choice.choose(
                 static_cast<std::size_t>(std::ranges::find(choice.words, word) - choice.words.begin()));
           },
           help)
        // The kind of value lists the words in the help, so the validator need not.
        ->check(CLI::IsMember(choice.words).description(""))
        ->type_name(fmt::format("{}", fmt::join(choice.words, "|")))
        ->default_str(choice.present);
  }
};

}  // namespace

struct CommandLine::Impl {
  CLI::App app;
  std::vector<std::function<void()>> checks = {};
};

CommandLine::CommandLine(const std::string& description) : impl_(new Impl{CLI::App(description)}) {
  impl_->app.option_defaults()->always_capture_default();
}

CommandLine::~CommandLine() = default;

void CommandLine::add(const std::string& name, OptionValue value, const std::string& help, Range range) {
  std::visit(Adder{impl_->app, name, help, range}, value);
  impl_->checks.emplace_back([=, this] {
    const Path* const path = std::get_if<Path>(&value);
    if (path != nullptr && path->value->empty() && has(name)) throw UsageError("{}: the name is empty", name);
    require_range(name, value, range);
  });
}

void CommandLine::add_texts(const std::string& name, std::vector<std::string>* texts, const std::string& kind,
                            bool repeatable, const std::string& help) {
  impl_->app.add_option(name, *texts, help)
      ->expected(1)
      ->allow_extra_args(false)
      ->type_name(kind)
      ->default_str("");
  if (repeatable) make_repeatable(name);
}

void CommandLine::make_repeatable(const std::string& name) {
  impl_->app.get_option(name)->expected(1, kAnyNumber);
}

void CommandLine::exclude(const std::string& name, const std::string& other) {
  impl_->app.get_option(name)->excludes(other);
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
    if (is_flag) value = option->get_fnames().empty() ? "false" : "true";  // --no-NAME is for one that is on
    if (option->count() > 0) value = fmt::format("{}", fmt::join(option->results(), ","));
    if (option != impl_->app.get_help_ptr()) values.emplace_back(option->get_name(), value);
  }
  return values;
}

namespace {

/// The arguments in the order in which CLI11 takes them, the last one first. To CLI11 `--name=` has no value
/// yet, and it would take the next argument for one; so the empty text becomes an argument of its own.
std::vector<std::string> reversed_arguments(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {
    const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
    const CLI::Option* const option = app.get_option_no_throw(name);
    const bool takes_a_value = option != nullptr && option->get_items_expected_max() > 0;
    if (takes_a_value && argument == name + "=") {
      arguments.insert(arguments.end(), {"", name});
    } else {
      arguments.push_back(argument);
    }
  }
  return arguments;
}

}  // namespace

std::optional<std::string> CommandLine::parse(int argc, char** argv) {
  CLI::App& app = impl_->app;
  if (argc > 0) app.name(argv[0]);
  try {
    app.parse(reversed_arguments(app, argc, argv));
  } catch (const CLI::CallForHelp&) {
    return app.help();
  } catch (const CLI::ExtrasError&) {  // its own message has them in reverse
    throw UsageError(
        "not understood: {} (a text of several words needs quotation marks; --help lists the options)",
        fmt::join(app.remaining(), " "));
  } catch (const CLI::ParseError& error) {
    throw UsageError("{} (--help lists the options)", error.what());
  }
  for (const auto& check : impl_->checks) check();
  return {};
}

}  // namespace staircase
