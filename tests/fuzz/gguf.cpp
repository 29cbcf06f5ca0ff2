// Any bytes as a GGUF file: an Error, or a configuration and tensors of which every number can be read.
#include <cstdint>
#include <string>

#include "common/base/error.h"
#include "common/model/checkpoint.h"
#include "common/model/gguf_config.h"
#include "common/text/gguf_tokenizer.h"

using namespace staircase;

namespace {

template <typename Action>
void try_to(const Action& action) {
  try {
    action();
  } catch (const Error&) {
  }
}

void read_numbers(GgufFile file) {
  Checkpoint checkpoint(std::move(file));
  float sum = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!checkpoint.is_readable(tensor)) continue;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const float value : to_floats(checkpoint.read(tensor, dtype).array)) sum += value;
    }
  }
  [[maybe_unused]] volatile float keep = sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try_to([&] {
    GgufFile file(parse_gguf(std::as_bytes(std::span(data, size)), "fuzz.gguf"), "fuzz.gguf");
    try_to([&] { gguf_config(file); });
    try_to([&] { describe_gguf_tokenizer(file); });
    for (const auto& pair : file.metadata()) {
      const std::string& key = pair.first;
      try_to([&] { file.texts(key); });
      try_to([&] { file.integers(key); });
      try_to([&] { file.numbers(key); });
    }
    read_numbers(std::move(file));
  });
  return 0;
}
