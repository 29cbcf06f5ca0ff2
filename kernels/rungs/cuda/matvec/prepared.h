// A product of the ladder in the GPU's memory, for tests and measurements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/half.h"
#include "kernels/rungs/cuda/matvec/matvec.h"

namespace staircase::rungs::gpu_matvec {

/// A kernel that copies: what a rung comes after, as in a model.
void copy_by_kernel(const float* from, float* to, int count, Stream stream);

class Prepared {
 public:
  /// w [n_out, n_in] and x [n_in] of the host, W in the form that the rung reads. Throws if the GPU fails.
  Prepared(const MatvecRung& rung, int n_in, int n_out, const float* w, const float* x) : rung_(rung) {
    const int stride = divide_up(n_in, kGroup) * kGroup;
    const auto places = static_cast<std::size_t>(stride), rows = static_cast<std::size_t>(n_out);
    std::vector<float> padded(places * rows), padded_x(places);
    for (std::size_t o = 0; o < rows; ++o)
      std::copy_n(w + o * static_cast<std::size_t>(n_in), n_in, padded.data() + o * places);
    std::copy_n(x, n_in, padded_x.data());
    check(cudaStreamCreateWithFlags(&stream_.handle, cudaStreamNonBlocking), "a stream was made");
    given_x_ = on_gpu(padded_x);
    m_.x = on_gpu(std::vector<float>(places));
    m_.y = on_gpu(std::vector<float>(rows + 1, 0.5f));
    m_.rounded_x = on_gpu(std::vector<std::int8_t>(places));
    m_.scales_of_x = on_gpu(std::vector<float>(places / kGroup));
    m_.n_in = n_in;
    m_.n_out = n_out;
    m_.stride = stride;
    if (rung.stored == Stored::kFloat32) {
      m_.w = on_gpu(padded);
    } else if (rung.stored == Stored::kBFloat16) {
      std::vector<std::uint16_t> halves;
      for (const float value : padded) halves.push_back(bfloat16_from_float32(value));
      m_.w = on_gpu(halves);
    } else {
      round_to_bytes(padded);
    }
  }
  Prepared(const Prepared&) = delete;
  ~Prepared() {
    for (void* const memory : allocated_) cudaFree(memory);
    if (stream_.handle != nullptr) cudaStreamDestroy(stream_.handle);
  }

  const Matvec& operands() const { return m_; }
  std::size_t weight_bytes() const {
    const auto weights = static_cast<std::size_t>(m_.stride) * static_cast<std::size_t>(m_.n_out);
    return rung_.stored == Stored::kFloat32    ? weights * 4
           : rung_.stored == Stored::kBFloat16 ? weights * 2
                                               : weights + weights / kGroup * 4;
  }
  Stream stream() const { return stream_; }

  /// Starts the kernel that writes x, and returns when it has ended.
  void write_x() {
    copy_by_kernel(given_x_, const_cast<float*>(m_.x), m_.stride, stream_);
    wait();
  }
  /// Starts the rung, and returns when it has ended.
  void run() {
    rung_.start(m_, stream_);
    wait();
  }
  /// Both, without a wait between them.
  void run_after_kernel() {
    copy_by_kernel(given_x_, const_cast<float*>(m_.x), m_.stride, stream_);
    run();
  }

  /// y [n_out] and the number after it, which is 0.5 if the rung wrote no further.
  std::vector<float> result() const {
    std::vector<float> y(static_cast<std::size_t>(m_.n_out) + 1);
    check(cudaMemcpyAsync(y.data(), m_.y, y.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_),
          "a result was copied");
    wait();
    return y;
  }

 private:
  void wait() const { check(cudaStreamSynchronize(stream_), "a rung ran"); }

  /// The numbers in memory of the GPU, which the destructor frees.
  template <typename T>
  T* on_gpu(const std::vector<T>& values) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, values.size() * sizeof(T)), "memory was allocated");
    allocated_.push_back(memory);
    check(cudaMemcpyAsync(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream_),
          "numbers were copied");
    wait();
    return static_cast<T*>(memory);
  }

  /// The largest of 32 neighbours becomes 127.
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
    m_.w = on_gpu(wholes);
    m_.scales = on_gpu(scales);
  }

  MatvecRung rung_;
  Matvec m_{};
  Stream stream_;
  float* given_x_ = nullptr;
  std::vector<void*> allocated_;
};

}  // namespace staircase::rungs::gpu_matvec
