// The `products` command compares the device's own matrix product with the library's, for the shapes of one
// model.
#pragma once

#include <nlohmann/json.hpp>

#include "common/model/config.h"

namespace staircase::bench {

struct ProductOptions {
  ModelConfig config;
  int threads = 1;
  int rounds = 5;
  double stream_bytes = 1 << 30;  ///< total size of the weight copies, for products of few rows
};

/// Measures, prints a table, and returns all figures. Throws Error if the library is not built in, or if the
/// two results of a product differ by more than 0.001.
nlohmann::json compare_products(const ProductOptions& options);

}  // namespace staircase::bench
