// Shared by the tests of the kernels: every device to test, tensors to and from it, and memory that must stay
// unchanged.
#pragma once

#include <doctest/doctest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/bfloat16_attention.h"
#include "kernels/cpu/bfloat16_tile.h"
#include "kernels/device.h"
#include "kernels/half.h"
#include "tests/compare.h"
#include "tests/kernels/naive.h"
#include "tests/test_device.h"

#ifdef STAIRCASE_CUDA_EMULATION
#include "tests/cuda_emulation/emulation.h"
#endif

namespace staircase {

using naive::Sequence;
using Values = std::vector<float>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// Fills memory that no operation may write.
constexpr float kCanary = 12345.5f;
constexpr std::size_t kCanaries = 67;

/// How often the current test case has called on_every_device or on_every_cpu.
inline int calls_of_case = 0;

/// Sets it back where a case begins; the rest is what doctest's interface has besides.
class CaseWatcher : public doctest::IReporter {
 public:
  explicit CaseWatcher(const doctest::ContextOptions& /*unused*/) {}
  void test_case_start(const doctest::TestCaseData& /*unused*/) override { calls_of_case = 0; }

  void report_query(const doctest::QueryData& /*unused*/) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& /*unused*/) override {}
  void test_case_reenter(const doctest::TestCaseData& /*unused*/) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& /*unused*/) override {}
  void test_case_exception(const doctest::TestCaseException& /*unused*/) override {}
  void subcase_start(const doctest::SubcaseSignature& /*unused*/) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& /*unused*/) override {}
  void log_message(const doctest::MessageData& /*unused*/) override {}
  void test_case_skipped(const doctest::TestCaseData& /*unused*/) override {}
};
REGISTER_LISTENER("cases", 1, CaseWatcher);  // in each file; doctest keeps one of a name

/// Of what each shape may be tried with (orders of threads, numbers of them): all the first time in a test
/// case, and one by chance from then on. `tools/test --all` tries all for each shape.
template <typename T>
std::vector<T> sample(const std::vector<T>& all) {
  static const bool whole = std::getenv("STAIRCASE_ALL_STEPS") != nullptr;
  static std::mt19937 generator(1);
  if (calls_of_case++ == 0 || whole) return all;
  return {all[generator() % all.size()]};
}

#ifdef STAIRCASE_CUDA_EMULATION

/// Calls test(device) with the emulated GPU, its threads running in several orders; under sanitizers, which
/// watch accesses that are the same in every order and take three times as long, in one.
template <typename Test>
void on_every_device(const Test& test) {
  using cuda_emulation::Order;
  static const std::unique_ptr<Device> device = make_cuda_device();
#ifdef __SANITIZE_ADDRESS__
  const std::vector<Order> orders = {Order::kRandom};
#else
  const std::vector<Order> orders = sample<Order>({Order::kForward, Order::kReverse, Order::kRandom});
#endif
  for (const Order order : orders) {
    cuda_emulation::settings.order = order;
    INFO(device->description(), ", order ", static_cast<int>(order));
    test(*device);
  }
}

template <typename Test>
void on_every_gpu(const Test& test) {
  on_every_device(test);
}

#else

/// The GPU of this machine, or null; where the tests are for it, that there is none is an error.
inline Device* gpu() {
  static const std::unique_ptr<Device> device = []() -> std::unique_ptr<Device> {
    if (tests_are_for_gpu()) return make_cuda_device();
    try {
      return make_cuda_device();
    } catch (const std::exception&) {
      return nullptr;
    }
  }();
  return device.get();
}

/// Calls test(device) for each SIMD target that was compiled and that this machine has, with 1, 2 and 3
/// threads. Sanitizers and emulated ARM, where a test takes ten times as long, try one number of them for
/// most shapes.
template <typename Test>
void on_every_cpu(const Test& test) {
  struct Restore {
    ~Restore() { choose(0); }
    static void choose(std::int64_t targets) {
      hwy::SetSupportedTargetsForTest(targets);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    }
  } restore;
  Restore::choose(0);
#if defined(__SANITIZE_ADDRESS__) || defined(__aarch64__)
  const std::vector<int> numbers = sample<int>({1, 2, 3});
#else
  const std::vector<int> numbers = {1, 2, 3};
#endif
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    Restore::choose(target);
    for (const int threads : numbers) {
      const std::unique_ptr<Device> device = make_cpu_device(threads);
      INFO(device->description());
      test(*device);
    }
  }
}

