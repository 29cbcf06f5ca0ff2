// The instructions of tensor_cores.cuh, from matrices to registers and back, and what a GPU without them
// does.
#include "kernels/cuda/tensor_cores.cuh"

#include "tests/cuda_emulation/kernels.h"
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

using cuda_emulation::settings;

/// d [16, 8] = a [16, 16] b [16, 8], both from shared memory, where b is stored row by row or column by
/// column.
template <typename T, bool kByRows>
__global__ void multiply(const T* a, const T* b, float* d) {
  T* const shared = reinterpret_cast<T*>(dynamic_shared_memory);
  const unsigned lane = threadIdx.x, matrix = lane / 8, row = lane % 8;
  for (unsigned i = lane; i < 16 * 16; i += 32) shared[i] = a[i];
  for (unsigned i = lane; i < 16 * 8; i += 32) shared[256 + i] = b[i];
  __syncthreads();
  unsigned left[4], right[4];
  // As the PTX ISA orders the registers of a: the rows from 8 on come before the columns from 8 on.
  ldmatrix_x4<false>(left, shared + (matrix % 2 * 8 + row) * 16 + matrix / 2 * 8);
  // Of b two matrices are enough; the other two lanes repeat them.
  const T* const from = shared + 256 + (kByRows ? (matrix % 2 * 8 + row) * 8 : row * 16 + matrix % 2 * 8);
  ldmatrix_x4<kByRows>(right, from);
  float sums[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  mma_m16n8k16<T>(sums, left, right[0], right[1]);
  for (unsigned i = 0; i < 4; ++i) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

template <typename T>
std::vector<T> narrowed(const Values& values) {
  std::vector<T> result;
  for (const float value : values) result.push_back(cuda::narrow<T>(value));
  return result;
}

template <typename T, bool kByRows>
void check_product() {
  const Values a = random_values(16 * 16, 1), b = random_values(16 * 8, 2);
  Values turned(16 * 8), got(16 * 8, kNaN);
  for (std::size_t k = 0; k < 16; ++k) {
    for (std::size_t n = 0; n < 8; ++n) turned[n * 16 + k] = b[k * 8 + n];
  }
  const std::vector<T> left = narrowed<T>(a), right = narrowed<T>(kByRows ? b : turned);
  CHECK(fault_of(multiply<T, kByRows>, 1, 32, (256 + 128) * sizeof(T), left.data(), right.data(),
                 got.data()) == "");
  const DType dtype = std::is_same_v<T, __half> ? DType::kFloat16 : DType::kBFloat16;
  const Values ones(8, 1.0f);
  const auto want = naive::linear(rounded(a, dtype), rounded(b, dtype), ones, 16, 16, 8);
  CHECK(difference("d", got, want, 8, 1e-5) == "");
}

TEST_CASE("ldmatrix and mma compute the product of two matrices") {
  in_every_order([] {
    check_product<__half, true>();
    check_product<__half, false>();
    check_product<__nv_bfloat16, true>();
    check_product<__nv_bfloat16, false>();
  });
}

__global__ void multiply_without_one_lane() {
  float sums[4] = {};
  const unsigned left[4] = {};
  if (threadIdx.x != 7) mma_m16n8k16<__half>(sums, left, 0, 0);
}

TEST_CASE("a lane that skips a product is a fault") {
  in_every_order([] {
    const std::string fault = fault_of(multiply_without_one_lane, 1, 32, 0);
    CHECK_MESSAGE((contains(fault, "lane 7, which has left the kernel") || contains(fault, "never arrive")),
                  fault);
  });
}

/// out [3, 8]: what is in shared memory when a copy has begun, when all but the newest group of copies has
/// been waited for, and at the end.
__global__ void copy_in_two_groups(const float* from, float* out) {
  float* const shared = reinterpret_cast<float*>(dynamic_shared_memory);
  for (int i = 0; i < 8; ++i) shared[i] = 5.0f;
  cp_async_16(shared, from);
  cp_async_commit_group();
  cp_async_16(shared + 4, from + 4);
  cp_async_commit_group();
  const auto note = [&](float* to) {
    for (int i = 0; i < 8; ++i) to[i] = shared[i];
  };
  note(out);
  cp_async_wait_group<1>();
  note(out + 8);
  cp_async_wait_group<0>();
  note(out + 16);
}

TEST_CASE("an asynchronous copy is there when its group has been waited for, and not before") {
  struct alignas(16) From {
    float values[8] = {1.0f, 2.0f, 3.0f, 4.0f, 6.0f, 7.0f, 8.0f, 9.0f};
  } from;
  Values out(24);
  CHECK(fault_of(copy_in_two_groups, 1, 1, 32, from.values, out.data()) == "");
  for (std::size_t i = 0; i < 8; ++i) CHECK(std::isnan(out[i]));
  CHECK(Values(out.begin() + 8, out.begin() + 12) == Values{1.0f, 2.0f, 3.0f, 4.0f});
  for (std::size_t i = 12; i < 16; ++i) CHECK(std::isnan(out[i]));
  CHECK(Values(out.begin() + 16, out.end()) == Values(from.values, from.values + 8));
}

TEST_CASE("a GPU whose tensor cores are too old multiplies 16-bit keys in float32") {
  const int before = settings.capability;
  settings.capability = 75;
  const std::unique_ptr<Device> device = make_cuda_device();
  settings.capability = before;
  const std::size_t n_tokens = 33, n_head = 2, head_size = 16, width = n_head * head_size;
  const Shape cache{1, 2, 33, 16}, rows = shape_of(n_tokens, width);
  const Values queries = random_values(n_tokens * width, 1),
               keys = rounded(random_values(n_tokens * width, 2), DType::kFloat16),
               values = rounded(random_values(n_tokens * width, 3), DType::kFloat16);
  Tensor out = result_tensor(*device, rows);
  device->attention(
      make_batch(*device, {{0, 33}}), upload(*device, rows, queries),
      {upload_as(DType::kFloat16, *device, cache, keys), upload_as(DType::kFloat16, *device, cache, values)},
      out);
  const auto want = naive::attention({{0, 33}}, queries, keys, values, n_tokens, width, n_head);
  CHECK(difference("out", download(*device, out), want, width, 1e-6) == "");
}

}  // namespace
}  // namespace staircase
