#include "bench/products.h"

#include <cmath>
#include <random>

#include "bench/library_product.h"
#include "bench/machine.h"
#include "bench/timing.h"
#include "bench/work.h"
#include "common/base/error.h"
#include "kernels/device.h"

namespace staircase::bench {
namespace {

using nlohmann::json;

constexpr double kShortest = 0.01;
constexpr int kRows[] = {512, 64, 16, 6, 4, 1};

/// Up to this number of rows, reading the weights from memory takes longer than multiplying. So for these
/// rows the copies that do not fit into the cache matter more than the one copy that fits.
constexpr int kFewRows = 16;

struct Figures {
  double ours = 0.0, library = 0.0;  // seconds per product
};

void check_agreement(const float* ours, const float* library, std::int64_t count, const Product& shape,
                     int rows) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (!(std::abs(ours[i] - library[i]) <= 1e-3f)) {
      throw Error("{} with {} rows: element {} is {} by the device and {} by the library", shape.name, rows,
                  i, ours[i], library[i]);
    }
  }
}

/// Measures one shape with one number of rows. The products cycle through `copies` copies of the weights; a
/// single copy stays in the cache.
Figures compare(Device& device, const Product& shape, int rows, const std::vector<float>& weights, int copies,
                int rounds) {
  const HostArray stored{weights.data(), DType::kFloat32, shape.in, shape.out};
  std::vector<Weight> own;
  for (int i = 0; i < copies; ++i) {
    own.push_back(device.load_weight(stored, WeightOrder::kInputFirst, DType::kFloat32));
  }
  LibraryProduct library(device, rows, shape.in, shape.out, weights.data(), copies);

  const Tensor x = device.allocate(DType::kFloat32, {rows, shape.in});
  Tensor y = device.allocate(DType::kFloat32, {rows, shape.out});
  std::mt19937 random(2);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    x.data<float>()[i] = static_cast<float>(random()) * 0x1p-32f - 0.5f;
  }
  library.set_x(x.data<float>());

  const auto all_copies = [&](const auto& product) {
    for (int i = 0; i < copies; ++i) product(i);
  };
  Task ours{[&] {
              return seconds_per_call(kShortest, [&] {
                all_copies([&](int i) {
                  device.linear(x, {}, own[static_cast<std::size_t>(i)], Tensor(), Epilogue::kStore, y);
                });
              });
            },
            {}};
  Task theirs{
      [&] { return seconds_per_call(kShortest, [&] { all_copies([&](int i) { library.run(i); }); }); }, {}};
  measure_in_rounds({&ours, &theirs}, rounds);
  check_agreement(y.data<float>(), library.y(), y.size(), shape, rows);
  return {ours.seconds.median() / copies, theirs.seconds.median() / copies};
}

}  // namespace

json compare_products(const ProductOptions& options) {
  set_library_threads(options.threads);
  const std::unique_ptr<Device> device = make_cpu_device(options.threads);
  const Machine machine = this_machine(device->description(), options.threads);
  print(machine);
  if (machine.library.empty()) {
    throw Error(
        "this program was built without oneDNN, so there is nothing to compare with: install it "
        "(libdnnl-dev, onednn-devel) and build again");
  }
  struct Total {
    int rows;
    bool streamed;
    Figures seconds;
  };
  std::vector<Total> totals;
  const auto total_of = [&](int rows, bool streamed) -> Figures& {
    for (Total& total : totals) {
      if (total.rows == rows && total.streamed == streamed) return total.seconds;
    }
    totals.push_back({rows, streamed, {}});
    return totals.back().seconds;
  };
  const auto print_line = [&](const std::string& name, int rows, bool streamed, const Figures& f,
                              double size) {
    const double operations = 2 * rows * size, bytes = sizeof(float) * size;
    const auto speed = [&](double seconds) {
      return rows <= kFewRows ? fmt::format("{:8.1f} GB/s   ", bytes / seconds / 1e9)
                              : fmt::format("{:8.0f} GFLOP/s", operations / seconds / 1e9);
    };
    fmt::print("{:<24}{:>5}  {:<9}{:>10.3f} {}{:>10.3f} {}{:>8.2f}\n", name, rows,
               streamed ? "streamed" : "hot", 1e3 * f.ours, speed(f.ours), 1e3 * f.library, speed(f.library),
               f.library / f.ours);
  };

  fmt::print(
      "\n{} as a yardstick, weights in its own layout for each number of rows; ratio above 1: ours is "
      "faster\n\n",
      machine.library);
  fmt::print("{:<24}{:>5}  {:<9}{:>26}{:>26}{:>8}\n", "product", "rows", "weights", "ours: ms, speed ",
             "library: ms, speed ", "ratio");
  json products = json::array();
  for (const Product& shape : block_products(options.config)) {
    std::mt19937 random(1);
    std::vector<float> weights(static_cast<std::size_t>(shape.in * shape.out));
    for (float& w : weights) w = (static_cast<float>(random()) * 0x1p-32f - 0.5f) * 0.1f;
    const double size = static_cast<double>(weights.size());
    const int stream_copies = static_cast<int>(std::ceil(options.stream_bytes / (sizeof(float) * size)));
    for (const int rows : kRows) {
      for (const bool streamed : {false, true}) {
        if (streamed && rows > kFewRows) continue;
        const Figures f =
            compare(*device, shape, rows, weights, streamed ? stream_copies : 1, options.rounds);
        print_line(shape.name, rows, streamed, f, size);
        std::fflush(stdout);
        Figures& total = total_of(rows, streamed);
        total.ours += f.ours;
        total.library += f.library;
        products.push_back({{"name", shape.name},
                            {"rows", rows},
                            {"in", shape.in},
                            {"out", shape.out},
                            {"weights", streamed ? "streamed" : "hot"},
                            {"ours_ms", 1e3 * f.ours},
                            {"library_ms", 1e3 * f.library},
                            {"ratio", f.library / f.ours}});
      }
    }
  }
  fmt::print("\n");
  json blocks = json::array();
  for (const auto& [rows, streamed, f] : totals) {
    print_line("the four of a block", rows, streamed, f, block_operations(options.config) / 2);
    blocks.push_back({{"rows", rows},
                      {"weights", streamed ? "streamed" : "hot"},
                      {"ours_ms", 1e3 * f.ours},
                      {"library_ms", 1e3 * f.library},
                      {"ratio", f.library / f.ours}});
  }
  return {{"machine",
           {{"build", machine.build},
            {"compiler", machine.compiler},
            {"cpu", machine.cpu},
            {"device", machine.device},
            {"library", machine.library}}},
          {"threads", options.threads},
          {"rounds", options.rounds},
          {"clock", use_processor_time ? "processor" : "wall"},
          {"products", products},
          {"blocks", blocks}};
}

}  // namespace staircase::bench
