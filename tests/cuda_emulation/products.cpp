// What cuBLASLt does of a product of many rows, and what kernels of our own do where it cannot.
#include <cublasLt.h>
#include <doctest/doctest.h>

#include "tests/cuda_emulation/counters.h"
#include "tests/kernels/few_bits.h"
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

using cuda_emulation::EpilogueAnswer;

struct Launched {
  int products = 0, kernels = 0;  ///< by cuBLASLt, and of our own

  static Launched so_far() { return {cuda_emulation::products, cuda_emulation::overlapping_launches}; }
  Launched operator-(const Launched& before) const {
    return {products - before.products, kernels - before.kernels};
  }
};

/// A product of more rows than the kernels for a few take. The rows of x and of the result are some of a
/// larger matrix: they begin anywhere.
struct Product {
  static constexpr std::size_t kRows = 12, kIn = 33;
  static constexpr std::int64_t kFirst = 3;

  DType dtype;
  Epilogue epilogue;
  bool with_bias = true;
  std::size_t columns = 17;
  Values x = rounded(random_values(kRows * kIn, 1), dtype), w = random_values(kIn * columns, 2),
         bias = random_values(with_bias ? columns : 0, 3), before = random_values(kRows * columns, 4);

  /// After rows of canaries, which only a result must leave unchanged.
  static Tensor upload_rows(Device& device, DType dtype, std::size_t width, const Values& values) {
    Values all(static_cast<std::size_t>(kFirst) * width, kCanary);
    all.insert(all.end(), values.begin(), values.end());
    return upload_as(dtype, device, shape_of(kFirst + kRows, width), all);
  }

  /// Multiplies on the device, checks the result and returns what was launched.
  Launched check(Device& device) const {
    const bool adds = epilogue == Epilogue::kAdd;
    const Tensor all_x = upload_rows(device, dtype, kIn, x),
                 all_out = upload_rows(device, DType::kFloat32, columns,
                                       adds ? before : Values(before.size(), kNaN));
    const Weight weight = upload_weight(device, w, kIn, columns, dtype);
    const Tensor device_bias = with_bias ? upload(device, shape_of(1, columns), bias) : Tensor();
    Tensor out = all_out.rows(kFirst, kRows);
    const Launched earlier = Launched::so_far();
    device.linear(all_x.rows(kFirst, kRows), {}, weight, device_bias, epilogue, out);
    const Launched launched = Launched::so_far() - earlier;

    naive::Doubles want(static_cast<std::size_t>(kFirst) * columns, static_cast<double>(kCanary));
    const auto rows = naive::linear(x, rounded(w, dtype), bias, kRows, kIn, columns, epilogue, before);
    want.insert(want.end(), rows.begin(), rows.end());
    CAPTURE(static_cast<int>(epilogue));
    CAPTURE(with_bias);
    INFO(to_string(dtype));
    CHECK(difference("out", download(device, all_out), want, columns, 7e-6) == "");  // as in linear.cpp
    return launched;
  }
};

bool is_gelu(Epilogue epilogue) {
  return epilogue == Epilogue::kGelu || epilogue == Epilogue::kGeluErf;
}

template <typename Test>
void for_every_product(const Test& test) {
  for (const DType dtype : kTypes) {
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGelu, Epilogue::kGeluErf, Epilogue::kAdd}) {
      for (const bool with_bias : {false, true}) {
        // Four neighbours of a row are finished together, where rows are a multiple of them.
        for (const std::size_t columns : {17u, 20u}) test(Product{dtype, epilogue, with_bias, columns});
      }
    }
  }
}

TEST_CASE("a product of many rows is one kernel with its bias and residual, and two with GELU") {
  for_every_product([](const Product& product) {
    on_every_device([&](Device& device) {
      const Launched launched = product.check(device);
      CHECK(launched.products == 1);
      CHECK(launched.kernels == (is_gelu(product.epilogue) ? 1 : 0));
    });
  });
}

TEST_CASE("neighbouring results are finished together only where they are aligned") {
  const auto finisher_of = [](std::size_t columns) {
    std::string kernel;
    on_every_device([&](Device& device) {
      cuda_emulation::Counters counters;
      Product{DType::kBFloat16, Epilogue::kGelu, true, columns}.check(device);
      for (const auto& launch : counters.launches()) {
        if (launch.kernel.starts_with("finish")) kernel = launch.kernel;
      }
    });
    return kernel;
  };
  CHECK(finisher_of(20) == "finish_neighbours<StoreRow>");
  CHECK(finisher_of(17) == "finish<StoreRow>");
  CHECK(finisher_of(18) == "finish<StoreRow>");
}

