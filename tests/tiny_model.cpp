#include "tests/tiny_model.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace staircase {
namespace {

/// `value` must be exact in that format.
void append(std::string& data, float value, const std::string& dtype) {
  const auto add = [&](auto number) { data.append(reinterpret_cast<const char*>(&number), sizeof number); };
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (dtype == "F32") {
    add(value);
  } else if (dtype == "BF16") {
    add(static_cast<std::uint16_t>(bits >> 16));
  } else if (dtype == "F16") {
    const std::uint32_t sign = bits >> 31 << 15,
                        exponent = std::isfinite(value) ? (bits >> 23 & 0xff) - 127 + 15 : 31;
    add(static_cast<std::uint16_t>(value == 0.0f ? sign : sign | exponent << 10 | (bits >> 13 & 0x3ff)));
  } else {
    add(static_cast<std::int64_t>(value));
  }
}

}  // namespace

TinyModel::TinyModel(std::uint32_t seed, int tokens, int positions)
    : vocab_size(tokens), n_positions(positions) {
  std::mt19937 generator(seed);
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, float offset = 0.0f) {
    std::int64_t size = 1;
    for (const std::int64_t dim : shape) size *= dim;
    TinyTensor tensor{std::move(shape), std::vector<float>(static_cast<std::size_t>(size))};
    for (float& value : tensor.values) {
      value = offset + (static_cast<float>(generator() % 127) - 63.0f) / 128.0f;
    }
    tensors[name] = std::move(tensor);
  };
  add("wte.weight", {vocab_size, n_embd});
  add("wpe.weight", {n_positions, n_embd});
  for (int l = 0; l < n_layer; ++l) {
    const std::string block = "h." + std::to_string(l) + ".";
    const auto linear = [&](const std::string& name, int in, int out) {
      add(block + name + ".weight", {in, out});
      add(block + name + ".bias", {out});
    };
    const auto norm = [&](const std::string& name) {
      add(block + name + ".weight", {n_embd}, 0.5f);
      add(block + name + ".bias", {n_embd});
    };
    norm("ln_1");
    linear("attn.c_attn", n_embd, 3 * n_embd);
    linear("attn.c_proj", n_embd, n_embd);
    norm("ln_2");
    linear("mlp.c_fc", n_embd, n_inner);
    linear("mlp.c_proj", n_inner, n_embd);
  }
  add("ln_f.weight", {n_embd}, 0.5f);
  add("ln_f.bias", {n_embd});
}

void TinyModel::add_masks() {
  for (int l = 0; l < n_layer; ++l) {
    const std::string block = "h." + std::to_string(l) + ".attn.";
    tensors[block + "bias"] = {{1, 1, n_positions, n_positions},
                               std::vector<float>(static_cast<std::size_t>(n_positions * n_positions), 1.0f)};
    tensors[block + "masked_bias"] = {{}, {-10000.0f}};
  }
}

void TinyModel::write(const std::filesystem::path& folder, const std::string& dtype,
                      const std::string& prefix) const {
  std::ofstream(folder / "config.json")
      << nlohmann::json{{"model_type", "gpt2"},       {"activation_function", "gelu_new"},
                        {"vocab_size", vocab_size},   {"n_positions", n_positions},
                        {"n_embd", n_embd},           {"n_head", n_head},
                        {"n_layer", n_layer},         {"n_inner", n_inner},
                        {"layer_norm_epsilon", 1e-5}, {"eos_token_id", vocab_size - 1}};
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = data.size();
    const std::string& stored = tensor.dtype.empty() ? dtype : tensor.dtype;
    for (const float value : tensor.values) append(data, value, stored);
    header[name.starts_with("lm_head") ? name : prefix + name] = {
        {"dtype", stored}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::ofstream file(folder / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text << data;
}

}  // namespace staircase
