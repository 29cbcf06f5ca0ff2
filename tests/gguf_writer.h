// Writes GGUF files for tests: well-formed ones, and with any field replaced.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace staircase {

/// The bytes of a number.
template <typename Number>
std::string raw(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

/// A string as GGUF stores it.
inline std::string gguf_text(const std::string& text) {
  return raw<std::uint64_t>(text.size()) + text;
}

struct GgufWriter {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t more_tensors = 0, more_pairs = 0;  // than there are
  std::uint64_t alignment = 32;                    // of the data; the key is not written

  /// A pair of metadata: the number of its type, and its bytes.
  GgufWriter& pair(const std::string& key, std::uint32_t type, const std::string& value) {
    pairs_ += gguf_text(key) + raw(type) + value;
    ++n_pairs_;
    return *this;
  }
  GgufWriter& number(const std::string& key, std::uint32_t value) { return pair(key, 4, raw(value)); }
  GgufWriter& real(const std::string& key, float value) { return pair(key, 6, raw(value)); }
  GgufWriter& truth(const std::string& key, bool value) { return pair(key, 7, raw(value)); }
  GgufWriter& text(const std::string& key, const std::string& value) {
    return pair(key, 8, gguf_text(value));
  }
  GgufWriter& texts(const std::string& key, const std::vector<std::string>& values) {
    std::string list = raw<std::uint32_t>(8) + raw<std::uint64_t>(values.size());
    for (const std::string& value : values) list += gguf_text(value);
    return pair(key, 9, list);
  }
  template <typename Number>
  GgufWriter& numbers(const std::string& key, std::uint32_t type, const std::vector<Number>& values) {
    std::string list = raw(type) + raw<std::uint64_t>(values.size());
    for (const Number value : values) list += raw(value);
    return pair(key, 9, list);
  }

  /// A tensor with the innermost dimension first, as the file has it.
  GgufWriter& tensor(const std::string& name, const std::vector<std::uint64_t>& dimensions,
                     std::uint32_t type, const std::string& data) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    tensor_at(name, dimensions, type, data_.size());
    data_ += data;
    return *this;
  }
  GgufWriter& tensor_at(const std::string& name, const std::vector<std::uint64_t>& dimensions,
                        std::uint32_t type, std::uint64_t offset) {
    entries_ += gguf_text(name) + raw(static_cast<std::uint32_t>(dimensions.size()));
    for (const std::uint64_t dimension : dimensions) entries_ += raw(dimension);
    entries_ += raw(type) + raw(offset);
    ++n_tensors_;
    return *this;
  }

  /// A vector or matrix of float32.
  GgufWriter& floats(const std::string& name, const std::vector<std::uint64_t>& dimensions,
                     const std::vector<float>& values) {
    return tensor(name, dimensions, 0,
                  {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }

  std::string bytes() const {
    std::string file = magic + raw(version) + raw(n_tensors_ + more_tensors) + raw(n_pairs_ + more_pairs) +
                       pairs_ + entries_;
    if (n_tensors_ > 0 && alignment > 0) file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data_;
  }

 private:
  std::string pairs_, entries_, data_;
  std::uint64_t n_tensors_ = 0, n_pairs_ = 0;
};

}  // namespace staircase
