#include "bench/random_model.h"

#include <array>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/base/error.h"

namespace staircase::bench {
namespace {

/// SplitMix64 (Steele et al. 2014): random bits as a function of their place, so that threads can share the
/// work.
std::uint64_t random_bits(std::uint64_t place) {
  std::uint64_t z = (place + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// The sum of four uniform numbers of 16 bits, near enough to a normal distribution of deviation 1 and,
/// without logarithm and cosine, the same on every machine.
float normal(std::uint64_t place) {
  const std::uint64_t bits = random_bits(place);
  std::int64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<std::int64_t>(bits >> (16 * i) & 0xffff);
  constexpr float kDeviationOfSum = 37837.2f;  // 2^16 · sqrt(4 / 12)
  return static_cast<float>(2 * sum - 4 * 0xffff) / (2.0f * kDeviationOfSum);
}

// The deviation that GPT-2 begins its training with (Radford et al. 2019, released code), and a tenth of it.
constexpr float kDeviation = 0.02f, kDamped = 0.002f;

struct Entry {
  std::string name;
  std::vector<std::int64_t> shape;
  float mean = 0.0f;
  float deviation = kDeviation;
};

/// What blocks from `damped_from` on add to the residual stream is damped. The blocks come last, so that a
/// model with fewer of them is equal in all the rest.
std::vector<Entry> entries(const Gpt2Config& config, int damped_from) {
  const std::int64_t n_embd = config.n_embd, n_inner = config.n_inner;
  std::vector<Entry> list{{"wte.weight", {config.vocab_size, n_embd}},
                          {"wpe.weight", {config.n_positions, n_embd}}};
  const auto layer_norm = [&](const std::string& name) {
    list.push_back({name + ".weight", {n_embd}, 1.0f});
    list.push_back({name + ".bias", {n_embd}});
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out,
                          float deviation = kDeviation) {
    list.push_back({name + ".weight", {in, out}, 0.0f, deviation});
    list.push_back({name + ".bias", {out}, 0.0f, deviation});
  };
  layer_norm("ln_f");
  for (int l = 0; l < config.n_layer; ++l) {
    const std::string block = fmt::format("h.{}.", l);
    const float added = l < damped_from ? kDeviation : kDamped;
    layer_norm(block + "ln_1");
    linear(block + "attn.c_attn", n_embd, 3 * n_embd);
    linear(block + "attn.c_proj", n_embd, n_embd, added);
    layer_norm(block + "ln_2");
    linear(block + "mlp.c_fc", n_embd, n_inner);
    linear(block + "mlp.c_proj", n_inner, n_embd, added);
  }
  return list;
}

std::int64_t size(const Entry& entry) {
  return std::accumulate(entry.shape.begin(), entry.shape.end(), std::int64_t{1}, std::multiplies<>());
}

void write_config(const Gpt2Config& config, const std::filesystem::path& file) {
  const nlohmann::json json{{"model_type", "gpt2"},
                            {"architectures", {"GPT2LMHeadModel"}},
                            {"activation_function", "gelu_new"},
                            {"vocab_size", config.vocab_size},
                            {"n_positions", config.n_positions},
                            {"n_ctx", config.n_positions},
                            {"n_embd", config.n_embd},
                            {"n_layer", config.n_layer},
                            {"n_head", config.n_head},
                            {"n_inner", nullptr},
                            {"layer_norm_epsilon", 1e-5},
                            {"bos_token_id", config.eos_token_id},
                            {"eos_token_id", config.eos_token_id},
                            {"dtype", "float32"},
                            {"tie_word_embeddings", true}};
  std::ofstream stream(file);
  stream << json.dump(2) << '\n';
  if (!stream.flush()) throw Error("{} cannot be written", file.string());
}

void write_weights(const std::vector<Entry>& list, const std::filesystem::path& file) {
  nlohmann::json header{{"__metadata__", {{"format", "pt"}}}};
  std::int64_t offset = 0;
  for (const Entry& entry : list) {
    const std::int64_t end = offset + size(entry) * static_cast<std::int64_t>(sizeof(float));
    header[entry.name] = {{"dtype", "F32"}, {"shape", entry.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the format asks for the tensors to begin at a multiple of 8
  const std::uint64_t length = text.size();

  std::ofstream stream(file, std::ios::binary);
  stream.write(reinterpret_cast<const char*>(&length), sizeof length);
  stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::vector<float> values;
  std::uint64_t place = 0;  // in the stream of random numbers; where it starts is the seed
  for (const Entry& entry : list) {
    values.resize(static_cast<std::size_t>(size(entry)));
#pragma omp parallel for
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = entry.mean + entry.deviation * normal(place + i);
    place += values.size();
    stream.write(reinterpret_cast<const char*>(values.data()),
                 static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  if (!stream.flush()) throw Error("{} cannot be written: is the disk full?", file.string());
}

void write_model(const Gpt2Config& config, int damped_from, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  // Under another name until it is whole: a run that is interrupted leaves nothing that looks like a model.
  const std::filesystem::path part = folder / "model.safetensors.part";
  write_weights(entries(config, damped_from), part);
  write_config(config, folder / "config.json");
  std::filesystem::rename(part, folder / "model.safetensors");
}

}  // namespace

Gpt2Config published_shape(const std::string& name) {
  struct Shape {
    const char* name;
    int n_layer, n_embd, n_head;
  };
  constexpr std::array<Shape, 4> kShapes{
      {{"124m", 12, 768, 12}, {"355m", 24, 1024, 16}, {"774m", 36, 1280, 20}, {"1558m", 48, 1600, 25}}};
  for (const Shape& shape : kShapes) {
    if (name == shape.name) {
      return {.vocab_size = 50257,
              .n_positions = 1024,
              .n_embd = shape.n_embd,
              .n_layer = shape.n_layer,
              .n_head = shape.n_head,
              .n_inner = 4 * shape.n_embd,
              .eos_token_id = 50256};
    }
  }
  throw UsageError("--shape {}: the shapes are 124m, 355m, 774m and 1558m", name);
}

void write_random_model(const Gpt2Config& config, const std::filesystem::path& folder) {
  write_model(config, config.n_layer, folder);
}

void write_random_pair(const Gpt2Config& config, const std::filesystem::path& target,
                       const std::filesystem::path& draft) {
  write_model(config, 1, target);
  Gpt2Config one_block = config;
  one_block.n_layer = 1;
  write_model(one_block, 1, draft);
}

}  // namespace staircase::bench
