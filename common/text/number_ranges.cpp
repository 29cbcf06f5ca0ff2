#include "common/text/number_ranges.h"

#include <algorithm>
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

/// The texts of as many digits from `least` to `most`.
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

/// The same for numbers of any length without a sign; `least` is not negative.
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

/// Numbers with a fraction and without a sign, from `least` up.
RegexPart unsigned_fractions(long long least, Bound most, bool excludes_least, bool excludes_most) {
  const auto fraction = [](RegexPart digits) {
    return choice({sequence({}), sequence({bytes_of("."), std::move(digits)})});
  };
  const RegexPart zeros = repeated(digit('0', '0'), 1), any = repeated(digit(), 1);
  const RegexPart not_zero =
      sequence({bytes_of("."), repeated(digit(), 0), digit('1'), repeated(digit(), 0)});
  const auto whole = [](long long number) { return bytes_of(std::to_string(number)); };
  RegexPart part = choice({});
  if (most && *most < least) return part;
  if (!most || *most > least) {
    const long long first = excludes_least ? least + 1 : least;
    if (excludes_least) part.parts.push_back(sequence({whole(least), not_zero}));
    if (!most || *most - 1 >= first)
      part.parts.push_back(
          sequence({unsigned_range(first, most ? Bound(*most - 1) : std::nullopt), fraction(any)}));
  } else if (excludes_least) {
    return part;
  }
  if (most && !excludes_most) part.parts.push_back(sequence({whole(*most), fraction(zeros)}));
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

RegexPart fraction_range(Bound least, Bound most, bool excludes_least, bool excludes_most) {
  RegexPart part = choice({});
  if (!most || *most >= 0) {
    const bool is_above = least && *least >= 0;
    part.parts.push_back(
        unsigned_fractions(is_above ? *least : 0, most, is_above && excludes_least, excludes_most));
  }
  if (!least || *least < 0) {
    // Below zero, the bounds change places. Zero itself is written without a sign.
    const bool is_below = most && *most < 0;
    part.parts.push_back(sequence(
        {bytes_of("-"), unsigned_fractions(is_below ? -*most : 0, least ? Bound(-*least) : std::nullopt,
                                           !is_below || excludes_most, excludes_least)}));
  }
  return part;
}

}  // namespace staircase
