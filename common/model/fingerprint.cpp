#include "common/model/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/file.h"
#include "common/base/xxh64.h"

namespace staircase {
namespace {

/// A hash that texts are added to, one after another.
class Hash {
 public:
  void add(std::span<const std::byte> bytes) { value_ = xxh64(bytes, value_); }
  void add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }

  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

/// The small files that decide which tokens a text becomes and how a model runs.
constexpr const char* kFiles[] = {
    "config.json",        "generation_config.json", "tokenizer.json",    "vocab.json",
    "merges.txt",         "tokenizer_config.json",  "added_tokens.json", "special_tokens_map.json",
    "chat_template.jinja"};

void add_metadata(const std::filesystem::path& model, Hash& hash) {
  const GgufFile file(model);
  for (const auto& [key, value] : file.metadata()) {
    hash.add(key);
    if (const auto* list = std::get_if<GgufArray>(&value)) {
      hash.add(list->bytes);
    } else {
      hash.add(shown(value));
    }
  }
}

void add_files(const std::filesystem::path& folder, Hash& hash) {
  std::error_code ignored;
  for (const char* name : kFiles) {
    const std::filesystem::path file = folder / name;
    if (!std::filesystem::is_regular_file(file, ignored)) continue;
    hash.add(name);
    hash.add(read_file(file));
  }
}

}  // namespace

std::uint64_t fingerprint(const std::filesystem::path& model, const Checkpoint& checkpoint, DType dtype,
                          std::size_t places) {
  Hash hash;
  hash.add(to_string(dtype));
  if (is_gguf(model)) {
    add_metadata(model, hash);
  } else {
    add_files(model, hash);
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    hash.add(fmt::format("{} {} {}", name, tensor.dtype, to_string(tensor.shape)));
    const std::size_t count = std::min<std::size_t>(tensor.bytes.size(), 64);
    const std::size_t gap = (tensor.bytes.size() - count) / (places - 1);
    for (std::size_t i = 0; i + 1 < places; ++i) hash.add(tensor.bytes.subspan(gap * i, count));
    hash.add(tensor.bytes.last(count));
  }
  return hash.value();
}

}  // namespace staircase
