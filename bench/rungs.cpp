#include "bench/rungs.h"

#include <deque>
#include <random>

#include "bench/cpu_peaks.h"
#include "bench/machine.h"
#include "bench/timing.h"
#include "common/base/error.h"
#include "common/base/quoted.h"
#include "kernels/device.h"
#include "kernels/rungs/cpu/rung.h"

namespace staircase::bench {
namespace {

using nlohmann::json;

/// A ladder with the shape that it is measured with: for one row, W is larger than the caches; for many, it
/// fits.
struct Ladder {
  std::string_view name, subject;
  std::span<const rungs::Rung> rungs;
  rungs::ProductShape shape;
};

std::vector<Ladder> all_ladders() {
  return {
      {"matvec", "one row times the output layer of GPT-2 355M", rungs::matvec_ladder(), {1, 1024, 50257}},
      {"product",
       "96 rows times the first matrix of GPT-2 124M's MLP",
       rungs::product_ladder(),
       {96, 768, 3072}}};
}

constexpr double kShortest = 0.02;
constexpr std::size_t kBandwidthBytes = std::size_t{256} << 20;
constexpr int kPeakSteps = 1 << 20;

std::vector<float> random_values(std::int64_t count) {
  std::mt19937 random(1);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(random()) * 0x1p-32f - 0.5f;
  return values;
}

/// What is measured: a rung or the engine's own kernel in one type.
struct Line {
  std::string name, idea;
  double bytes;  // of the weights
  Task task;
};

json measure(const Ladder& ladder, const RungOptions& options, ThreadTeam& team, Device& device) {
  const rungs::ProductShape& shape = ladder.shape;
  const bool one_row = shape.rows == 1;
  const std::vector<float> w = random_values(shape.n_in * shape.n_out),
                           x = random_values(shape.rows * shape.n_in);
  std::vector<float> y(static_cast<std::size_t>(shape.rows * shape.n_out));
  std::deque<Line> lines;
  std::vector<std::unique_ptr<rungs::Product>> products;
  json skipped = json::array();
  for (const rungs::Rung& rung : ladder.rungs) {
    if (rung.prepare == nullptr) {
      skipped.push_back({{"name", rung.name}, {"lacks", rung.lacks}});
      continue;
    }
    products.push_back(rung.prepare(shape, w.data(), team));
    rungs::Product* const product = products.back().get();
    lines.push_back(
        {std::string(rung.name),
         std::string(rung.idea),
         static_cast<double>(product->weight_bytes()),
         {[&, product] { return seconds_per_call(kShortest, [&] { product->run(x.data(), y.data()); }); },
          {}}});
  }

  const Tensor rows = device.allocate(DType::kFloat32, {shape.rows, shape.n_in});
  Tensor result = device.allocate(DType::kFloat32, {shape.rows, shape.n_out});
  std::copy(x.begin(), x.end(), rows.data<float>());
  std::deque<Weight> weights;
  for (const auto& [name, dtype] :
       {std::pair{"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}, {"int8", DType::kInt8}}) {
    weights.push_back(device.load_weight(HostArray{w.data(), DType::kFloat32, shape.n_in, shape.n_out},
                                         WeightOrder::kInputFirst, dtype));
    const Weight& weight = weights.back();
    lines.push_back({fmt::format("engine, {}", name),
                     "",
                     static_cast<double>(weight.packed.bytes()),
                     {[&] {
                        return seconds_per_call(kShortest, [&] {
                          device.linear(rows, {}, weight, Tensor(), Epilogue::kStore, result);
                        });
                      },
                      {}}});
  }

  // The limit: reading for one row, multiplying floats for many.
  ReadBandwidth memory(device, kBandwidthBytes, options.threads);
  Task limit{[&] {
               return one_row
                          ? seconds_per_call(kShortest, [&] { memory.read(); })
                          : seconds_per_call(kShortest, [&] { multiply_add(options.threads, kPeakSteps); });
             },
             {}};
  std::vector<Task*> tasks{&limit};
  for (Line& line : lines) tasks.push_back(&line.task);
  measure_in_rounds(tasks, options.rounds);

  const double operations = 2.0 * static_cast<double>(shape.rows * shape.n_in * shape.n_out);
  const double most =
      (one_row ? static_cast<double>(kBandwidthBytes) : multiply_add(options.threads, kPeakSteps)) /
      limit.seconds.median() / 1e9;
  const char* const unit = one_row ? "GB/s" : "GFLOP/s";
  fmt::print("\n{}: {}, y [{}, {}] = x [{}, {}] W. The limit: {:.0f} {}.\n\n", ladder.name, ladder.subject,
             shape.rows, shape.n_out, shape.rows, shape.n_in, most,
             one_row ? "GB/s read" : "GFLOP/s in float32");
  fmt::print("{:<18}{:>10}{:>10}{:>10}{:>10}\n", "", "ms", unit, "of limit", "x below");
  json results = json::array();
  double below = 0.0;
  for (const Line& line : lines) {
    const double seconds = line.task.seconds.median();
    const double speed = (one_row ? line.bytes : operations) / seconds / 1e9;
    const bool is_rung = !line.idea.empty();
    const std::string factor = is_rung && below > 0.0 ? fmt::format("{:.2f}", below / seconds) : "";
    fmt::print("{:<18}{:>10.3f}{:>10.1f}{:>9.0f}%{:>10}  {}\n", line.name, 1e3 * seconds, speed,
               100 * speed / most, factor, line.idea);
    results.push_back({{"name", line.name},
                       {"ms", 1e3 * seconds},
                       {"ms_least", 1e3 * line.task.seconds.min()},
                       {"ms_most", 1e3 * line.task.seconds.max()},
                       {one_row ? "gb_per_s" : "gflop_per_s", speed},
                       {"weight_bytes", line.bytes}});
    below = is_rung ? seconds : 0.0;
  }
  for (const json& rung : skipped) {
    fmt::print("{:<18} skipped: this processor or this build lacks {}\n", rung["name"].get<std::string>(),
               rung["lacks"].get<std::string>());
  }
  return {{"ladder", ladder.name}, {"rows", shape.rows}, {"n_in", shape.n_in}, {"n_out", shape.n_out},
          {"limit", most},         {"rungs", results},   {"skipped", skipped}};
}

}  // namespace

json measure_rungs(const RungOptions& options) {
  std::vector<Ladder> chosen;
  std::string names;
  for (const Ladder& ladder : all_ladders()) {
    names += fmt::format("{}{}", names.empty() ? "" : " or ", ladder.name);
    if (options.ladder.empty() || options.ladder == ladder.name) chosen.push_back(ladder);
  }
  if (chosen.empty())
    throw UsageError("--ladder {}: there is no such ladder; it is {}", quoted(options.ladder), names);
  const std::unique_ptr<Device> device = make_cpu_device(options.threads);
  const Machine machine = this_machine(device->description(), options.threads);
  print(machine);
  ThreadTeam team(options.threads);
  json ladders = json::array();
  for (const Ladder& ladder : chosen) ladders.push_back(measure(ladder, options, team, *device));
  return {{"machine",
           {{"build", machine.build},
            {"compiler", machine.compiler},
            {"cpu", machine.cpu},
            {"device", machine.device}}},
          {"threads", options.threads},
          {"rounds", options.rounds},
          {"ladders", ladders}};
}

}  // namespace staircase::bench
