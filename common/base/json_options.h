// Options from a JSON object: the key max_new_tokens sets what --max-new-tokens would. Only sources include
// this, no header.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
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

/// The number that `value` is, if the type can hold it. What would only fit by rounding a fraction away does
/// not. Throws Error with the key.
template <typename T>
T json_number(const std::string& key, const nlohmann::json& value) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_integral_v<T>) {
    // A whole number that is too large for 64 bits is a floating-point one to the parser.
    const bool fits = value.is_number_unsigned()
                          ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(Limits::max())
                          : value.is_number_integer() && value.get<std::int64_t>() >= Limits::min();
    if (!fits) refuse(key, value, fmt::format("a whole number from {} to {}", Limits::min(), Limits::max()));
  } else {
    const bool fits = value.is_number() && std::abs(value.get<double>()) <= Limits::max();
    if (!fits) refuse(key, value, fmt::format("a number from {} to {}", Limits::lowest(), Limits::max()));
  }
  return value.get<T>();
}

/// An object whose keys are asked for one by one.
struct JsonOptions {
  nlohmann::json values;
  std::vector<std::string> known = {};  ///< the keys that were asked for

  /// What the object has for `key`, or nullptr.
  const nlohmann::json* find(const std::string& key) {
    known.push_back(key);
    const auto place = values.find(key);
    return place == values.end() ? nullptr : &*place;
  }

  /// Each `get` sets the value to what the object has for the key, if it has it. Throws Error for a value of
  /// another kind.
  void get(const std::string& key, bool* value) {
    const nlohmann::json* const found = find(key);
    if (found == nullptr) return;
    if (!found->is_boolean()) refuse(key, *found, "true or false");
    *value = *found;
  }

  template <typename T>
  requires std::is_arithmetic_v<T>
  void get(const std::string& key, T* value) {
    if (const nlohmann::json* found = find(key)) *value = json_number<T>(key, *found);
  }

  /// null is no value.
  template <typename T>
  void get(const std::string& key, std::optional<T>* value) {
    const nlohmann::json* const found = find(key);
    if (found == nullptr) return;
    value->reset();
    if (!found->is_null()) *value = json_number<T>(key, *found);
  }

  /// A list of texts can also be one text.
  void get(const std::string& key, std::vector<std::string>* value) {
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

  void get(const std::string& key, const Choice& choice) {
    const nlohmann::json* const found = find(key);
    if (found == nullptr) return;
    const std::string word = found->is_string() ? found->get<std::string>() : "";
    const auto place = std::ranges::find(choice.words, word);
    if (place == choice.words.end())
      refuse(key, *found, fmt::format("one of {}", fmt::join(choice.words, ", ")));
    choice.choose(static_cast<std::size_t>(place - choice.words.begin()));
  }

  /// Options that are about the program and not about one text.
  template <typename T>
  void get(const std::string& key, const T&) {
    throw std::logic_error(key + " is no option of a request");
  }

  /// The same for an option of whatever type, whose value must be in the range.
  void get_option(const std::string& key, const OptionValue& value, const Range& range) {
    std::visit([&](auto place) { get(key, place); }, value);
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