TEST_CASE("a gated product of many rows is one kernel of cuBLASLt and one of our own, and of few rows one") {
  const std::size_t in = 64, out = 2 * 48;
  const Values w = random_values(in * out, 2), bias = random_values(out, 3);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kInt4}) {
    for (const std::size_t rows : {1u, 8u, 9u}) {
      on_every_device([&](Device& device) {
        const DType operand = device.operand_dtype(static_cast<std::int64_t>(rows), dtype);
        const Tensor x = upload_as(operand, device, shape_of(rows, in), random_values(rows * in, 1));
        const Weight weight = upload_weight(device, w, in, out, dtype);
        const Tensor device_bias = upload(device, shape_of(1, out), bias);
        Tensor result = result_tensor(device, shape_of(rows, out / 2), operand);
        const Launched earlier = Launched::so_far();
        device.linear(x, {}, weight, device_bias, Epilogue::kSiluGate, result);
        const Launched launched = Launched::so_far() - earlier;
        CAPTURE(rows);
        INFO(to_string(dtype));
        CHECK(launched.products == (rows > 8 && !is_quantized(dtype) ? 1 : 0));
        CHECK(launched.kernels == 1);
      });
    }
  }
}

TEST_CASE("the parts of a matrix are loaded by one kernel, and by one more where their type changes") {
  const Values values = random_values(40 * 16 * 64, 1);
  const auto part_of = [&](std::size_t i, DType dtype) {
    return HostArray{values.data() + i * 16 * 64, dtype, 16, 64};
  };
  std::vector<HostArray> alike, mixed;
  for (std::size_t i = 0; i < 40; ++i) {
    alike.push_back(part_of(i, DType::kFloat32));
    mixed.push_back(part_of(i, i < 20 ? DType::kFloat32 : DType::kFloat16));
  }
  on_every_device([&](Device& device) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt8, DType::kInt4}) {
      const auto kernels = [&](const std::vector<HostArray>& parts) {
        const Launched earlier = Launched::so_far();
        device.load_weight(parts, WeightOrder::kOutputFirst, dtype);
        return (Launched::so_far() - earlier).kernels;
      };
      INFO(to_string(dtype));
      CHECK(kernels(alike) == 1);
      CHECK(kernels(mixed) == 2);
    }
  });
}

TEST_CASE("weights in few bits are widened by one kernel more") {
  const std::size_t rows = 33, in = 80, out = 17;
  const Values x = random_values(rows * in, 1), w = random_values(in * out, 2), bias = random_values(out, 3);
  for (const DType dtype : {DType::kInt8, DType::kInt4}) {
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGelu, Epilogue::kGeluErf, Epilogue::kAdd}) {
      on_every_device([&](Device& device) {
        const Tensor operand = upload_as(device.operand_dtype(rows, dtype), device, shape_of(rows, in), x);
        const Weight weight = upload_weight(device, w, in, out, dtype);
        const Tensor device_bias = upload(device, shape_of(1, out), bias);
        Tensor result = upload(device, shape_of(rows, out), Values(rows * out));
        const Launched earlier = Launched::so_far();
        device.linear(operand, {}, weight, device_bias, epilogue, result);
        const Launched launched = Launched::so_far() - earlier;
        CHECK(launched.products == 1);
        CHECK(launched.kernels == (is_gelu(epilogue) ? 2 : 1));
      });
    }
  }
}

TEST_CASE("up to 32 rows with weights in few bits are one kernel, and never rounded, whatever their width") {
  for (const DType dtype : {DType::kInt8, DType::kInt4}) {
    for (const std::size_t in : {64u, 192u, 80u, 3u}) {  // the last two have no kernel on tensor cores
      for (const std::size_t rows : {2u, 9u, 17u, 32u}) {
        const std::size_t out = 35;
        const Values x = random_values(rows * in, 1), w = random_values(in * out, 2);
        const auto want = naive::linear(x, turned(rounded(turned(w, out), in, dtype), in), {}, rows, in, out);
        on_every_device([&](Device& device) {
          CHECK(device.operand_dtype(static_cast<std::int64_t>(rows), dtype) == DType::kFloat32);
          Tensor result = result_tensor(device, shape_of(rows, out));
          const Tensor there = upload(device, shape_of(rows, in), x);
          const Weight weight = upload_weight(device, w, in, out, dtype);
          const Launched earlier = Launched::so_far();
          device.linear(there, {}, weight, Tensor(), Epilogue::kStore, result);
          const Launched launched = Launched::so_far() - earlier;
          CAPTURE(rows);
          CAPTURE(in);
          INFO(to_string(dtype));
          CHECK(launched.products == 0);
          CHECK(launched.kernels == 1);
          CHECK(difference("out", download(device, result), want, out, 7e-6) == "");
        });
      }
    }
  }
}

