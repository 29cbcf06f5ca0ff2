// A matrix-vector rung and its operands in GPU memory, for tests and measurements.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/half.h"
#include "kernels/rungs/cuda/gpu_memory.h"
#include "kernels/rungs/cuda/matvec/matvec.h"

namespace staircase::rungs::gpu_matvec {

class Prepared {
 public:
  /// Copies w [n_out, n_in] and x [n_in] from the host, and stores w in the type that the rung reads. Throws
  /// if the GPU fails.
  Prepared(const MatvecRung& rung, int n_in, int n_out, const float* w, const float* x) : rung_(rung) {
    const int stride = divide_up(n_in, kGroup) * kGroup;
    const auto places = static_cast<std::size_t>(stride), rows = static_cast<std::size_t>(n_out);
    std::vector<float> padded(places * rows), padded_x(places);
    for (std::size_t o = 0; o < rows; ++o)
      std::copy_n(w + o * static_cast<std::size_t>(n_in), n_in, padded.data() + o * places);
    std::copy_n(x, n_in, padded_x.data());
    given_x_ = gpu_.put(padded_x);
    m_.x = gpu_.put(std::vector<float>(places));
    m_.y = gpu_.put(std::vector<float>(rows + 1));
    m_.rounded_x = gpu_.put(std::vector<std::int8_t>(places));
    m_.scales_of_x = gpu_.put(std::vector<float>(places / kGroup));
    m_.n_in = n_in;
    m_.n_out = n_out;
    m_.stride = stride;
    if (rung.stored == Stored::kFloat32) {
      m_.w = gpu_.put(padded);
    } else if (rung.stored == Stored::kBFloat16) {
      std::vector<std::uint16_t> halves;
      for (const float value : padded) halves.push_back(bfloat16_from_float32(value));
      m_.w = gpu_.put(halves);
    } else {
      round_to_bytes(padded);
    }
  }

  const Matvec& operands() const { return m_; }
  /// The bytes of W without scales.
  std::size_t weight_bytes() const {
    const std::size_t bytes = rung_.stored == Stored::kFloat32    ? 4
                              : rung_.stored == Stored::kBFloat16 ? 2
                                                                  : 1;
    return static_cast<std::size_t>(m_.stride) * static_cast<std::size_t>(m_.n_out) * bytes;
  }
  /// Starts the kernel that writes x, and returns when it has ended.
  void write_x() {
    copy_x();
    gpu_.wait();
  }
  /// Starts the rung, and returns when it has ended.
  void run() {
    rung_.start(m_, gpu_.stream());
    gpu_.wait();
  }
  /// Fills y with 0.5, then starts the kernel that writes x and the rung, without a wait between them.
  void run_after_kernel() {
    gpu_.clear(m_.y, static_cast<std::size_t>(m_.n_out));
    copy_x();
    run();
  }

  /// Returns y [n_out] and the number after it in memory, which is still 0.5 if the rung wrote nothing beyond
  /// y.
  std::vector<float> result() const { return gpu_.get(m_.y, static_cast<std::size_t>(m_.n_out) + 1); }

 private:
  void copy_x() { copy_by_kernel(given_x_, const_cast<float*>(m_.x), m_.stride, gpu_.stream()); }

  /// Rounds W to 8 bits: the largest magnitude of 32 neighbours becomes 127.
  void round_to_bytes(const std::vector<float>& padded) {
    std::vector<std::int8_t> wholes;
    std::vector<float> scales;
    for (std::size_t first = 0; first < padded.size(); first += kGroup) {
      float largest = 0.0f;
      for (std::size_t i = first; i < first + kGroup; ++i) largest = std::max(largest, std::abs(padded[i]));
      const float scale = scales.emplace_back(largest / 127.0f);
      for (std::size_t i = first; i < first + kGroup; ++i)
        wholes.push_back(static_cast<std::int8_t>(scale > 0.0f ? std::lrint(padded[i] / scale) : 0));
    }
    m_.w = gpu_.put(wholes);
    m_.scales = gpu_.put(scales);
  }

  MatvecRung rung_;
  Matvec m_{};
  GpuMemory gpu_;
  float* given_x_ = nullptr;
};

}  // namespace staircase::rungs::gpu_matvec