/// Calls test(device) for the GPU if there is one.
template <typename Test>
void on_every_gpu(const Test& test) {
  if (gpu() == nullptr) return;
  INFO(gpu()->description());
  test(*gpu());
}

/// Calls test(device) for the GPU if there is one and, unless the tests are for it alone, for every CPU.
template <typename Test>
void on_every_device(const Test& test) {
  if (!tests_are_for_gpu()) on_every_cpu(test);
  on_every_gpu(test);
}

#endif

/// On the CPU the values of a token do not depend, to the bit, on what else is in the batch. On a GPU another
/// number of rows may choose another kernel.
inline bool has_one_kernel(const Device& device) {
  return device.description().starts_with("CPU");
}

inline Shape shape_of(std::size_t rows, std::size_t columns) {
  return {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)};
}

inline std::size_t element_count(const Shape& shape) {
  return static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

/// Uniform in [-scale, scale), from the bits of the generator, so that they are the same everywhere.
inline Values random_values(std::size_t count, std::uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  Values values(count);
  for (float& value : values) value = (static_cast<float>(generator() >> 8) * 0x1p-23f - 1.0f) * scale;
  return values;
}

/// `values` with canaries after them, as a tensor of that shape.
inline Tensor upload(Device& device, const Shape& shape, Values values) {
  values.resize(element_count(shape) + kCanaries, kCanary);
  return device.load({values.data(), DType::kFloat32, 1, static_cast<std::int64_t>(values.size())})
      .reshaped(shape);
}

inline Tensor upload_ints(Device& device, const std::vector<std::int32_t>& values) {
  Tensor tensor = device.allocate(DType::kInt32, {static_cast<std::int64_t>(values.size())});
  device.copy_from_host(values, tensor);
  return tensor;
}

/// The values of a tensor of `upload` or `result_tensor`, after a look at its canaries.
inline Values download(Device& device, const Tensor& tensor) {
  Values values(element_count(tensor.shape()) + kCanaries);
  device.copy_to_host(tensor, values);
  const auto canaries = values.end() - kCanaries;
  CHECK_MESSAGE(std::count(canaries, values.end(), kCanary) == kCanaries,
                "something was written after the tensor");
  values.erase(canaries, values.end());
  return values;
}

inline std::uint16_t half_from_float32(float value, DType dtype) {
  return dtype == DType::kFloat16 ? float16_from_float32(value) : bfloat16_from_float32(value);
}

inline float float32_from_half(std::uint16_t bits, DType dtype) {
  return dtype == DType::kFloat16 ? float32_from_float16(bits) : float32_from_bfloat16(bits);
}

/// As it comes back from `dtype`.
inline float rounded(float value, DType dtype) {
  return dtype == DType::kFloat32 ? value : float32_from_half(half_from_float32(value, dtype), dtype);
}
inline Values rounded(Values values, DType dtype) {
  for (float& value : values) value = rounded(value, dtype);
  return values;
}

/// The largest error of rounding to `dtype`, relative to the number: half the distance to its neighbours.
constexpr double rounding_error(DType dtype) {
  return dtype == DType::kFloat16 ? 0x1p-11 : dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-24;
}

/// What rounding to `dtype` may change about the largest of `values`, and so about any of them.
inline double rounding_of_largest(const naive::Doubles& values, DType dtype) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return rounding_error(dtype) * largest;
}

/// Whether that device may round the weights of values of that type: a GPU does, and a processor that
/// multiplies in bfloat16.
inline bool rounds_weights(const Device& device, DType dtype) {
  if (dtype == DType::kFloat32) return false;
  return !has_one_kernel(device) || (dtype == DType::kBFloat16 && has_bfloat16_tile());
}

/// Whether that processor multiplies keys and values of that type of cache as bfloat16.
inline bool multiplies_halves(const Device& device, DType dtype) {
  return has_one_kernel(device) && device.description().find("AVX3") != std::string::npos &&
         bfloat16::multiplies(dtype);
}

