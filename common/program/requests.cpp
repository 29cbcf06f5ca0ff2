#include "common/program/requests.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "common/base/error.h"
#include "common/base/json_file.h"

namespace staircase {

using nlohmann::json;

namespace {

[[noreturn]] void refuse(const std::string& key, const json& value, const std::string& right) {
  throw Error("{} is {}, but it must be {}", key, shown(value), right);
}

/// A number that the type can hold. What would only fit by rounding a fraction away does not.
template <typename T>
T number(const std::string& key, const json& value) {
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

}  // namespace

struct RequestLine::Object {
  json values;
  std::vector<std::string> known = {};

  /// What the line has for `key`, or nullptr.
  const json* find(const std::string& key) {
    known.push_back(key);
    const auto place = values.find(key);
    return place == values.end() ? nullptr : &*place;
  }

  void get(const std::string& key, bool* value) {
    const json* const found = find(key);
    if (found == nullptr) return;
    if (!found->is_boolean()) refuse(key, *found, "true or false");
    *value = *found;
  }

  template <typename T>
  requires std::is_arithmetic_v<T>
  void get(const std::string& key, T* value) {
    if (const json* found = find(key)) *value = number<T>(key, *found);
  }

  template <typename T>
  void get(const std::string& key, std::optional<T>* value) {
    const json* const found = find(key);
    if (found == nullptr) return;
    value->reset();
    if (!found->is_null()) *value = number<T>(key, *found);
  }

  void get(const std::string& key, std::vector<std::string>* value) {
    const json* const found = find(key);
    if (found == nullptr) return;
    const json list = found->is_string() ? json::array({*found}) : *found;
    if (!list.is_array() || !std::ranges::all_of(list, [](const json& text) { return text.is_string(); })) {
      refuse(key, *found, "a text or a list of texts");
    }
    *value = list.get<std::vector<std::string>>();
  }

  void get(const std::string& key, const Choice& choice) {
    const json* const found = find(key);
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
};

RequestLine::RequestLine(std::string_view text)
    : object_(std::make_unique<Object>(Object{parse_json_object(text, "the line")})) {
  const json* const prompt = object_->find("prompt");
  if (prompt == nullptr) throw Error("the line has no prompt");
  if (!prompt->is_string()) refuse("prompt", *prompt, "a text");
  prompt_ = *prompt;
}

RequestLine::~RequestLine() = default;

double RequestLine::arrival() {
  constexpr double kDay = 86400.0;
  const json* const found = object_->find("arrival");
  if (found == nullptr) return 0.0;
  const double seconds = found->is_number() ? found->get<double>() : -1.0;
  if (!(seconds >= 0.0 && seconds <= kDay)) {
    refuse("arrival", *found, fmt::format("a number of seconds from 0 to {}, a day", kDay));
  }
  return seconds;
}

void RequestLine::add(const std::string& name, OptionValue value, const std::string& /*help*/, Range range) {
  std::string key = name.substr(2);
  std::ranges::replace(key, '-', '_');
  std::visit([&](auto place) { object_->get(key, place); }, value);
  require_range(key, value, range);
}

void RequestLine::end() const {
  for (const auto& [key, value] : object_->values.items()) {
    if (std::ranges::find(object_->known, key) != object_->known.end()) continue;
    throw Error("the line has the key {}, which is none of {}", quote(key), fmt::join(object_->known, ", "));
  }
}

}  // namespace staircase
