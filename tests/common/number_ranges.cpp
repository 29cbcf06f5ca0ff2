// Texts of the numbers between two bounds, compared with all numbers near by.
#include "common/text/number_ranges.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

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

TEST_CASE("bounds at which the sign or the number of digits changes hold to the last integer") {
  const std::vector<std::optional<long long>> bounds{std::nullopt, -100, -99, -10, -9, -1, 0, 1, 9,
                                                     10,           99,   100};
  for (const auto least : bounds) {
    for (const auto most : bounds) {
      CAPTURE(least.value_or(-9999));
      CAPTURE(most.value_or(9999));
      const Grammar grammar({{"root", integer_range(least, most)}});
      for (const long long edge : {-100, -10, 0, 10, 100}) {
        for (long long n = edge - 2; n <= edge + 2; ++n) {
          const bool wanted = (!least || n >= *least) && (!most || n <= *most);
          if (is_text_of(grammar, std::to_string(n)) != wanted) FAIL_CHECK(n);
        }
      }
    }
  }
}

TEST_CASE("the numbers from a bound up, and those up to it, are those and no others") {
  std::mt19937 random(1);
  for (int i = 0; i < 120; ++i) {
    const int places = static_cast<int>(random() % 4);
    double number = static_cast<double>(static_cast<int>(random() % 2500) - 1250) / std::pow(10, places);
    if (i % 8 == 0) number = 0;
    const std::string bound = fmt::format("{}", number);
    CAPTURE(bound);
    std::set<std::string> texts{"0",
                                "0.0",
                                "0.5",
                                "0.05",
                                "-0.5",
                                bound,
                                bound + (bound.find('.') == bound.npos ? ".0" : "0"),
                                "-0.001",
                                "1.999",
                                "-1.999",
                                "99.9",
                                "1000.0001"};
    for (int k = -20; k <= 20; ++k)
      texts.insert(fmt::format("{:.{}f}", number + k / std::pow(10, places + k % 2), places + k % 3 * k % 3));
    for (const bool excludes : {false, true}) {
      const Grammar from({{"root", numbers_from(bound, excludes)}}),
          to({{"root", numbers_to(bound, excludes)}});
      for (const std::string& text : texts) {
        const double value = std::stod(text);
        if (value == 0 && text.starts_with("-")) continue;  // -0 has other texts
        CAPTURE(text);
        CAPTURE(excludes);
        CHECK(is_text_of(from, text) == (excludes ? value > number : value >= number));
        CHECK(is_text_of(to, text) == (excludes ? value < number : value <= number));
      }
      for (const std::string text : {"01", "1.", ".5", "-", "1e0", "+1", "-.5", "00.5"}) {
        CHECK_FALSE(is_text_of(from, text));
        CHECK_FALSE(is_text_of(to, text));
      }
      // A valid text of zero is none of a number that may not be zero.
      CHECK_FALSE((number == 0 && excludes && (is_text_of(from, "-0.0") || is_text_of(to, "-0.0"))));
    }
  }
}
