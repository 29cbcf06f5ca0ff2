#include "common/text/number_ranges.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "common/text/code_points.h"

namespace staircase {

namespace {

using Kind = RegexPart::Kind;
using Bound = std::optional<long long>;

RegexPart sequence(std::vector<RegexPart> parts) {
  return {Kind::kSequence, std::move(parts)};
}

RegexPart choice(std::vector<RegexPart> parts) {
  return {Kind::kChoice, std::move(parts)};
}

RegexPart repeated(RegexPart part, int least, int most = RegexPart::kNoLimit) {
  RegexPart all{Kind::kRepeat, {std::move(part)}};
  all.least = least;
  all.most = most;
  return most == 0 ? sequence({}) : all;
}

RegexPart digit(char first = '0', char last = '9') {
  RegexPart part{Kind::kByte};
  part.bytes = {static_cast<unsigned char>(first), static_cast<unsigned char>(last)};
  return part;
}

/// The numbers from `least` to `most`, which have the same number of digits.
RegexPart same_length(const std::string& least, const std::string& most) {
  const int rest = static_cast<int>(least.size()) - 1;
  if (least.empty()) return sequence({});
  if (least == std::string(least.size(), '0') && most == std::string(most.size(), '9'))
    return repeated(digit(), rest + 1, rest + 1);
  const char first = least[0], last = most[0];
  if (first == last) return sequence({digit(first, first), same_length(least.substr(1), most.substr(1))});
  RegexPart part = choice({});
  part.parts.push_back(sequence({digit(first, first), same_length(least.substr(1), std::string(rest, '9'))}));
  if (last - first > 1)
    part.parts.push_back(sequence(
        {digit(static_cast<char>(first + 1), static_cast<char>(last - 1)), repeated(digit(), rest, rest)}));
  part.parts.push_back(sequence({digit(last, last), same_length(std::string(rest, '0'), most.substr(1))}));
  return part;
}

/// The numbers from `least` to `most` of any length, without a sign; `least` must not be negative.
RegexPart unsigned_range(long long least, Bound most) {
  RegexPart part = choice({});
  const std::string text = std::to_string(least);
  const std::size_t longest = most ? std::to_string(*most).size() : text.size();
  for (std::size_t size = text.size(); size <= longest && (!most || *most >= least); ++size) {
    const std::string first = size == text.size() ? text : std::to_string(1).append(size - 1, '0');
    const std::string last = most && size == longest ? std::to_string(*most) : std::string(size, '9');
    part.parts.push_back(same_length(first, last));
  }
  if (!most) part.parts.push_back(sequence({digit('1'), repeated(digit(), static_cast<int>(longest))}));
  return part;
}

RegexPart optional(RegexPart part) {
  return choice({sequence({}), std::move(part)});
}

RegexPart any_fraction() {
  return optional(sequence({bytes_of("."), repeated(digit(), 1)}));
}

/// A decimal without its sign, and without zeros at the end.
struct Decimal {
  bool is_negative;
  long long whole;
  std::string fraction;

  explicit Decimal(const std::string& text)
      : is_negative(text.starts_with("-")), whole(std::llabs(std::stoll(text))) {
    if (const auto point = text.find('.'); point != text.npos) fraction = text.substr(point + 1);
    while (fraction.ends_with('0')) fraction.pop_back();
  }

