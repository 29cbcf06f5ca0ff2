#include "bench/gpu_tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "bench/random_model.h"
#include "bench/timing.h"
#include "bench/work.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/message.h"
#include "common/program/tuning_file.h"

namespace staircase::bench {
namespace {

using cuda::Form, cuda::ProductShape, cuda::Tuning;

/// Copies of one product's weights, which share one x and one result.
class Walk {
 public:
  Walk(Device& device, const ProductShape& product, const TuneOptions& options)
      : device_(device), product_(product) {
    const std::int64_t width = product.is_gated ? product.out / 2 : product.out;
    std::mt19937 random(1);
    std::vector<float> values(static_cast<std::size_t>(product.in * product.out));
    for (float& value : values) value = static_cast<float>(random()) * 0x1p-31f - 1.0f;
    const HostArray weights{values.data(), DType::kFloat32, product.out, product.in};
    const HostArray rows{values.data(), DType::kFloat32, 1, product.rows * product.in};
    const std::size_t bytes = matrix_bytes(product.dtype, values.size());
    const std::size_t copies = std::clamp<std::size_t>(options.weight_bytes / bytes, 1, most(options));
    for (std::size_t i = 0; i < copies; ++i)
      weights_.push_back(device.load_weight(weights, WeightOrder::kOutputFirst, product.dtype));
    products_ = std::max<std::size_t>(copies, static_cast<std::size_t>(options.least_products));
    x_ = device.load(rows).reshaped({product.rows, product.in});
    out_ = device.allocate(DType::kFloat32, {product.rows, width});
  }

  /// Returns the seconds per product in a walk over all copies.
  double seconds() {
    const auto work = [&] {
      for (std::size_t i = 0; i < products_; ++i) {
        device_.linear(x_, {}, weights_[i % weights_.size()], {},
                       product_.is_gated ? Epilogue::kSiluGate : Epilogue::kStore, out_);
      }
    };
    return seconds_of([&] {
             device_.run(work, {});
             float last = 0.0f;
             device_.copy_to_host(out_, std::span(&last, 1));  // waits
           }) /
           static_cast<double>(products_);
  }

 private:
  static std::size_t most(const TuneOptions& options) {
    return static_cast<std::size_t>(options.most_products);
  }

  Device& device_;
  ProductShape product_;
  std::vector<Weight> weights_;
  std::size_t products_ = 0;
  Tensor x_, out_;
};

double median_seconds(Device& device, Walk& walk, const ProductShape& product, const Form& form,
                      const TuneOptions& options) {
  device.use(Tuning{{{product, form}}});
  // In the first call memory grows, the second records a graph, and all later calls launch it.
  for (int i = 0; i < 3; ++i) walk.seconds();
  Samples samples;
  for (int i = 0; i < options.samples; ++i) samples.add(walk.seconds());
  return samples.median();
}

std::string described(const ProductShape& product) {
  return fmt::format("{} | {} | {}{} | {}", product.rows, product.in, product.out,
                     product.is_gated ? ", gated" : "", to_string(product.dtype));
}

std::string described(const TimedForm& timed) {
  return fmt::format("{} lanes, {} inputs, {} blocks | {:.2f}", timed.form.lanes, timed.form.inputs,
                     timed.form.blocks, 1e6 * timed.seconds);
}

}  // namespace

std::vector<ProductShape> products_to_tune(const ModelConfig& config, DType dtype) {
  std::vector<Product> products = block_products(config);
  products.push_back({"output layer", config.n_embd, config.vocab_size});
  std::vector<ProductShape> shapes;
  std::set<ProductShape> seen;
  for (const int rows : {1, 8, 16, 32}) {
    for (const Product& product : products) {
      const bool is_gated = product.name == "MLP input" && config.mlp_matrices > 2;
      const ProductShape shape{rows, product.in, product.out, dtype, is_gated};
      if (cuda::forms_of(shape).size() > 1 && seen.insert(shape).second) shapes.push_back(shape);
    }
  }
  return shapes;
}

std::size_t fastest(std::span<const double> seconds) {
  const auto least = std::min_element(seconds.begin(), seconds.end());
  return *least > 0.98 * seconds.front() ? 0 : static_cast<std::size_t>(least - seconds.begin());
}

double seconds_of_form(Device& device, const ProductShape& product, const Form& form,
                       const TuneOptions& options) {
  Walk walk(device, product, options);
  return median_seconds(device, walk, product, form, options);
}

Tuning tune(
    const std::vector<ProductShape>& products,
    const std::function<double(const ProductShape&, const Form&)>& time,
    const std::function<void(const ProductShape&, const std::vector<TimedForm>&, std::size_t)>& tell) {
  Tuning tuning;
  for (const ProductShape& product : products) {
    std::vector<TimedForm> timed;
    std::vector<double> seconds;
    for (const Form& form : cuda::forms_of(product)) {
      seconds.push_back(time(product, form));
      timed.push_back({form, seconds.back()});
    }
    const std::size_t best = fastest(seconds);
    tuning.forms[product] = timed[best].form;
    tell(product, timed, best);
  }
  return tuning;
}

void tune_gpu(const std::vector<std::string>& shapes, const std::vector<DType>& dtypes, std::string file) {
  std::vector<ProductShape> products;
  for (const std::string& shape : shapes) {
    for (const DType dtype : dtypes) {
      for (const ProductShape& product : products_to_tune(published_shape(shape), dtype))
        products.push_back(product);
    }
  }
  const std::unique_ptr<Device> device = make_cuda_device();
  const std::string card = device->card();
  if (file.empty()) file = tuning_file(card).string();
  if (file.empty())
    throw Error(
        "the table needs a folder, but HOME is not set; set HOME, or name a file in STAIRCASE_TUNING");
  Tuning all;
  if (is_there(file)) {
    try {
      all = read_tuning(read_text_file(file), card, file);
    } catch (const Error& error) {
      warn("{}; the file is replaced", error.what());
    }
  }
  fmt::print(
      "| rows | inputs | outputs | weights | without a table | µs | fastest | µs |\n"
      "|---|---|---|---|---|---|---|---|\n");
  const TuneOptions options;
  std::unique_ptr<Walk> walk;  // for the product being measured
  ProductShape walked{};
  const Tuning tuned = tune(
      products,
      [&](const ProductShape& product, const Form& form) {
        if (!walk || walked != product) {
          walk.reset();
          walk = std::make_unique<Walk>(*device, product, options);
          walked = product;
        }
        return median_seconds(*device, *walk, product, form, options);
      },
      [](const ProductShape& product, const std::vector<TimedForm>& timed, std::size_t best) {
        fmt::print("| {} | {} | {} |\n", described(product), described(timed.front()),
                   described(timed[best]));
        std::fflush(stdout);
      });
  for (const auto& [product, form] : tuned.forms) all.forms[product] = form;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), ignored);
  std::ofstream stream(file);
  stream << written(all, card);
  if (!stream.flush()) throw Error("{}: the file cannot be written", file);
  fmt::print("\nThe table of {} is in {}, where programs read it.\n", card, file);
}

}  // namespace staircase::bench
