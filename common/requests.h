// Requests to a program that serves several of them: one JSON object a line, with what to continue, when it
// arrives, and options of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace staircase {

/// One line. A step asks for the options that it knows by their keys; then every other key is an error.
class RequestLine {
 public:
  /// Throws Error unless `text` is a JSON object with a "prompt".
  explicit RequestLine(std::string_view text);
  ~RequestLine();

  const std::string& prompt() const { return prompt_; }

  /// When the request is made, in seconds from the start: 0 unless the line says otherwise, at most a day.
  /// Throws Error for another value.
  double arrival();

  /// Sets `value` to what the line has for `key`, if it has the key. An optional can also be null: no value.
  /// A list of texts can also be one text. Throws Error for a value of another kind.
  void get(const std::string& key, bool& value);
  void get(const std::string& key, int& value);
  void get(const std::string& key, unsigned& value);
  void get(const std::string& key, float& value);
  void get(const std::string& key, std::optional<int>& value);
  void get(const std::string& key, std::optional<float>& value);
  void get(const std::string& key, std::vector<std::string>& value);

  /// Throws Error for a key that nobody has asked for.
  void end() const;

 private:
  struct Object;
  std::unique_ptr<Object> object_;
  std::string prompt_;
};

}  // namespace staircase
