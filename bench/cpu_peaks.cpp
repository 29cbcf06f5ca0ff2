// Both loops keep a dozen independent sums. A multiply-add takes about four cycles, and at least two can
// start in each cycle, so with fewer sums the loop would measure waiting.
#include "bench/cpu_peaks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/cpu_peaks.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h must precede this: it sets the target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace staircase::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats()));
constexpr int kSums = 12;

HWY_ATTR float sum_of_sums(const hn::Vec<Floats>* sums) {
  auto total = sums[0];
  for (int i = 1; i < kSums; ++i) total = hn::Add(total, sums[i]);
  return hn::GetLane(hn::SumOfLanes(Floats(), total));
}

HWY_ATTR float sum(const float* values, std::int64_t count) {
  const Floats d;
  constexpr std::int64_t kStep = kSums * kLanes;
  hn::Vec<Floats> sums[kSums];
#pragma GCC unroll 16
  for (auto& s : sums) s = hn::Zero(d);
  for (std::int64_t i = 0; i + kStep <= count; i += kStep) {
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) sums[s] = hn::Add(sums[s], hn::LoadU(d, values + i + s * kLanes));
  }
  return sum_of_sums(sums);
}

HWY_ATTR float multiply_add_steps(int steps, float factor, double* operations) {
  const Floats d;
  const auto a = hn::Set(d, factor), b = hn::Set(d, factor);
  hn::Vec<Floats> sums[kSums];
  // Each sum starts from another number, because the compiler would merge equal sums.
#pragma GCC unroll 16
  for (int s = 0; s < kSums; ++s) sums[s] = hn::Set(d, factor * static_cast<float>(s));
  for (int step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) sums[s] = hn::MulAdd(a, b, sums[s]);
  }
  *operations = 2.0 * kLanes * kSums * steps;
  return sum_of_sums(sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase::bench {

HWY_EXPORT(sum);
HWY_EXPORT(multiply_add_steps);

namespace {
// The compiler must not know the factor, or it could compute the sums itself. Nor may it see that the sums
// are never used.
volatile float factor = 1e-3f, sink;
}  // namespace

ReadBandwidth::ReadBandwidth(Device& device, std::size_t bytes, int threads)
    : buffer_(device.allocate(DType::kFloat32, {static_cast<std::int64_t>(bytes / sizeof(float))})),
      threads_(threads) {
  auto* const values = buffer_.data<float>();
  const std::int64_t count = buffer_.size();
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) values[i] = 1.0f;
}

void ReadBandwidth::read() {
  const auto* const values = buffer_.data<float>();
  const std::int64_t count = buffer_.size(), threads = threads_;
  float total = 0.0f;
#pragma omp parallel for num_threads(threads_) schedule(static) reduction(+ : total)
  for (std::int64_t t = 0; t < threads; ++t) {
    const std::int64_t first = count * t / threads, last = count * (t + 1) / threads;
    total += HWY_DYNAMIC_DISPATCH(sum)(values + first, last - first);
  }
  sink = total;
}

double multiply_add(int threads, int steps) {
  double operations = 0.0;
  float total = 0.0f;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : operations, total)
  for (int t = 0; t < threads; ++t) {
    double done = 0.0;
    total += HWY_DYNAMIC_DISPATCH(multiply_add_steps)(steps, factor, &done);
    operations += done;
  }
  sink = total;
  return operations;
}

}  // namespace staircase::bench
#endif  // HWY_ONCE
