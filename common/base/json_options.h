// Options from a JSON object: the key max_new_tokens sets the same variable as --max-new-tokens. No installed
// header includes this one.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/json_file.h"
#include "common/base/options.h"

namespace staircase {

/// "top_k is 0.5, but it must be …".
[[noreturn]] inline void refuse(const std::string& key, const nlohmann::json& value,
                                const std::string& right) {
  throw Error("{} is {}, but it must be {}", key, shown(value), right);
}

/// A JSON object for options: a key whose value is null counts as missing. 2.0 becomes 2, also inside lists,
/// since JSON has only one kind of number.
inline nlohmann::json plain_values(nlohmann::json object) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: up to there a double holds every whole number
  const auto make_whole = [](const auto& self, nlohmann::json& value) -> void {
    if (value.is_array()) std::ranges::for_each(value, [&](nlohmann::json& one) { self(self, one); });
    if (!value.is_number_float()) return;
    const double number = value.get<double>();
    if (number == std::trunc(number) && std::abs(number) <= kExact) value = static_cast<std::int64_t>(number);
  };
  for (auto value = object.begin(); value != object.end();) {
    make_whole(make_whole, *value);
    value = value->is_null() ? object.erase(value) : std::next(value);
  }
  return object;
}

/// Returns the number in `value` if T can hold it without dropping a fraction. Otherwise throws Error with
/// the key and the part of `range` that T can hold. Does not check that the number is inside `range`.
template <typename T>
T json_number(const std::string& key, const nlohmann::json& value, const Range& range = {}) {
  using Limits = std::numeric_limits<T>;
  constexpr bool kIsWhole = std::is_integral_v<T>;
  const double number = value.is_number() ? value.get<double>() : 0.0;
  if (!value.is_number() || (kIsWhole && number != std::trunc(number))) {
    refuse(key, value, range.text_with_kind(kIsWhole));
  }
  bool fits = false;
  if constexpr (kIsWhole) {
    // The parser turns a whole number that is too large for 64 bits into a floating-point one.
    if (value.is_number_unsigned()) {
      fits = std::in_range<T>(value.get<std::uint64_t>());
    } else if (value.is_number_integer()) {
      fits = std::in_range<T>(value.get<std::int64_t>());
    }
  } else {
    fits = std::abs(number) <= Limits::max();
  }
  if (!fits) refuse(key, value, held_by<T>(range).text_with_kind(kIsWhole));
  return value.get<T>();
}

/// A JSON object of plain values, whose keys are read one by one.
struct JsonOptions {
  nlohmann::json values;
  std::vector<std::string> known = {};  ///< the keys read so far

  /// The object's value for `key`, or nullptr.
  const nlohmann::json* find(const std::string& key) {
    known.push_back(key);
    const auto place = values.find(key);
    return place == values.end() ? nullptr : &*place;
  }

  /// Each `get` sets the value to the object's value for the key, if there is one. Throws Error for a value
  /// of another type.
  void get(const std::string& key, bool* value, const Range& = {}) {
    const nlohmann::json* const found = find(key);
    if (found == nullptr) return;
    if (!found->is_boolean()) refuse(key, *found, "true or false");
    *value = *found;
  }

  template <typename T>
  requires std::is_arithmetic_v<T>
  void get(const std::string& key, T* value, const Range& range = {}) {
    if (const nlohmann::json* found = find(key)) *value = json_number<T>(key, *found, range);
  }

  template <typename T>
  void get(const std::string& key, std::optional<T>* value, const Range& range = {}) {
    if (const nlohmann::json* found = find(key)) *value = json_number<T>(key, *found, range);
  }

  /// A single text also counts as a list of one text.
  void get(const std::string& key, std::vector<std::string>* value, const Range& = {}) {
    const nlohmann::json* const found = find(key);
    if (found == nullptr) return;
    const auto is_text = [](const nlohmann::json& text) { return text.is_string(); };
    if (found->is_string()) {
      *value = {found->get<std::string>()};
    } else if (found->is_array() && std::ranges::all_of(*found, is_text)) {
      *value = found->get<std::vector<std::string>>();
    } else {
      refuse(key, *found, "a text or a list of texts");
    }
  }

  void get(const std::string& key, const Choice& choice, const Range& = {}) {
    const nlohmann::json* const found = find(key);
    if (found == nullptr) return;
    const std::string word = found->is_string() ? found->get<std::string>() : "";
    const auto place = std::ranges::find(choice.words, word);
    if (place == choice.words.end())
      refuse(key, *found, fmt::format("one of {}", fmt::join(choice.words, ", ")));
    choice.choose(static_cast<std::size_t>(place - choice.words.begin()));
  }

  /// Rejects options that belong to the program, not to one request.
  template <typename T>
  void get(const std::string& key, const T&, const Range& = {}) {
    throw std::logic_error(key + " is not an option of a request");
  }

  /// Calls the `get` for the option's type, then throws UsageError unless the value is in the range.
  void get_option(const std::string& key, const OptionValue& value, const Range& range) {
    std::visit([&](auto place) { get(key, place, range); }, value);
    require_range(key, value, range);
  }

  /// top_k for --top-k.
  static std::string key(const std::string& option) {
    std::string key = option.substr(2);
    std::ranges::replace(key, '-', '_');
    return key;
  }
};

}  // namespace staircase
