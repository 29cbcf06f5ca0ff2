// Measures which form of a product is fastest on a GPU (kernels/tuning.h), for `tools/gpu-check --tune`.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/model/config.h"
#include "kernels/device.h"
#include "kernels/tuning.h"

namespace staircase::bench {

/// Returns the products of a model's blocks and output layer, for 1, 8, 16 and 32 rows, that have more than
/// one form.
std::vector<cuda::ProductShape> products_to_tune(const ModelConfig& config, DType dtype);

/// Returns the index of the fastest form. Index 0 is the form that a product gets without a table. Another
/// form must take at least 2 % less time, because times vary by about as much between runs.
std::size_t fastest(std::span<const double> seconds);

struct TuneOptions {
  int samples = 7;  ///< per form; the median counts
  /// The total size of the weight copies: more than a cache holds.
  std::size_t weight_bytes = std::size_t{256} << 20;
  int least_products = 16, most_products = 128;  ///< consecutive products per sample
};

/// Returns the seconds that one such product takes on the device with this form, while other products precede
/// and follow it. Each sample walks over copies of the weights, so that no cache holds them.
double seconds_of_form(Device& device, const cuda::ProductShape& product, const cuda::Form& form,
                       const TuneOptions& options);

/// A form and its measured time.
struct TimedForm {
  cuda::Form form;
  double seconds;
};

/// Returns a table with the fastest form of each product. `time` is seconds_of_form, except in tests. After
/// each product, tell(product, times, index of the fastest) is called.
cuda::Tuning tune(
    const std::vector<cuda::ProductShape>& products,
    const std::function<double(const cuda::ProductShape&, const cuda::Form&)>& time,
    const std::function<void(const cuda::ProductShape&, const std::vector<TimedForm>&, std::size_t)>& tell);

/// Measures the products of these published shapes in these types on the GPU, and prints a table of the
/// times. Adds the fastest forms to `file`, which keeps its forms of other products for this card. If `file`
/// is empty, the card's own file is used (common/program/tuning_file.h). Throws Error if no file can be
/// written.
void tune_gpu(const std::vector<std::string>& shapes, const std::vector<DType>& dtypes, std::string file);

}  // namespace staircase::bench
