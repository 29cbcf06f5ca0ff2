#include "common/base/json_file.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "common/base/error.h"
#include "common/base/quoted.h"

namespace staircase {

using nlohmann::json;

namespace {

constexpr std::size_t kMaxDepth = 32;

/// Walks through a document before it is built, and stops at the first fault.
class StrictCheck : public nlohmann::json_sax<json> {
 public:
  StrictCheck(std::string_view text, std::size_t depth) : text_(text), depth_(depth) {}
  std::string fault;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    fault = fmt::format("has the key {} twice", quote(name));
    return false;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    const std::size_t read = std::min(position, text_.size());
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(read), '\n');
    const bool one_line = text_.find('\n') == text_.npos;
    fault = fmt::format("is not valid JSON: the parser stops {}at byte {} of {}",
                        one_line ? "" : fmt::format("in line {}, ", line), read, text_.size());
    return false;
  }

 private:
  bool open() {
    keys_.emplace_back();
    if (keys_.size() <= depth_) return true;
    fault = fmt::format("nests JSON values more than {} deep", depth_);
    return false;
  }

  bool close() {
    keys_.pop_back();
    return true;
  }

  std::string_view text_;
  std::size_t depth_;
  std::vector<std::unordered_set<std::string>> keys_;  // of every open object; empty for an array
};

void check(std::string_view text, const std::string& file, std::size_t depth) {
  // nlohmann's lexer treats a zero byte as the end of the text and would ignore the bytes after it.
  if (const auto zero = text.find('\0'); zero != text.npos) {
    throw Error("{} is not valid JSON: byte {} is zero", file, zero);
  }
  StrictCheck check(text, depth);
  if (!json::sax_parse(text, &check)) throw Error("{} {}", file, check.fault);
}

}  // namespace

json parse_json_object(std::string_view text, const std::string& file) {
  check(text, file, kMaxDepth);
  json object = json::parse(text);
  if (!object.is_object()) throw Error("{} holds {}, not a JSON object", file, shown(object));
  return object;
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& file, std::size_t depth) {
  check(text, file, depth);
  return nlohmann::ordered_json::parse(text);
}

std::string quote(std::string_view text) {
  return quoted(std::string(text), 80);
}

std::string shown(const json& value) {
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  return value.is_string() ? quote(value.get_ref<const std::string&>()) : value.dump();
}

}  // namespace staircase
