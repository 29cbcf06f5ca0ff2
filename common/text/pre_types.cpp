#include "common/text/pre_types.h"

#include <algorithm>
#include <initializer_list>

#include "common/text/pre_tokenizer.h"

namespace staircase {

namespace {

// The patterns are from the models' own files, their names from
// https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp.
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

std::optional<PreType> pre_tokenizer_of(std::string_view name) {
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const Cut digit{R"(\p{N})"}, digits{R"(\p{N}+)"}, punctuation{R"([\p{P}\$\+<=>\^~\|]+)"},
      three{"[0-9][0-9][0-9]"};
  if (is({"gpt-2", "phi-2", "jais"})) return PreType{.cuts = {gpt2_cut()}};
  if (is({"mpt", "olmo"})) return PreType{.cuts = {gpt2_cut()}, .nfc = true};
  if (is({"smollm", "starcoder", "refact", "command-r"})) return PreType{.cuts = {digit, gpt2_cut()}};
  if (is({"qwen2", "deepseek-r1-qwen"})) return PreType{.cuts = {{kQwen2}}, .nfc = true};
  if (is({"llama-bpe", "llama3", "llama-v3"})) {
    return PreType{.cuts = {{kLlama3}}, .ignore_merges = true, .adds_begin = true};
  }
  if (name == "default") return PreType{.cuts = {punctuation, gpt2_cut(), digits, three}};
  return {};
}

}  // namespace staircase