  bool is_zero() const { return whole == 0 && fraction.empty(); }
};

/// Numbers without a sign that are at least a decimal: some digit is greater after equal digits, or all
/// digits are equal.
RegexPart unsigned_from(const Decimal& bound, bool excludes) {
  const std::string& digits = bound.fraction;
  const auto point = [&](std::size_t count) {
    return bytes_of(std::string(1, '.').append(digits, 0, count));
  };
  const RegexPart not_zero = sequence({repeated(digit(), 0), digit('1'), repeated(digit(), 0)});
  RegexPart fraction = choice({});
  for (std::size_t i = 0; i < digits.size(); ++i)
    if (digits[i] < '9')
      fraction.parts.push_back(
          sequence({point(i), digit(static_cast<char>(digits[i] + 1)), repeated(digit(), 0)}));
  if (excludes)
    fraction.parts.push_back(sequence({point(digits.size()), not_zero}));
  else
    fraction.parts.push_back(digits.empty() ? any_fraction()
                                            : sequence({point(digits.size()), repeated(digit(), 0)}));
  return choice({sequence({unsigned_range(bound.whole + 1, std::nullopt), any_fraction()}),
                 sequence({bytes_of(std::to_string(bound.whole)), std::move(fraction)})});
}

/// Numbers without a sign that are at most a decimal: some digit is smaller after equal digits, the digits
/// end earlier, or all digits are equal.
RegexPart unsigned_to(const Decimal& bound, bool excludes) {
  const std::string& digits = bound.fraction;
  const auto point = [&](std::size_t count) {
    return bytes_of(std::string(1, '.').append(digits, 0, count));
  };
  RegexPart fraction = choice({});
  for (std::size_t i = 0; i < digits.size(); ++i) {
    fraction.parts.push_back(i == 0 ? sequence({}) : point(i));
    if (digits[i] > '0')
      fraction.parts.push_back(
          sequence({point(i), digit('0', static_cast<char>(digits[i] - 1)), repeated(digit(), 0)}));
  }
  const RegexPart zeros = repeated(digit('0', '0'), digits.empty() ? 1 : 0);
  if (!excludes) {
    RegexPart same = sequence({point(digits.size()), zeros});
    fraction.parts.push_back(digits.empty() ? optional(std::move(same)) : std::move(same));
  }
  RegexPart part = choice({});
  if (bound.whole > 0) part.parts.push_back(sequence({unsigned_range(0, bound.whole - 1), any_fraction()}));
  part.parts.push_back(sequence({bytes_of(std::to_string(bound.whole)), std::move(fraction)}));
  return part;
}

}  // namespace

RegexPart any_integer() {
  return sequence({choice({sequence({}), bytes_of("-")}),
                   choice({bytes_of("0"), sequence({digit('1'), repeated(digit(), 0)})})});
}

RegexPart any_number() {
  const RegexPart sign = choice({sequence({}), bytes_of("-"), bytes_of("+")});
  return sequence({any_integer(), choice({sequence({}), sequence({bytes_of("."), repeated(digit(), 1)})}),
                   choice({sequence({}),
                           sequence({choice({bytes_of("e"), bytes_of("E")}), sign, repeated(digit(), 1)})})});
}

RegexPart any_fraction() {
  const RegexPart digits = repeated(digit(), 0);
  return sequence({any_integer(), bytes_of("."), digits, digit('1', '9'), digits});
}

RegexPart integer_range(Bound least, Bound most) {
  RegexPart part = choice({});
  if (!most || *most >= 0) part.parts.push_back(unsigned_range(std::max(0LL, least.value_or(0)), most));
  if (!least || *least < 0) {
    const long long nearest = most ? std::max(1LL, -*most) : 1;
    part.parts.push_back(
        sequence({bytes_of("-"), unsigned_range(nearest, least ? Bound(-*least) : std::nullopt)}));
  }
  return part;
}

RegexPart numbers_from(const std::string& bound, bool excludes) {
  const Decimal decimal(bound);
  if (!decimal.is_negative || decimal.is_zero()) return unsigned_from(decimal, excludes);
  return choice(
      {unsigned_from(Decimal("0"), false), sequence({bytes_of("-"), unsigned_to(decimal, excludes)})});
}

RegexPart numbers_to(const std::string& bound, bool excludes) {
  const Decimal decimal(bound);
  if (decimal.is_negative || (decimal.is_zero() && excludes))
    return sequence({bytes_of("-"), unsigned_from(decimal, excludes)});
  return choice(
      {unsigned_to(decimal, excludes), sequence({bytes_of("-"), unsigned_from(Decimal("0"), false)})});
}

}  // namespace staircase
