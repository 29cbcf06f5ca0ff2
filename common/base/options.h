// What a feature says of its options: their names, where their values go, which values are possible, what
// they mean, and which of them go together. Who listens is a command line, or a line of a file of requests.
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

/// The numbers that are possible. Without bounds it is all that the type can hold.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool without_least = false;  ///< only what is above `least`

  bool is_bounded() const { return *this != Range(); }

  bool operator==(const Range&) const = default;

  /// Of floating-point numbers neither infinity nor NaN is ever possible.
  bool holds(double value) const;

  /// "between 1 and 16", for the end of "… must be".
  std::string text(bool whole_numbers) const;

  /// The same for what is no number of that kind at all: "a whole number between 1 and 16".
  std::string text_with_kind(bool whole_numbers) const;

  /// Of this range the numbers from `lowest` to `highest`, the ends of a type.
  Range within(double lowest, double highest) const;
};

/// What a T can hold of a range; of the largest float two digits are enough to say so.
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

/// One of several words; `choose` takes the place of the word among them.
struct Choice {
  std::vector<std::string> words;
  std::string present;  ///< the word for the value that the variable has now
  std::function<void(std::size_t index)> choose;
};

/// The words for the values of `value`.
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

/// A whole number or the word "auto", which is no value.
struct NumberOrAuto {
  std::optional<int>* value;
};

/// The name of a file or folder, or another text.
struct Path {
  std::string* value;
  const char* kind = "PATH";  ///< in the help: FILE, DIR, TEXT
  bool may_be_empty = false;
};

/// Where the value of an option goes. What the variable holds now is the default; an optional without a value
/// is off.
using OptionValue = std::variant<bool*, int*, unsigned*, float*, std::optional<int>*, std::optional<float>*,
                                 std::vector<int>*, std::vector<std::string>*, NumberOrAuto, Path, Choice>;

/// Names of options and their values, as one would type them.
using OptionTexts = std::vector<std::pair<std::string, std::string>>;

/// The value of an option, for a rule that compares two.
struct NamedNumber {
  const char* name;
  const int* value;
};

/// Takes declarations of options, and of the rules between them. What a rule looks at must live until the
/// values are read.
class OptionSink {
 public:
  virtual ~OptionSink() = default;

  /// `name` as it is typed: --top-k. A number outside of `range` is refused with the name, the value and the
  /// range. A flag that is on can be switched off as --no-NAME.
  virtual void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) = 0;

  /// What no range can say: throws UsageError for values that contradict each other.
  void rule(std::function<void()> rule);

  /// A rule whose message needs no value.
  void refuse_if(std::function<bool()> is_wrong, std::string message);

  /// A number whose bound is another option's value.
  void require_at_least(NamedNumber number, NamedNumber least);
  void require_at_most(NamedNumber number, NamedNumber most);

  /// Warns of values that are allowed, but do nothing together.
  void warn_if(std::function<bool()> is_suspect, std::string message);

  /// A rule that has to know the model.
  void model_rule(std::function<void(const ModelConfig& config)> rule);

 protected:
  /// For a class that has read all values: applies the rules in the order of their declaration. Warnings come
  /// last, so that a wrong call ends with one sentence.
  void apply_rules() const;

  /// The same once the model is known, before its weights are read.
  void apply_model_rules(const ModelConfig& config) const;

 private:
  std::vector<std::function<void()>> rules_;
  std::vector<std::function<void(const ModelConfig&)>> model_rules_;
  std::vector<std::pair<std::function<bool()>, std::string>> warnings_;
};

/// Throws UsageError that names the option, its value and the range, unless all numbers in `value` are
/// possible.
void require_range(std::string_view name, const OptionValue& value, const Range& range);

/// a · b, where neither is below 0: how many `things` two options make together. Throws UsageError for more
/// than an int holds.
int product(std::int64_t a, std::int64_t b, std::string_view things = "");

}  // namespace staircase
