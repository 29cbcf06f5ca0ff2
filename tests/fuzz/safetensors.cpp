// Any bytes as a safetensors file: an Error, or tensors of which every byte can be read.
#include "common/model/safetensors.h"

#include <cstdint>

#include "common/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace staircase;
  unsigned sum = 0;
  try {
    for (const auto& [name, tensor] : parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz")) {
      for (const std::byte byte : tensor.bytes) sum += std::to_integer<unsigned>(byte);
    }
  } catch (const Error&) {
  }
  [[maybe_unused]] volatile unsigned keep = sum;
  return 0;
}
