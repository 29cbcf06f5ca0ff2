#include "tests/huge_model.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "tests/idle_device.h"
#include "tests/temporary_folder.h"

namespace staircase {
namespace {

void* mapped(void* place, std::size_t bytes, int flags, int file) {
  void* const memory = mmap(place, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

void* zeros(std::size_t bytes) {
  return mapped(nullptr, bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

class CountingDevice : public IdleDevice {
 public:
  explicit CountingDevice(bool rows_share_memory) : rows_share_memory_(rows_share_memory) {}

  std::string description() const override { return "a device that counts"; }

  /// Zeros, which take memory only when they are written.
  Tensor allocate(DType dtype, const Shape& shape) override {
    const std::size_t bytes = std::max<std::size_t>(bytes_of(dtype, shape), 1);
    const bool shared = rows_share_memory_ && shape[shape.size() - 1] == kHugeVocabulary;
    void* const memory = shared ? row_.map(bytes / kHugeRowBytes) : zeros(bytes);
    const auto release = [shared, bytes](void* m) {
      shared ? SharedRow::unmap(m, bytes / kHugeRowBytes) : void(munmap(m, bytes));
    };
    return {dtype, shape, std::shared_ptr<void>(memory, release)};
  }

  void copy_from_host(std::span<const std::int32_t> source, Tensor& destination) override {
    std::ranges::copy(source, destination.data<std::int32_t>());
  }

  void copy_to_host(const Tensor& source, std::span<std::byte> destination) override {
    std::copy_n(source.data<std::byte>(), destination.size(), destination.begin());
  }

  /// Of all products only the last one is looked at.
  void linear(const Tensor&, const Norm&, const Weight& weight, const Tensor&, Epilogue,
              Tensor& out) override {
    if (weight.out_features != kHugeVocabulary) return;
    float* const logits = out.data<float>();
    if (rows_share_memory_) {
      for (std::int64_t token = 0; token < kHugeVocabulary; ++token)
        logits[token] = -static_cast<float>(token);
      return;
    }
    for (std::int64_t row = 0; row < out.dim(0); ++row) logits[row * kHugeVocabulary + row + 1] = 1.0f;
  }

  void argmax(const Tensor& x, Tensor& out, Batch*) override {
    for (std::int64_t row = 0; row < x.dim(0); ++row) {
      out.data<std::int32_t>()[row] = staircase::argmax({x.data<float>() + row * x.dim(1), kHugeVocabulary});
    }
  }

 private:
  const bool rows_share_memory_;
  const SharedRow row_;
};

/// A model of width 1 whose weights are a hole in a file.
void write_model(const TemporaryFolder& folder) {
  folder.write("config.json", nlohmann::json{{"model_type", "gpt2"},
                                             {"vocab_size", kHugeVocabulary},
                                             {"n_positions", 8},
                                             {"n_embd", 1},
                                             {"n_head", 1},
                                             {"n_layer", 1},
                                             {"eos_token_id", kHugeVocabulary - 1}}
                                  .dump());
  nlohmann::json header;
  std::int64_t bytes = 0;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    const std::int64_t begin = bytes;
    std::int64_t size = 2;
    for (const std::int64_t dim : shape) size *= dim;
    bytes += size;
    header[name] = {{"dtype", "F16"}, {"shape", std::move(shape)}, {"data_offsets", {begin, bytes}}};
  };
  add("wte.weight", {kHugeVocabulary, 1});
  add("wpe.weight", {8, 1});
  for (const char* norm : {"h.0.ln_1", "h.0.ln_2", "ln_f"}) {
    add(norm + std::string(".weight"), {1});
    add(norm + std::string(".bias"), {1});
  }
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    add("h.0." + name + ".weight", {in, out});
    add("h.0." + name + ".bias", {out});
  };
  linear("attn.c_attn", 1, 3);
  linear("attn.c_proj", 1, 1);
  linear("mlp.c_fc", 1, 4);
  linear("mlp.c_proj", 4, 1);
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::string start(sizeof length, '\0');
  std::memcpy(start.data(), &length, sizeof length);
  const auto file = folder.write("model.safetensors", start + text);
  std::filesystem::resize_file(file, start.size() + length + static_cast<std::uint64_t>(bytes));
}

}  // namespace

void* SharedRow::map(std::size_t rows) const {
  if (file_ == nullptr || ftruncate(fileno(file_.get()), kHugeRowBytes) != 0) throw std::bad_alloc();
  const std::size_t bytes = rows * kHugeRowBytes;
  auto* const guard = static_cast<std::byte*>(zeros(2 * bytes));
  if (mprotect(guard, bytes, PROT_NONE) != 0) throw std::bad_alloc();
  for (std::size_t row = 0; row < rows; ++row)
    mapped(guard + bytes + row * kHugeRowBytes, kHugeRowBytes, MAP_SHARED | MAP_FIXED, fileno(file_.get()));
  return guard + bytes;
}

void SharedRow::unmap(void* memory, std::size_t rows) {
  const std::size_t bytes = rows * kHugeRowBytes;
  munmap(static_cast<std::byte*>(memory) - bytes, 2 * bytes);
}

Model huge_model(bool rows_share_memory) {
  const TemporaryFolder folder;
  write_model(folder);
  return Model::load(folder.path(), std::make_shared<CountingDevice>(rows_share_memory));
}

}  // namespace staircase
