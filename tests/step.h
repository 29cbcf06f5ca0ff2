// What the checks of every step share: the embedded model, loaded once, and the reference outputs.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/decoding/results.h"
#include "common/model/model.h"
#include "common/model/model_folder.h"
#include "common/text/tokenizer.h"
#include "tests/test_device.h"

// Compiled once, in step.cpp: for each test it would be a tenth of the compiler's work.
extern template class nlohmann::basic_json<>;

namespace staircase {

/// Sanitizers make products twenty times slower: what takes seconds without them is left out.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// tales-6m on the device of the tests, with all processors where that is the CPU.
Model& tales();

/// The same with its weights in that type, loaded again.
Model tales_in(DType dtype);

/// What its tokens mean.
const Tokenizer& tales_tokenizer();

/// For a loop that takes a whole text through the model each time.
inline KvCache& no_cache() {
  static NoCache none;
  return none;
}

/// Ends the observation of tales() with the scope, also if what is observed throws.
struct Unobserved {
  ~Unobserved() { tales().on_stage(nullptr); }
};

/// tests/reference/`name`, made with Hugging Face transformers; read once.
const nlohmann::json& reference(const std::string& name);

/// Empty if `got` are the tokens `want` of the reference; otherwise the first that differs, as `token 14: got
/// " king", want " old"`. The comparison ends where the two best logits are within 1e-3 of each other
/// (`gaps`, one per token). There another correct program may choose the other token, and everything after it
/// may differ.
std::string first_difference(const std::vector<int>& got, const std::vector<int>& want,
                             const std::vector<double>& gaps);

/// The tokens of `tokens` after a prompt of `prompt_length`.
std::vector<int> tokens_after(std::size_t prompt_length, const std::vector<int>& tokens);

/// Empty if `continued(prompt, 64)`, the new tokens, equals every greedy run of the reference; otherwise the
/// first difference.
std::string difference_from_greedy(
    const std::function<std::vector<int>(const std::vector<int>& prompt, int count)>& continued);

}  // namespace staircase

namespace doctest {

/// A check that fails shows what is in a list, a set or a map. What most checks compare is written out in
/// step.cpp, once for all.
template <typename T>
requires requires(const T& list) {
  list.begin();
  list.size();
  requires !std::is_convertible_v<T, std::string_view>;
}
struct StringMaker<T> {
  static String convert(const T& list) {
    String text = "[";
    const char* separator = "";
    for (const auto& value : list) {
      text += separator + toString(value);
      separator = ", ";
    }
    return text + "]";
  }
};
template <typename Key, typename Value>
struct StringMaker<std::pair<Key, Value>> {
  static String convert(const std::pair<Key, Value>& pair) {
    return toString(pair.first) + ": " + toString(pair.second);
  }
};
template <>
struct StringMaker<std::vector<int>> {
  static String convert(const std::vector<int>& values);
};
template <>
struct StringMaker<std::vector<float>> {
  static String convert(const std::vector<float>& values);
};
template <>
struct StringMaker<std::vector<std::vector<int>>> {
  static String convert(const std::vector<std::vector<int>>& values);
};
template <typename T>
struct StringMaker<std::optional<T>> {
  static String convert(const std::optional<T>& value) { return value ? toString(*value) : "nothing"; }
};
template <>
struct StringMaker<std::nullopt_t> {
  static String convert(std::nullopt_t) { return "nothing"; }
};
template <>
struct StringMaker<staircase::FinishReason> {
  static String convert(staircase::FinishReason reason);
};
template <>
struct StringMaker<staircase::Logprobs> {
  static String convert(const staircase::Logprobs& logprobs);
};
template <>
struct StringMaker<nlohmann::json> {
  static String convert(const nlohmann::json& value);
};

}  // namespace doctest
