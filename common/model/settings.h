// Reads the settings of a model one by one, as config.json or a GGUF file states them. No installed header
// includes this one: users of the library do not depend on our JSON parser.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace staircase {

/// As in transformers, a missing key and null both mean the default. Every function throws Error for a wrong
/// value, with one sentence that names the file, the key and the value.
class Settings {
 public:
  /// The settings in a JSON object; `file` is for the messages.
  Settings(std::string file, nlohmann::json values) : file_(std::move(file)), values_(std::move(values)) {}

  /// The value of `name`, or nullptr.
  const nlohmann::json* find(const std::string& name) const;

  /// Whether the file sets the key to null.
  bool is_null(const std::string& name) const { return values_.contains(name) && values_.at(name).is_null(); }

  int integer(const std::string& name, std::uint64_t low, std::uint64_t high) const;
  int integer_or(const std::string& name, int fallback, std::uint64_t low, std::uint64_t high) const;
  bool boolean_or(const std::string& name, bool fallback) const;

  /// Both return a finite number above 0.
  double positive(const std::string& name) const;
  double positive_or(const std::string& name, double fallback) const;

  std::string text_or(const std::string& name, const std::string& fallback) const;

  /// Reads a token id or a list of token ids, all below `vocab_size`; empty if the key is missing.
  std::vector<int> tokens(const std::string& name, int vocab_size) const;

  /// The settings in the object `name`; no settings if it is missing.
  Settings object(const std::string& name) const;

  /// Throws Error unless the setting is missing or has one of these values: any other value would change the
  /// computation.
  void require(const std::string& name, std::initializer_list<nlohmann::json> supported) const;

  const std::string& file() const { return file_; }

  /// Remarks for the user: what the file leaves open, and what is assumed.
  std::vector<std::string> remarks = {};

 private:
  [[noreturn]] void refuse(const std::string& name, const nlohmann::json& value,
                           const std::string& wanted) const;

  std::string file_;
  nlohmann::json values_;
  std::string path_ = {};  // path of an object inside the file: "rope_scaling."
};

}  // namespace staircase
