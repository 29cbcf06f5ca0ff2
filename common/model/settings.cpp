#include "common/model/settings.h"

#include <algorithm>
#include <cmath>

#include "common/base/error.h"
#include "common/base/json_file.h"

namespace staircase {

using nlohmann::json;

namespace {

/// Whether the value is an integer from `low` to `high`.
bool is_within(const json& value, std::uint64_t low, std::uint64_t high) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<std::int64_t>() < 0))
    return false;
  const auto number = value.get<std::uint64_t>();
  return number >= low && number <= high;
}

}  // namespace

void Settings::refuse(const std::string& name, const json& value, const std::string& wanted) const {
  throw Error("{}: {}{} is {}, {}", file_, path_, name, shown(value), wanted);
}

const json* Settings::find(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() || found->is_null() ? nullptr : &*found;
}

int Settings::integer(const std::string& name, std::uint64_t low, std::uint64_t high) const {
  const json* value = find(name);
  if (!value) throw Error("{} has no {}{}", file_, path_, name);
  if (!is_within(*value, low, high))
    refuse(name, *value, fmt::format("not an integer from {} to {}", low, high));
  return value->get<int>();
}

int Settings::integer_or(const std::string& name, int fallback, std::uint64_t low, std::uint64_t high) const {
  return find(name) ? integer(name, low, high) : fallback;
}

bool Settings::boolean_or(const std::string& name, bool fallback) const {
  const json* value = find(name);
  if (!value) return fallback;
  if (!value->is_boolean()) refuse(name, *value, "not true or false");
  return *value;
}

double Settings::positive_or(const std::string& name, double fallback) const {
  return find(name) ? positive(name) : fallback;
}

double Settings::positive(const std::string& name) const {
  const json* value = find(name);
  if (!value) throw Error("{} has no {}{}", file_, path_, name);
  const double number = value->is_number() ? value->get<double>() : 0.0;
  const auto single = static_cast<float>(number);  // the type in which most settings are used
  if (!(single > 0.0f) || !std::isfinite(single)) {
    refuse(name, *value, "not a number above 0");
  }
  return number;
}

std::string Settings::text_or(const std::string& name, const std::string& fallback) const {
  const json* value = find(name);
  if (!value) return fallback;
  if (!value->is_string()) refuse(name, *value, "not a text");
  return *value;
}

std::vector<int> Settings::tokens(const std::string& name, int vocab_size) const {
  const json* value = find(name);
  if (!value) return {};
  std::vector<int> tokens;
  for (const json& token : value->is_array() ? *value : json::array({*value})) {
    if (!is_within(token, 0, static_cast<std::uint64_t>(vocab_size - 1))) {
      refuse(name, token, fmt::format("not an integer from 0 to {}", vocab_size - 1));
    }
    tokens.push_back(token);
  }
  return tokens;
}

Settings Settings::object(const std::string& name) const {
  const json* value = find(name);
  if (value && !value->is_object()) refuse(name, *value, "not an object");
  Settings inside(file_, value ? *value : json::object());
  inside.path_ = path_ + name + ".";
  return inside;
}

void Settings::require(const std::string& name, std::initializer_list<json> supported) const {
  const json* value = find(name);
  if (!value || std::ranges::count(supported, *value) > 0) return;
  std::string names;
  for (const json& one : supported) names += (names.empty() ? "" : " or ") + one.dump();
  refuse(name, *value, "and only " + (names.empty() ? "null" : names) + " is supported");
}

}  // namespace staircase
