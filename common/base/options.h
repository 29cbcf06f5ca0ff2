// A feature declares its options here: their names, the variables for their values, the valid values, the
// help, and which options exclude each other. A command line reads them, and so does a line of a request
// file.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace staircase {

struct ModelConfig;

/// The valid numbers of an option. Without bounds, every number that the type can hold is valid.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool without_least = false;  ///< only numbers above `least`

  bool is_bounded() const { return *this != Range(); }

  bool operator==(const Range&) const = default;

  /// Neither infinity nor NaN is ever a valid floating-point number.
  bool holds(double value) const;

  /// "between 1 and 16", for the end of "… must be".
  std::string text(bool whole_numbers) const;

  /// Text with the kind of number, for a value that is none: "a whole number between 1 and 16".
  std::string text_with_kind(bool whole_numbers) const;

  /// The numbers of this range from `lowest` to `highest`, the limits of a type.
  Range within(double lowest, double highest) const;
};

/// The part of a range that a T can hold. The bound of float is rounded to 3.4e38, so that messages stay
/// short.
template <typename T>
Range held_by(const Range& range) {
  using Limits = std::numeric_limits<T>;
  if constexpr (Limits::is_integer) {
    return range.within(static_cast<double>(Limits::min()), static_cast<double>(Limits::max()));
  }
  return range.within(-3.4e38, 3.4e38);
}

constexpr Range at_least(double least) {
  return {.least = least};
}
constexpr Range above(double least) {
  return {.least = least, .without_least = true};
}
constexpr Range above_up_to(double least, double most) {
  return {least, most, true};
}
constexpr Range between(double least, double most) {
  return {least, most};
}

/// An option that takes one of several words. `choose` is called with the index of the word.
struct Choice {
  std::vector<std::string> words;
  std::string present;  ///< the word for the variable's current value
  std::function<void(std::size_t index)> choose;
};

/// A choice that sets `value` to the meaning of the word.
template <typename Value>
Choice one_of(Value* value, const std::vector<std::pair<std::string, Value>>& meanings) {
  Choice choice;
  for (const auto& [word, meaning] : meanings) {
    choice.words.push_back(word);
    if (meaning == *value) choice.present = word;
  }
  choice.choose = [value, meanings](std::size_t index) { *value = meanings[index].second; };
  return choice;
}

/// An option that takes a whole number or the word "auto"; "auto" leaves the variable without a value.
struct NumberOrAuto {
  std::optional<int>* value;
};

/// An option that takes the name of a file or folder, or any other text.
struct Path {
  std::string* value;
  const char* kind = "PATH";  ///< in the help: FILE, DIR, TEXT
  bool may_be_empty = false;
};

/// The variable that receives the value of an option. The variable's initial value is the default; an
/// optional without a value is off.
using OptionValue = std::variant<bool*, int*, unsigned*, float*, std::optional<int>*, std::optional<float>*,
                                 std::vector<int>*, std::vector<std::string>*, NumberOrAuto, Path, Choice>;

/// Names of options and their values, as typed.
using OptionTexts = std::vector<std::pair<std::string, std::string>>;

/// An option's name and value, for a rule that compares two options.
struct NamedNumber {
  const char* name;
  const int* value;
};

/// Receives the declarations of options and of the rules between them. Whatever a rule refers to must live
/// until the values are read.
class OptionSink {
 public:
  virtual ~OptionSink() = default;

  /// `name` as it is typed: --top-k. A number outside `range` is rejected with an error that names the
  /// option, the value and the range. --no-NAME switches off a flag that is on by default.
  virtual void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) = 0;

  /// A rule that no range can express: throws UsageError for values that contradict each other.
  void rule(std::function<void()> rule);

  /// A rule with a fixed message: throws UsageError with `message` if `is_wrong()` is true.
  void refuse_if(std::function<bool()> is_wrong, std::string message);

  /// A number bounded by another option's value.
  void require_at_least(NamedNumber number, NamedNumber least);
  void require_at_most(NamedNumber number, NamedNumber most);

  /// Warns about values that are valid but do nothing together.
  void warn_if(std::function<bool()> is_suspect, std::string message);

  /// A rule that needs the model's configuration.
  void model_rule(std::function<void(const ModelConfig& config)> rule);

 protected:
  /// Applies the rules in the order of their declaration; a derived class calls it once it has read all
  /// values. Warnings come last, so an invalid command line prints only its error.
  void apply_rules() const;

  /// Applies the rules that need the model's configuration; called before the weights are read.
  void apply_model_rules(const ModelConfig& config) const;

 private:
  std::vector<std::function<void()>> rules_;
  std::vector<std::function<void(const ModelConfig&)>> model_rules_;
  std::vector<std::pair<std::function<bool()>, std::string>> warnings_;
};

/// Throws UsageError, "top_k is -1, but it must be 0 or more", unless all numbers in `value` are valid. A
/// list of texts with a range must not contain an empty text.
void require_range(std::string_view name, const OptionValue& value, const Range& range);

/// Returns a · b, the number of `things` that two options request together; neither is negative. Throws
/// UsageError if an int cannot hold the product.
int product(std::int64_t a, std::int64_t b, std::string_view things = "");

}  // namespace staircase