TEST_CASE("if cuBLASLt has no kernel with an epilogue, one of our own finishes its product") {
  struct Restore {
    ~Restore() { cuda_emulation::epilogue_answer = EpilogueAnswer::kAlgorithm; }
  } const restore;
  for (const EpilogueAnswer answer : {EpilogueAnswer::kNoAlgorithm, EpilogueAnswer::kNotSupported}) {
    cuda_emulation::epilogue_answer = answer;
    for_every_product([](const Product& product) {
      const bool has_nothing_to_finish = !product.with_bias && !is_gelu(product.epilogue);
      on_every_device([&](Device& device) {
        const Launched launched = product.check(device);
        CHECK(launched.products == 1);
        CHECK(launched.kernels == (has_nothing_to_finish ? 0 : 1));
      });
    });
  }
}

/// The verdict of the stand-in for cuBLASLt on a product of 4 rows and 4 columns of 32 elements.
struct Asked {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulPreferenceOpaque_t preference;
  alignas(256) float memory[512] = {};

  explicit Asked(cudaDataType_t a_type = CUDA_R_16F, cudaDataType_t b_type = CUDA_R_16F,
                 cudaDataType_t c_type = CUDA_R_32F) {
    cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
    cublasLtMatrixLayoutInit(&a, a_type, 32, 4, 32);
    cublasLtMatrixLayoutInit(&b, b_type, 32, 4, 32);
    cublasLtMatrixLayoutInit(&c, c_type, 4, 4, 4);
    cublasLtMatmulPreferenceInit(&preference);
  }

  /// With A at the start of the memory, B and C after it, and a workspace of that many bytes at the end.
  cublasStatus_t multiply(std::size_t workspace_bytes = 0, std::ptrdiff_t b_place = 64) {
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(nullptr, &operation, &a, &b, &c, &c, &preference, 1, &best, &found);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const float one = 1.0f, zero = 0.0f;
    float* const out = memory + 256;
    return cublasLtMatmul(nullptr, &operation, &one, memory, &a, memory + b_place, &b, &zero, out, &c, out,
                          &c, &best.algo, memory + 384, workspace_bytes, nullptr);
  }
};

TEST_CASE("the stand-in refuses what cuBLASLt would refuse") {
  CHECK(Asked().multiply() == CUBLAS_STATUS_SUCCESS);
  CHECK(Asked(CUDA_R_16F, CUDA_R_16BF).multiply() == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(Asked(CUDA_R_32F, CUDA_R_16F).multiply() == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(Asked(CUDA_R_16F, CUDA_R_16F, CUDA_R_16BF).multiply() == CUBLAS_STATUS_NOT_SUPPORTED);

  Asked shape;
  shape.b.rows = 31;
  CHECK(shape.multiply() == CUBLAS_STATUS_INVALID_VALUE);

  Asked workspace;
  const std::uint64_t bytes = 64;
  cublasLtMatmulPreferenceSetAttribute(&workspace.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &bytes, sizeof bytes);
  CHECK(workspace.multiply(63) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(workspace.multiply(64) == CUBLAS_STATUS_SUCCESS);

  Asked place;
  CHECK(place.multiply(0, 68) == CUBLAS_STATUS_EXECUTION_FAILED);
  const std::uint32_t alignment = 16;
  cublasLtMatmulPreferenceSetAttribute(&place.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                       &alignment, sizeof alignment);
  CHECK(place.multiply(0, 68) == CUBLAS_STATUS_SUCCESS);
  CHECK(cublasLtMatmulPreferenceSetAttribute(&place.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                             &bytes, sizeof bytes) == CUBLAS_STATUS_INVALID_VALUE);

  Asked epilogue;
  const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
  cublasLtMatmulDescSetAttribute(&epilogue.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias);
  CHECK(epilogue.multiply() == CUBLAS_STATUS_INVALID_VALUE);  // without the address of one
}

}  // namespace
}  // namespace staircase
