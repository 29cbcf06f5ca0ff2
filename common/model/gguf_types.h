// The types of numbers in a GGUF file. A quantized type stores a row in blocks of 32 or 256 numbers, each
// with its own scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace staircase {

struct GgufType {
  std::uint32_t id;        ///< the number in the file
  std::string_view name;   ///< "Q4_1"
  std::int64_t block = 0;  ///< numbers in a block; 0 if only the name of the type is known
  std::int64_t bytes = 0;  ///< bytes of a block
  /// Dequantizes `blocks` blocks, one after another.
  void (*to_floats)(const std::byte* stored, std::int64_t blocks, float* values) = nullptr;

  bool is_quantized() const { return block > 1; }
};

/// The type with this number or name, or nullptr.
const GgufType* find_gguf_type(std::uint32_t id);
const GgufType* find_gguf_type(std::string_view name);

/// The types that can be read, for messages: "F32, F16, Q4_0 ...".
std::string readable_gguf_types();

}  // namespace staircase
