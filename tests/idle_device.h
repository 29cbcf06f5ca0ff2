// A device whose operations do nothing, for tests of what surrounds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device.h"

namespace staircase {

/// A subclass allocates, copies, and overrides the operations that it looks at. Its memory is the host's. A
/// vector or a matrix that is loaded has room, and not the values; a matrix has its sizes.
class IdleDevice : public Device {
 public:
  std::span<const float> to_host(const Tensor& source, Tensor&) override {
    return {source.data<float>(), static_cast<std::size_t>(source.size())};
  }
  Tensor load(const HostArray& array) override { return allocate(DType::kFloat32, {array.columns}); }
  using Device::load_weight;
  Weight load_weight(std::span<const HostArray> parts, WeightOrder order, DType) override {
    const HostArray& matrix = parts[0];
    const bool input_first = order == WeightOrder::kInputFirst;
    return {allocate(DType::kFloat32, {1}), input_first ? matrix.rows : matrix.columns,
            input_first ? matrix.columns : matrix.rows};
  }

  void embedding(const Batch&, const Weight&, const Tensor&, Tensor&) override {}
  void normalize(const Tensor&, const Norm&, Tensor&) override {}
  void add_normalized(const Tensor&, const Norm&, Tensor&) override {}
  void linear(const Tensor&, const Norm&, const Weight&, const Tensor&, Epilogue, Tensor&) override {}
  void add_low_rank(const Tensor&, const Tensor&, const LowRank&, Tensor&) override {}
  void activate(const Tensor&, Epilogue, Tensor&) override {}
  void query_key_value(const Batch&, const Tensor&, const Norm&, const Weight&, const Tensor&, Tensor&,
                       KeysValues&) override {}
  void split_heads(const Batch&, const Tensor&, const HeadRule&, Tensor&, KeysValues&) override {}
  void attention(const Batch&, const Tensor&, const KeysValues&, Tensor&) override {}
  void gather_rows(const Tensor&, const Tensor&, Tensor&) override {}
  void choose_experts(const Tensor&, RouterSoftmax, Tensor&, Tensor&) override {}
  void combine_rows(const Tensor&, const Tensor&, const Tensor&, Epilogue, Tensor&) override {}
  using Device::argmax;
  void argmax(const Tensor&, Tensor&, Batch*) override {}
  void k_largest(const Tensor&, std::int64_t, Tensor&) override {}

 private:
  void do_copy_positions(const Tensor&, std::int64_t, std::int64_t, Tensor&, std::int64_t) override {}
};

}  // namespace staircase
