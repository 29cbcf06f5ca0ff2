// Which form of a product is the fastest on a GPU (kernels/tuning.h): the measurement of `tools/gpu-check
// --tune`.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/model/config.h"
#include "kernels/device.h"
#include "kernels/tuning.h"

namespace staircase::bench {

/// The products of a model for 1, 8, 16 and 32 rows that have more than one form: those of a block, and the
/// output layer.
std::vector<cuda::ProductShape> products_to_tune(const ModelConfig& config, DType dtype);

/// The number of the fastest, of which the first is what a product gets without a table. Another one must
/// take at least 2 % less time, since times differ by about as much from one run to the next.
std::size_t fastest(std::span<const double> seconds);

struct TuneOptions {
  int samples = 7;                                    ///< of a form; the median counts
  std::size_t weight_bytes = std::size_t{256} << 20;  ///< in different matrices: more than a cache holds
  int least_products = 16, most_products = 128;       ///< that follow one another in a sample
};

/// Seconds that one of these products takes on the device with that form, while others precede and follow it.
/// Each sample walks over copies of the weights, so that no cache holds them.
double seconds_of_form(Device& device, const cuda::ProductShape& product, const cuda::Form& form,
                       const TuneOptions& options);

/// A form that was measured.
struct TimedForm {
  cuda::Form form;
  double seconds;
};

/// A table with the fastest form of each product. `time` is seconds_of_form in all but tests; tell(product,
/// times, number of the fastest) follows each product.
cuda::Tuning tune(
    const std::vector<cuda::ProductShape>& products,
    const std::function<double(const cuda::ProductShape&, const cuda::Form&)>& time,
    const std::function<void(const cuda::ProductShape&, const std::vector<TimedForm>&, std::size_t)>& tell);

/// Measures the products of these published shapes in these types on the GPU, and prints a table of the
/// times. The fastest forms go into `file`, beside those of other products that it has for this card. An
/// empty `file` is that of the card (common/program/tuning_file.h). Throws Error if there is nowhere to
/// write.
void tune_gpu(const std::vector<std::string>& shapes, const std::vector<DType>& dtypes, std::string file);

}  // namespace staircase::bench