/// `upload` in any dtype.
inline Tensor upload_as(DType dtype, Device& device, const Shape& shape, Values values) {
  if (dtype == DType::kFloat32) return upload(device, shape, std::move(values));
  values.resize(element_count(shape) + kCanaries, kCanary);
  std::vector<std::int32_t> pairs((values.size() + 1) / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = half_from_float32(values[i], dtype);
    std::memcpy(reinterpret_cast<std::byte*>(pairs.data()) + i * sizeof bits, &bits, sizeof bits);
  }
  Tensor tensor = device.allocate(dtype, {static_cast<std::int64_t>(2 * pairs.size())});
  device.copy_from_host(pairs, tensor);
  return tensor.reshaped(shape);
}

/// A tensor for a result: NaN throughout, with canaries after it.
inline Tensor result_tensor(Device& device, const Shape& shape, DType dtype = DType::kFloat32) {
  return upload_as(dtype, device, shape, Values(element_count(shape), kNaN));
}

/// `download` of a tensor of `upload_as`, in float32.
inline Values download_any(Device& device, const Tensor& tensor) {
  if (tensor.dtype() == DType::kFloat32) return download(device, tensor);
  Values values(element_count(tensor.shape()) + kCanaries), pairs((values.size() + 1) / 2);
  device.copy_to_host(tensor, pairs);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, reinterpret_cast<const std::byte*>(pairs.data()) + i * sizeof bits, sizeof bits);
    values[i] = float32_from_half(bits, tensor.dtype());
  }
  const float canary = rounded(kCanary, tensor.dtype());
  const auto canaries = values.end() - kCanaries;
  CHECK_MESSAGE(std::count(canaries, values.end(), canary) == kCanaries,
                "something was written after the tensor");
  values.erase(canaries, values.end());
  return values;
}

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr DType kHalves[] = {DType::kFloat16, DType::kBFloat16};

inline Weight upload_weight(Device& device, const Values& values, std::size_t rows, std::size_t columns,
                            DType dtype = DType::kFloat32, WeightOrder order = WeightOrder::kInputFirst) {
  return device.load_weight(
      {values.data(), DType::kFloat32, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)},
      order, dtype);
}

inline Batch make_batch(Device& device, const std::vector<Sequence>& sequences,
                        std::vector<std::int32_t> tokens = {}) {
  std::vector<std::int32_t> offsets{0}, starts;
  for (const Sequence& sequence : sequences) {
    offsets.push_back(offsets.back() + sequence.count);
    starts.push_back(sequence.start);
  }
  tokens.resize(static_cast<std::size_t>(offsets.back()));
  return {upload_ints(device, tokens), upload_ints(device, offsets), upload_ints(device, starts)};
}

inline std::string to_string(const std::vector<Sequence>& sequences) {
  std::string text = "sequences as start+count:";
  for (const Sequence& s : sequences) text += fmt::format(" {}+{}", s.start, s.count);
  return text;
}

/// Checks that query_key_value moves each part of a product [tokens, 3 · width] to its place. Queries may be
/// off by at most `within`, keys and values in a cache of type `stored_as` by at most `stored`. Positions
/// without a new token must still hold kCanary.
inline void check_query_key_value(Device& device, const std::vector<Sequence>& sequences, const Tensor& x,
                                  const Norm& norm, const Weight& weight, const Tensor& bias,
                                  const naive::Parts& want, std::size_t n_head, DType stored_as,
                                  double within, double stored) {
  const std::size_t width = static_cast<std::size_t>(weight.out_features) / 3;
  const auto heads = static_cast<std::int64_t>(n_head), n = static_cast<std::int64_t>(sequences.size());
  const auto capacity = static_cast<std::int64_t>(want.keys.size() / sequences.size() / width);
  const Shape cache{n, heads, capacity, static_cast<std::int64_t>(width) / heads};
  KeysValues keys_values{upload_as(stored_as, device, cache, Values(want.keys.size(), kCanary)),
                         upload_as(stored_as, device, cache, Values(want.keys.size(), kCanary))};
  Tensor queries = result_tensor(device, shape_of(want.queries.size() / width, width));
  device.query_key_value(make_batch(device, sequences), x, norm, weight, bias, queries, keys_values);
  INFO(to_string(sequences), ", keys and values in ", to_string(stored_as));
  CHECK(difference("queries", download(device, queries), want.queries, width, within) == "");
  CHECK(difference("keys", download_any(device, keys_values.keys), want.keys, width, stored) == "");
  CHECK(difference("values", download_any(device, keys_values.values), want.values, width, stored) == "");
}

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace staircase
