#include "common/base/options.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "common/base/error.h"
#include "common/base/message.h"

namespace staircase {

bool Range::holds(double value) const {
  return std::isfinite(value) && (without_least ? value > least : value >= least) && value <= most;
}

std::string Range::text(bool whole_numbers) const {
  const double infinity = std::numeric_limits<double>::infinity();
  if (least == -infinity) return most == infinity ? "a number" : fmt::format("at most {}", most);
  if (most < infinity) {
    return without_least ? fmt::format("above {} and at most {}", least, most)
                         : fmt::format("between {} and {}", least, most);
  }
  if (without_least) return fmt::format("a number above {}", least);
  return fmt::format("{}{} or more", whole_numbers ? "" : "a number of ", least);
}

std::string Range::text_with_kind(bool whole_numbers) const {
  const std::string kind = whole_numbers ? "a whole number" : "a number";
  if (!is_bounded()) return kind;
  const std::string numbers = text(true);
  if (numbers.starts_with("a number")) return kind + numbers.substr(8);
  return kind + (numbers.starts_with("between") || without_least ? " " : " of ") + numbers;
}

Range Range::within(double lowest, double highest) const {
  const bool is_above = without_least && least >= lowest;
  return {std::max(least, lowest), std::min(most, highest), is_above};
}

void OptionSink::rule(std::function<void()> rule) {
  rules_.push_back(std::move(rule));
}

void OptionSink::refuse_if(std::function<bool()> is_wrong, std::string message) {
  rules_.push_back([is_wrong = std::move(is_wrong), message = std::move(message)] {
    if (is_wrong()) throw UsageError(message);
  });
}

void OptionSink::require_at_least(NamedNumber number, NamedNumber least) {
  rule([number, least] {
    if (*number.value >= *least.value) return;
    throw UsageError("{} is {}, but it must be {} or more, the value of {}", number.name, *number.value,
                     *least.value, least.name);
  });
}

void OptionSink::require_at_most(NamedNumber number, NamedNumber most) {
  rule([number, most] {
    if (*number.value <= *most.value) return;
    throw UsageError("{} is {}, but it must be at most {}, the value of {}", number.name, *number.value,
                     *most.value, most.name);
  });
}

void OptionSink::warn_if(std::function<bool()> is_suspect, std::string message) {
  warnings_.emplace_back(std::move(is_suspect), std::move(message));
}

void OptionSink::model_rule(std::function<void(const ModelConfig&)> rule) {
  model_rules_.push_back(std::move(rule));
}

void OptionSink::apply_rules() const {
  for (const auto& rule : rules_) rule();
  for (const auto& [is_suspect, message] : warnings_) {
    if (is_suspect()) warn("{}", message);
  }
}

void OptionSink::apply_model_rules(const ModelConfig& config) const {
  for (const auto& rule : model_rules_) rule(config);
}

void require_range(std::string_view name, const OptionValue& value, const Range& range) {
  const auto check = [&](auto number, std::string_view or_else = "") {
    if (range.holds(static_cast<double>(number))) return;
    throw UsageError("{} is {}, but it must be {}{}", name, number,
                     range.text(std::is_integral_v<decltype(number)>), or_else);
  };
  const auto check_value = [&](const auto& place) {
    using Place = std::decay_t<decltype(place)>;
    if constexpr (std::is_same_v<Place, int*> || std::is_same_v<Place, unsigned*> ||
                  std::is_same_v<Place, float*>) {
      check(*place);
    } else if constexpr (std::is_same_v<Place, std::optional<int>*> ||
                         std::is_same_v<Place, std::optional<float>*>) {
      if (*place) check(**place);
    } else if constexpr (std::is_same_v<Place, NumberOrAuto>) {
      if (*place.value) check(**place.value, ", or auto");
    } else if constexpr (std::is_same_v<Place, std::vector<int>*>) {
      for (const int number : *place) check(number);
    } else if constexpr (std::is_same_v<Place, std::vector<std::string>*>) {
      for (const std::string& text : *place) {
        if (text.empty() && range.is_bounded()) {
          throw UsageError("{} is empty, but it must have at least one character", name);
        }
      }
    }
  };
  std::visit(check_value, value);
}

int product(std::int64_t a, std::int64_t b, std::string_view things) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  if (a > 0 && b > kMost / a) {
    throw UsageError("{} times {}{}{} is too much: the limit is {}", a, b, things.empty() ? "" : " ", things,
                     kMost);
  }
  return static_cast<int>(a * b);
}

}  // namespace staircase
