// An attention rung and its operands in GPU memory, for tests and measurements.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/rungs/cuda/attention/attention.h"
#include "kernels/rungs/cuda/gpu_memory.h"

namespace staircase::rungs::gpu_attention {

class Prepared {
 public:
  /// Copies queries [n_head, head_size], and keys and values [n_kv_head, positions, head_size], from the
  /// host. Throws if the GPU fails.
  Prepared(const AttentionRung& rung, int n_kv_head, int head_size, const std::vector<float>& queries,
           const std::vector<float>& keys, const std::vector<float>& values)
      : rung_(rung), size_(static_cast<std::size_t>(head_size)) {
    a_.stride = divide_up(head_size, 32) * 32;
    a_.n_head = static_cast<int>(queries.size()) / head_size;
    a_.n_kv_head = n_kv_head;
    a_.positions = static_cast<int>(keys.size()) / (head_size * n_kv_head);
    a_.scale = 1.0f / std::sqrt(static_cast<float>(head_size));
    given_queries_ = gpu_.put(padded(queries));
    a_.queries = gpu_.put(std::vector<float>(rows_of(queries) * stride()));
    std::vector<float> cache = padded(keys);
    const std::vector<float> padded_values = padded(values);
    cache.insert(cache.end(), padded_values.begin(), padded_values.end());
    cache_bytes_ = cache.size() * sizeof(float);
    a_.keys = gpu_.put(cache);
    a_.values = a_.keys + padded_values.size();
    const auto heads = static_cast<std::size_t>(a_.n_head);
    a_.out = gpu_.put(std::vector<float>(heads * stride() + 1));
    a_.scores = gpu_.put(std::vector<float>(heads * static_cast<std::size_t>(a_.positions)));
    a_.sums = gpu_.put(std::vector<float>(heads * kMostSplits * stride()));
    a_.parts = gpu_.put(std::vector<Part>(heads * kMostSplits));
    a_.done = gpu_.put(std::vector<unsigned>(static_cast<std::size_t>(n_kv_head)));
  }

  const Attention& operands() const { return a_; }
  /// The bytes of keys and values.
  std::size_t cache_bytes() const { return cache_bytes_; }
  /// Starts the kernel that writes the queries, and returns when it has ended.
  void write_x() {
    copy_queries();
    gpu_.wait();
  }
  /// Starts the rung, and returns when it has ended.
  void run() {
    rung_.start(a_, gpu_.stream());
    gpu_.wait();
  }
  /// Fills `out` with 0.5, then starts the kernel that writes the queries and the rung, without a wait
  /// between them.
  void run_after_kernel() {
    gpu_.clear(a_.out, static_cast<std::size_t>(a_.n_head) * stride());
    copy_queries();
    run();
  }

  /// Returns out [n_head, head_size] and the number after it in memory, which is still 0.5 if the rung wrote
  /// nothing beyond `out`.
  std::vector<float> result() const {
    const std::size_t heads = static_cast<std::size_t>(a_.n_head);
    const std::vector<float> all = gpu_.get(a_.out, heads * stride() + 1);
    std::vector<float> values;
    for (std::size_t h = 0; h < heads; ++h) {
      const float* const row = all.data() + h * stride();
      values.insert(values.end(), row, row + size_);
    }
    values.push_back(all.back());
    return values;
  }

 private:
  std::size_t stride() const { return static_cast<std::size_t>(a_.stride); }
  std::size_t rows_of(const std::vector<float>& values) const { return values.size() / size_; }

  std::vector<float> padded(const std::vector<float>& values) const {
    std::vector<float> rows(rows_of(values) * stride());
    for (std::size_t row = 0; row < rows_of(values); ++row)
      std::copy_n(values.data() + row * size_, size_, rows.data() + row * stride());
    return rows;
  }

  void copy_queries() {
    copy_by_kernel(given_queries_, const_cast<float*>(a_.queries), a_.n_head * a_.stride, gpu_.stream());
  }

  AttentionRung rung_;
  std::size_t size_, cache_bytes_ = 0;
  Attention a_{};
  GpuMemory gpu_;
  float* given_queries_ = nullptr;
};

}  // namespace staircase::rungs::gpu_attention
