// A value in a JSON file with the file's name and its own path, so that every error names both. No installed
// header includes this one.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/json_file.h"

namespace staircase {

class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, std::string file, std::string path = "")
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  /// A member of an object. A missing member counts as null.
  JsonValue operator[](const std::string& key) const {
    static const nlohmann::json null;
    const auto found = object().find(key);
    return {found == value_->end() ? null : *found, file_, path_.empty() ? key : path_ + "." + key};
  }

  std::vector<JsonValue> elements() const {
    if (!value_->is_array()) refuse("not a list");
    std::vector<JsonValue> all;
    for (std::size_t i = 0; i < value_->size(); ++i) {
      all.emplace_back((*value_)[i], file_, fmt::format("{}[{}]", path_, i));
    }
    return all;
  }

  const nlohmann::json& object() const {
    if (!value_->is_object()) refuse("not an object");
    return *value_;
  }

  const nlohmann::json& json() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  const std::string& text() const {
    if (!value_->is_string()) refuse("not a text");
    return value_->get_ref<const std::string&>();
  }

  bool boolean(bool otherwise) const {
    if (value_->is_null()) return otherwise;
    if (!value_->is_boolean()) refuse("not true or false");
    return value_->get<bool>();
  }

  /// An integer from 0 up to, but not including, `end`.
  int index(int end) const {
    if (!value_->is_number_unsigned() || value_->get<std::uint64_t>() >= static_cast<std::uint64_t>(end)) {
      refuse(fmt::format("not an integer from 0 to {}", end - 1));
    }
    return value_->get<int>();
  }

  /// Throws Error for a member that is not among `keys`, unless its value is null or false.
  void allow(std::initializer_list<const char*> keys) const {
    for (const auto& [key, value] : object().items()) {
      if (value.is_null() || value == false || std::find(keys.begin(), keys.end(), key) != keys.end())
        continue;
      (*this)[key].refuse("and this setting is not supported");
    }
  }

  /// Throws the Error "FILE: PATH is VALUE, `why`".
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error("{}: {} is {}, {}", file_, path_.empty() ? "the file" : path_, shown(*value_), why);
  }

  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }

 private:
  const nlohmann::json* value_;
  std::string file_, path_;
};

}  // namespace staircase
