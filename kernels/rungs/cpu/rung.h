// A ladder is one operation in several forms, from the plain loop to the one that the engine runs. Each rung
// is a file with one new idea, complete in itself: read it beside the rung below.
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

/// The product with one W, which the constructor has brought into the form that the rung reads.
class Product {
 public:
  virtual ~Product() = default;
  /// Writes y [rows, n_out] for x [rows, n_in].
  virtual void run(const float* x, float* y) = 0;
  /// Of W, in that form.
  virtual std::int64_t weight_bytes() const = 0;
};

struct Rung {
  std::string_view name;  ///< "4-packed-panels", like its file
  std::string_view idea;  ///< in one line
  /// `w` [n_in, n_out] is read only here. `team` must outlive the product; most rungs use only the caller's
  /// thread.
  std::unique_ptr<Product> (*prepare)(const ProductShape& shape, const float* w, ThreadTeam& team);
  /// What this processor or this build lacks for the rung; empty if nothing.
  std::string_view lacks = {};
};

template <typename P>
constexpr Rung rung(std::string_view name, std::string_view idea, std::string_view lacks = {}) {
  return {name, idea,
          [](const ProductShape& shape, const float* w, ThreadTeam& team) -> std::unique_ptr<Product> {
            return std::make_unique<P>(shape, w, team);
          },
          lacks};
}

/// One token: memory is the limit. 2 · n_in · n_out operations for that many weights.
std::span<const Rung> matvec_ladder();
/// A prompt: arithmetic is the limit, since each weight is used for `rows` rows.
std::span<const Rung> product_ladder();

}  // namespace staircase::rungs
