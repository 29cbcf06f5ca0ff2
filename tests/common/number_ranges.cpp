// Texts of the numbers between two bounds, compared with all numbers near by.
#include "common/text/number_ranges.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <set>
#include <string>

#include "common/decoding/grammar.h"

using namespace staircase;

namespace {

bool is_text_of(const Grammar& grammar, const std::string& text) {
  return grammar.accepts(grammar.after(grammar.start(), text));
}

std::optional<long long> bound(std::mt19937& random) {
  if (random() % 5 == 0) return std::nullopt;
  return static_cast<long long>(random() % 2500) - 1250;
}

}  // namespace

TEST_CASE("the integers between two bounds are those and no others") {
  std::mt19937 random(1);
  for (int i = 0; i < 40; ++i) {
    const auto least = bound(random), most = bound(random);
    CAPTURE(least.value_or(-9999));
    CAPTURE(most.value_or(9999));
    const Grammar grammar({{"root", integer_range(least, most)}});
    for (long long n = -1300; n <= 1300; ++n) {
      const bool wanted = (!least || n >= *least) && (!most || n <= *most);
      if (is_text_of(grammar, std::to_string(n)) != wanted) FAIL_CHECK(n);
    }
    for (const std::string text : {"-0", "00", "01", "-01", "+1", "", "-", "1.0"})
      CHECK_FALSE(is_text_of(grammar, text));
    for (const std::string many : {"99999999999999999999", "1000000000"}) {
      CHECK(is_text_of(grammar, many) == !most);
      CHECK(is_text_of(grammar, "-" + many) == !least);
    }
  }
}

TEST_CASE("the numbers between two bounds are those and no others") {
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) {
    std::optional<long long> least = bound(random), most = bound(random);
    if (i % 4 == 0) most = least;
    if (i % 4 == 1) least = 0;
    if (i % 4 == 2) most = 0;
    const bool no_least = random() % 2, no_most = random() % 2;
    CAPTURE(least.value_or(-9999));
    CAPTURE(most.value_or(9999));
    const Grammar grammar({{"root", fraction_range(least, most, no_least, no_most)}});
    std::set<std::string> texts{"0",      "0.0",   "0.5",    "0.05", "-0.5",
                                "-0.001", "1.999", "-1.999", "99.9", "1000.0001"};
    for (const auto& limit : {least, most})
      for (const long long whole : {limit.value_or(0) - 1, limit.value_or(0), limit.value_or(0) + 1})
        for (const std::string fraction : {"", ".0", ".00", ".01", ".5", ".10", ".999"})
          texts.insert(std::to_string(whole) + fraction);
    for (const std::string& text : texts) {
      const double value = std::stod(text);
      const bool wanted =
          (!least || value > static_cast<double>(*least) ||
           (!no_least && value == static_cast<double>(*least))) &&
          (!most || value < static_cast<double>(*most) || (!no_most && value == static_cast<double>(*most)));
      if (is_text_of(grammar, text) != wanted) FAIL_CHECK(text);
    }
    for (const std::string text : {"01", "1.", ".5", "-", "1e0", "+1", "-.5", "00.5"})
      CHECK_FALSE(is_text_of(grammar, text));
  }
}
