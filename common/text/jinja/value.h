// The values of a template's expressions, which behave as in Python. All values except namespaces are
// immutable, so they are shared and never copied.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/text/jinja/text.h"

namespace staircase::jinja {

/// How deep lists and dicts may nest, so that recursion over them is bounded.
constexpr int kMostValueNesting = 200;

/// What a template may still spend. If a count falls below zero, the template ends.
struct Budget {
  std::int64_t steps, bytes;

  void spend_steps(std::size_t count = 1);
  /// Pays for new texts and lists: their bytes, and one step per 64 bytes.
  void spend_bytes(std::size_t count);
  /// Pays for the search for a text of `b` bytes in a text of `a` bytes.
  void spend_product(std::size_t a, std::size_t b);
};

struct Undefined {
  std::string what;  ///< for messages: the name that was looked up
};
struct None {};
struct Sequence;
struct Dict;
struct Namespace;
struct Loop;
struct Function;

class Value {
 public:
  Value() = default;  ///< undefined, without a name
  Value(Undefined undefined) : content_(std::move(undefined)) {}
  Value(None none) : content_(none) {}
  Value(bool truth) : content_(truth) {}
  Value(std::int64_t number) : content_(number) {}
  Value(double number) : content_(number) {}
  Value(Text text) : content_(std::make_shared<const Text>(std::move(text))) {}
  template <typename T>
  Value(std::shared_ptr<T> shared) : content_(std::move(shared)) {}

  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  bool is_number() const { return as<bool>() || as<std::int64_t>() || as<double>(); }
  const Text* text() const { return shared<const Text>(); }
  const Sequence* sequence() const { return shared<const Sequence>(); }
  const Dict* dict() const { return shared<const Dict>(); }
  Namespace* name_space() const { return shared<Namespace>(); }
  const Loop* loop() const { return shared<const Loop>(); }
  const Function* function() const { return shared<const Function>(); }

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&content_);
  }

  /// The value as an integer, if it is one; true and false count as 1 and 0.
  std::optional<std::int64_t> integer() const;
  /// The value as a number, if it is one.
  std::optional<double> real() const;

  /// "text", "list", ... for messages.
  const char* kind() const;

 private:
  template <typename T>
  T* shared() const {
    const auto* pointer = std::get_if<std::shared_ptr<T>>(&content_);
    return pointer ? pointer->get() : nullptr;
  }

  std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Loop>, std::shared_ptr<const Function>>
      content_;
};

struct Sequence {
  /// A range can do what a list can, but is not a list and has another text. A view, such as dict.items(),
  /// has a length but cannot be indexed; an iterator, such as the result of a filter, has neither a length
  /// nor indices.
  enum class Kind { kList, kTuple, kRange, kView, kIterator };

  std::vector<Value> items;
  Kind kind = Kind::kList;
  int depth = 1;
};

/// The name of an iterator in messages.
constexpr const char* kIteratorInMessages = "a range or what a filter made; |list makes a list of it";

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in the order of insertion
  int depth = 1;

  const Value* find(const Value& key, Budget& budget) const;
  void set(Value key, Value value, Budget& budget);
};

struct Namespace {
  Dict attributes;
};

struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;
};

/// The arguments of a call as written.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
};

struct Function {
  std::string name;
  std::function<Value(Arguments)> call;
};

/// Throws Fault for a text whose next operations would escape other texts (is_html).
void require_plain(const Text& text, const std::string& use);

/// Throws Fault for a value that cannot be a key in Python, such as a list.
void require_hashable(const Value& key);

Value make_list(std::vector<Value> items, Budget& budget, Sequence::Kind kind = Sequence::Kind::kList);
Value make_dict(Dict dict, Budget& budget);

/// Converts the data of a template: none of its strings counts as the template's own text. Throws Fault if
/// the value nests too deeply.
Value from_json(const nlohmann::ordered_json& json, int depth = 0);

bool is_true(const Value& value);
bool equal(const Value& a, const Value& b, Budget& budget);
/// Whether a < b, for two numbers, two texts or two lists. Throws Fault for other values.
bool less(const Value& a, const Value& b, Budget& budget);
/// `a in b`.
bool contains(const Value& container, const Value& value, Budget& budget);

/// The elements that a loop iterates over: items, keys or characters. Throws Fault for a value that cannot be
/// iterated.
std::vector<Value> elements(const Value& value, Budget& budget);
std::size_t length(const Value& value);

/// Converts a value like Python's str(). Only texts keep their origin; the text of any other value belongs to
/// the data.
Text to_text(const Value& value, Budget& budget);

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;  ///< the indent of one level
  std::string comma, colon;
};

/// Writes JSON like Python's json.dumps(). The text belongs to the data, so JSON never becomes special
/// tokens.
Text to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace staircase::jinja
