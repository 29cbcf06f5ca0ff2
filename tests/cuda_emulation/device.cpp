// The emulated GPU's messages when it fails.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"
#include "tests/error_message.h"

namespace staircase {
namespace {

using cuda_emulation::settings;

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

/// Puts the settings back when a test ends.
struct Restore {
  cuda_emulation::Settings before = settings;
  ~Restore() { settings = before; }
};

std::string error_of_starting() {
  return error_of([] { make_cuda_device(); });
}

TEST_CASE("a machine's missing part for using its GPU is reported") {
  const Restore restore;
  settings.driver_version = 0;
  CHECK(error_of_starting() == "this machine has no NVIDIA driver");
  settings.driver_version = 12040;
  CHECK(error_of_starting() ==
        "the NVIDIA driver supports CUDA up to version 12.4, but this program was built with 13.0: install a "
        "newer driver, or build with an older toolkit");
  settings.driver_version = 13010;
  settings.devices = 0;
  CHECK(error_of_starting() == "the NVIDIA driver finds no GPU");
  settings.devices = 1;
  settings.capability = 61;
  CHECK(error_of_starting() ==
        "the GPU emulated GPU has compute capability 6.1, but this program was built for 7.5, 8.0, 9.0: "
        "choose another with the build option gpu_arch");
  settings.capability = 75;
  CHECK(make_cuda_device()->description() == "emulated GPU, 8.59 GB");
}

TEST_CASE("a GPU without bfloat16 refuses weights in it and names those it has") {
  const Restore restore;
  const float value = 1.0f;
  const HostArray matrix{&value, DType::kFloat32, 1, 1};
  const auto load = [&](DType dtype) {
    return error_of([&] { make_cuda_device()->load_weight(matrix, WeightOrder::kInputFirst, dtype); });
  };
  settings.capability = 75;
  CHECK(load(DType::kBFloat16) ==
        "this GPU cannot multiply bfloat16, which needs compute capability 8.0; float16 is as small");
  CHECK(load(DType::kFloat16) == "no error");
  CHECK(load(DType::kInt8) == "no error");
  CHECK(load(DType::kInt4) == "no error");
  settings.capability = 80;
  CHECK(load(DType::kBFloat16) == "no error");
}

TEST_CASE("a GPU without bfloat16 multiplies many rows with weights of few bits in float16") {
  const Restore restore;
  constexpr std::size_t kRows = 33;
  for (const int capability : {75, 80}) {
    settings.capability = capability;
    const std::unique_ptr<Device> device = make_cuda_device();
    for (const DType dtype : {DType::kInt8, DType::kInt4}) {
      const DType operand = device->operand_dtype(kRows, dtype);
      CHECK(operand == (capability == 75 ? DType::kFloat16 : DType::kBFloat16));
      // 1 + 1/512 is exact in float16 and not in bfloat16.
      const std::vector<float> ones(64, 1.0f), x(kRows * 64, 1.0f + 0x1p-9f);
      const Weight weight =
          device->load_weight({ones.data(), DType::kFloat32, 64, 1}, WeightOrder::kInputFirst, dtype);
      const Tensor rows = device->load({x.data(), DType::kFloat32, kRows, 64});
      Tensor out = device->allocate(DType::kFloat32, {kRows, 1});
      device->linear(rows, {}, weight, Tensor(), Epilogue::kStore, out);
      std::vector<float> got(kRows);
      device->copy_to_host(out, got);
      for (const float value : got) CHECK(value == (capability == 75 ? 64.0f + 0.125f : 64.0f));
    }
  }
}

TEST_CASE("what is copied to the GPU may change or end at once, however much it is") {
  const auto device = make_cuda_device();
  // Few numbers, more than the device stages at once, and enough copies to fill its staging memory twice.
  for (const auto& [count, copies] : {std::pair(3, 2), std::pair(600'001, 1), std::pair(70'001, 9)}) {
    std::vector<Tensor> tensors;
    for (int copy = 0; copy < copies; ++copy) {
      std::vector<std::int32_t> source(static_cast<std::size_t>(count));
      for (std::int32_t& number : source) number = static_cast<std::int32_t>(&number - source.data()) + copy;
      tensors.push_back(device->allocate(DType::kInt32, {count}));
      device->copy_from_host(source, tensors.back());
      std::ranges::fill(source, -1);
    }
    for (int copy = 0; copy < copies; ++copy) {
      std::vector<std::int32_t> got(static_cast<std::size_t>(count));
      device->copy_to_host(tensors[static_cast<std::size_t>(copy)], std::as_writable_bytes(std::span(got)));
      int wrong = 0;
      for (int i = 0; i < count; ++i) wrong += got[static_cast<std::size_t>(i)] != i + copy;
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("out of memory names the sizes") {
  const Restore restore;
  const auto device = make_cuda_device();
  settings.memory = 1'500'000'000;
  const Tensor first =
      device->allocate(DType::kFloat16, {1000, 250'000});  // and 35 MB are cuBLAS's and for copies
  CHECK(error_of([&] {
          device->allocate(DType::kFloat32, {1000, 500'000});
        }) == "the GPU has too little memory: 2.00 GB were requested, 965.4 MB of 1.50 GB are free");
}

TEST_CASE("an error that was reported is no error of the next call") {
  const Restore restore;
  const auto device = make_cuda_device();
  const std::vector<float> values(24 * 24, 0.5f);
  const HostArray array{values.data(), DType::kFloat32, 24, 24};
  const Weight weight = device->load_weight(array, WeightOrder::kInputFirst, DType::kFloat16);
  const Tensor x = device->load(array);
  Tensor out = device->allocate(DType::kFloat32, {24, 24});
  settings.memory = 0;
  const auto multiply = [&] { device->linear(x, {}, weight, Tensor(), Epilogue::kGelu, out); };
  const std::function<void()> failing[] = {
      [&] { device->allocate(DType::kFloat32, {24}); },
      [&] {
        Tensor memory;
        device->to_host(x, memory);
      },
      [&] { device->load(array); },
      multiply,
      [&] { device->run(multiply); },
      [] { make_cuda_device(); },
  };
  for (const auto& call : failing) {
    CAPTURE(&call - failing);
    CHECK(error_of(call) != "no error");
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  settings.memory = std::size_t{8} << 30;
  // From the second or third time on it is captured in a graph, where no memory can be had.
  std::string error;
  for (int i = 0; i < 3; ++i) {
    error = error_of([&] {
      device->run([&] {
        multiply();
        if (cuda_emulation::captures > 0) device->allocate(DType::kFloat32, {24});
      });
    });
  }
  CHECK(error ==
        "the GPU failed while memory was allocated: operation not permitted when stream is capturing");
  CHECK(cudaGetLastError() == cudaSuccess);
}

/// Loads a weight and multiplies a few rows and many; what a program does to a GPU from start to end.
void use_gpu(DType dtype) {
  const std::unique_ptr<Device> device = make_cuda_device();
  const std::vector<float> values(24 * 24, 0.5f);
  const Weight weight =
      device->load_weight({values.data(), DType::kFloat32, 24, 24}, WeightOrder::kInputFirst, dtype);
  for (const std::int64_t rows : {1, 20}) {
    const Tensor x = device->load({values.data(), DType::kFloat32, rows, 24}).reshaped({rows, 24});
    Tensor out = device->allocate(DType::kFloat32, {rows, 24});
    device->linear(x, {}, weight, Tensor(), Epilogue::kGelu, out);
    Tensor memory;
    const std::span<const float> result = device->to_host(out, memory);
    CHECK(result[0] == doctest::Approx(6.0f));
  }
}

TEST_CASE("kernels overlap only on a GPU for which they were compiled to wait for each other") {
  const Restore restore;
  const auto overlapping_launches = [](int capability) {
    settings.capability = capability;
    const int before = cuda_emulation::overlapping_launches;
    use_gpu(DType::kFloat16);
    return cuda_emulation::overlapping_launches - before;
  };
  CHECK(overlapping_launches(80) == 0);
  CHECK(overlapping_launches(89) == 0);
  CHECK(overlapping_launches(90) > 0);
  CHECK(overlapping_launches(120) > 0);
}

TEST_CASE("a GPU that is lost at any moment is one sentence, and no memory leaks") {
  const Restore restore;
  const std::size_t before = cuda_emulation::allocations.size();
  for (const DType dtype : {DType::kFloat16, DType::kInt8, DType::kInt4}) {
    int errors = 0;
    for (int calls = 0; calls == 0 || settings.calls_until_lost == 0; ++calls) {
      settings.calls_until_lost = calls;
      const std::string error = error_of([&] { use_gpu(dtype); });
      CAPTURE(calls);
      CHECK(cuda_emulation::allocations.size() == before);
      // Where only destructors meet the lost GPU, all results are there and nothing is wrong.
      if (error == "no error") continue;
      CHECK(begins_with(error, "the GPU failed while "));
      CHECK(std::count(error.begin(), error.end(), '\n') == 0);
      ++errors;
    }
    CHECK(errors > 15);
  }
}

}  // namespace
}  // namespace staircase
