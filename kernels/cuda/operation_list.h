// A list of operations and their tensors. Equal lists mean the same launches with the same arguments.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/device.h"

namespace staircase::cuda {

/// Records each tensor's address, type and shape, but not its values. Everything is recorded as numbers.
class OperationList {
 public:
  /// The GPU is idle while the list is built, so memory for `expected` numbers is reserved first.
  explicit OperationList(std::size_t expected = 0) { numbers_.reserve(expected); }

  void add(const Tensor& tensor) {
    add(reinterpret_cast<std::uintptr_t>(tensor.data<void>()));
    add(tensor.dtype());
    add(tensor.shape().size());
    for (const std::int64_t dim : tensor.shape()) add(dim);
  }
  void add(const Weight& weight) {
    add(weight.packed);
    add(weight.in_features);
    add(weight.out_features);
  }
  void add(const LowRank& change) {
    add(change.down);
    add(change.up);
    add(change.scales);
    add(change.columns);
    add(change.firsts);
  }
  void add(const Norm& norm) {
    add(norm.kind);
    add(norm.weight);
    add(norm.bias);
    add(norm.epsilon);
  }
  void add(const HeadRule& rule) {
    add(rule.query_norm);
    add(rule.key_norm);
    add(rule.rotations);
    add(rule.heads_together);
  }
  void add(const Batch& batch) {
    add(batch.tokens);
    add(batch.offsets);
    add(batch.starts);
  }
  void add(const KeysValues& keys_values) {
    add(keys_values.keys);
    add(keys_values.values);
    add(keys_values.blocks);
    add(keys_values.window);
  }
  void add(float number) { add(std::bit_cast<std::uint32_t>(number)); }
  template <typename Number>
  requires std::is_integral_v<Number> || std::is_enum_v<Number>
  void add(Number number) { numbers_.push_back(static_cast<std::uint64_t>(number)); }

  auto operator<=>(const OperationList&) const = default;

 private:
  std::vector<std::uint64_t> numbers_;
};

}  // namespace staircase::cuda
