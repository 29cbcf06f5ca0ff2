// A ladder is one operation in several forms, from the plain loop to the one that the engine runs. Each rung
// is a complete file with one new idea: compare it with the rung below.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/cpu/thread_team.h"

namespace staircase::rungs {

/// y [rows, n_out] = x [rows, n_in] · W [n_in, n_out]; all three are row-major. The ladder of the
/// matrix-vector product has one row.
struct ProductShape {
  std::int64_t rows, n_in, n_out;
};

/// Multiplies by one W, which the constructor converts to the layout that the rung reads.
class Product {
 public:
  virtual ~Product() = default;
  /// Writes y [rows, n_out] for x [rows, n_in].
  virtual void run(const float* x, float* y) = 0;
  /// The bytes of W in this layout.
  virtual std::int64_t weight_bytes() const = 0;
};

struct Rung {
  std::string_view name;  ///< the name of its file, such as "4-packed-panels"
  std::string_view idea;  ///< the idea in one line
  /// Reads `w` [n_in, n_out] only during this call. `team` must outlive the product; most rungs use only the
  /// caller's thread. Null if `lacks` names a feature.
  std::unique_ptr<Product> (*prepare)(const ProductShape& shape, const float* w, ThreadTeam& team);
  /// The feature that this processor or this build lacks for the rung; empty if none.
  std::string_view lacks = {};
};

template <typename P>
std::unique_ptr<Product> prepare(const ProductShape& shape, const float* w, ThreadTeam& team) {
  return std::make_unique<P>(shape, w, team);
}

template <typename P>
constexpr Rung rung(std::string_view name, std::string_view idea, std::string_view lacks = {}) {
  return {name, idea, lacks.empty() ? prepare<P> : nullptr, lacks};
}

/// The rungs for one token, where memory is the limit: 2 · n_in · n_out operations for n_in · n_out weights.
std::span<const Rung> matvec_ladder();
/// The rungs for a prompt, where arithmetic is the limit, because each weight is used for `rows` rows.
std::span<const Rung> product_ladder();

}  // namespace staircase::rungs
