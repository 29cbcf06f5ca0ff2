#include "bench/rungs.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include "bench/cpu_peaks.h"
#include "bench/machine.h"
#include "bench/rung_shapes.h"
#include "bench/timing.h"
#include "common/base/error.h"
#include "common/base/quoted.h"
#include "kernels/device.h"
#include "kernels/rungs/cpu/prefill_attention/prefill_attention.h"

namespace staircase::bench {
namespace {

using nlohmann::json;

constexpr double kShortest = 0.02;
constexpr std::size_t kBandwidthBytes = std::size_t{256} << 20;
constexpr int kPeakSteps = 1 << 20;

std::vector<float> random_values(std::int64_t count) {
  std::mt19937 random(1);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(random()) * 0x1p-32f - 0.5f;
  return values;
}

/// A line of the table: a rung, or the engine's own kernel in one type.
struct Line {
  std::string name, idea;
  double bytes;  // size of the weights, or of keys and values
  Task task;
};

/// A ladder and its operands. With one row, W is larger than the caches; with many rows, it fits. Attention
/// reads more keys and values than fit.
struct Ladder {
  std::string_view name, subject;
  bool is_read;       // whether memory is the limit, instead of arithmetic
  double operations;  // per call
  std::deque<Line> lines = {};
  json skipped = json::array(), shape = {};
  std::vector<std::shared_ptr<void>> kept = {};  // the operands of the tasks
};

template <typename Value, typename... Arguments>
Value& keep(Ladder& ladder, Arguments&&... arguments) {
  auto value = std::make_shared<Value>(std::forward<Arguments>(arguments)...);
  ladder.kept.push_back(value);
  return *value;
}

template <typename Work>
void add(Ladder& ladder, std::string_view name, std::string_view idea, std::int64_t bytes, const Work& work) {
  ladder.lines.push_back({std::string(name),
                          std::string(idea),
                          static_cast<double>(bytes),
                          {[work] { return seconds_per_call(kShortest, work); }, {}}});
}

Ladder product_of(std::string_view name, std::string_view subject, std::span<const rungs::Rung> all,
                  const rungs::ProductShape& shape, ThreadTeam& team, Device& device) {
  Ladder ladder{name, subject, shape.rows == 1,
                2.0 * static_cast<double>(shape.rows * shape.n_in * shape.n_out)};
  ladder.shape = {{"rows", shape.rows}, {"n_in", shape.n_in}, {"n_out", shape.n_out}};
  const std::vector<float> w = random_values(shape.n_in * shape.n_out);
  const auto& x = keep<std::vector<float>>(ladder, random_values(shape.rows * shape.n_in));
  auto& y = keep<std::vector<float>>(ladder, static_cast<std::size_t>(shape.rows * shape.n_out));
  for (const rungs::Rung& rung : all) {
    if (rung.prepare == nullptr) {
      ladder.skipped.push_back({{"name", rung.name}, {"lacks", rung.lacks}});
      continue;
    }
    auto& product = keep<std::unique_ptr<rungs::Product>>(ladder, rung.prepare(shape, w.data(), team));
    add(ladder, rung.name, rung.idea, product->weight_bytes(), [&] { product->run(x.data(), y.data()); });
  }
  const auto& rows = keep<Tensor>(
      ladder,
      device.load({x.data(), DType::kFloat32, shape.rows, shape.n_in}).reshaped({shape.rows, shape.n_in}));
  auto& result = keep<Tensor>(ladder, device.allocate(DType::kFloat32, {shape.rows, shape.n_out}));
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    const auto& weight =
        keep<Weight>(ladder, device.load_weight(HostArray{w.data(), DType::kFloat32, shape.n_in, shape.n_out},
                                                WeightOrder::kInputFirst, dtype));
    add(ladder, fmt::format("engine, {}", to_string(dtype)), "", weight.packed.bytes(),
        [&] { device.linear(rows, {}, weight, Tensor(), Epilogue::kStore, result); });
  }
  return ladder;
}

/// Adds the engine's attention for the last `tokens` of a text, with each type of cache. The caches hold
/// zeros, because attention takes the same time for any numbers.
void add_engine(Ladder& ladder, const rungs::AttentionShape& shape, std::int64_t tokens,
                const std::vector<float>& queries, Device& device) {
  const auto ints = [&](std::initializer_list<std::int64_t> values) {
    Tensor tensor = device.allocate(DType::kInt32, {std::ssize(values)});
    std::ranges::transform(values, tensor.data<std::int32_t>(),
                           [](std::int64_t value) { return static_cast<std::int32_t>(value); });
    return tensor;
  };
  const std::int64_t width = shape.n_head * shape.head_size;
  const auto& batch = keep<Batch>(ladder, Batch{device.allocate(DType::kInt32, {tokens}), ints({0, tokens}),
                                                ints({shape.positions - tokens})});
  const auto& rows = keep<Tensor>(
      ladder, device.load({queries.data(), DType::kFloat32, tokens, width}).reshaped({tokens, width}));
  auto& result = keep<Tensor>(ladder, device.allocate(DType::kFloat32, {tokens, width}));
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    const auto zeros = [&] {
      Tensor tensor =
          device.allocate(dtype, {1, shape.n_kv_head, shape.positions, kept_size(dtype, shape.head_size)});
      std::fill_n(tensor.data<std::byte>(), tensor.bytes(), std::byte(0));
      return tensor;
    };
    const auto& cache = keep<KeysValues>(ladder, KeysValues{zeros(), zeros()});
    add(ladder, fmt::format("engine, {}", to_string(dtype)), "", 2 * cache.keys.bytes(),
        [&] { device.attention(batch, rows, cache, result); });
  }
}

Ladder attention_of(const rungs::AttentionShape& shape, ThreadTeam& team, Device& device) {
  Ladder ladder{"attention", "one token of SmolLM2-135M, 9 query heads and 3 of keys, after a long text",
                true, 4.0 * static_cast<double>(shape.n_head * shape.positions * shape.head_size)};
  ladder.shape = {{"n_head", shape.n_head},
                  {"n_kv_head", shape.n_kv_head},
                  {"head_size", shape.head_size},
                  {"positions", shape.positions}};
  const std::vector<float> numbers = random_values(shape.n_kv_head * shape.positions * shape.head_size);
  const auto& queries = keep<std::vector<float>>(ladder, random_values(shape.n_head * shape.head_size));
  auto& out = keep<std::vector<float>>(ladder, queries.size());
  for (const rungs::AttentionRung& rung : rungs::attention_ladder()) {
    auto& prepared = keep<std::unique_ptr<rungs::Attention>>(
        ladder, rung.prepare(shape, numbers.data(), numbers.data(), team));
    add(ladder, rung.name, rung.idea, prepared->cache_bytes(),
        [&] { prepared->run(queries.data(), out.data()); });
  }
  add_engine(ladder, shape, 1, queries, device);
  return ladder;
}

/// The attention of a whole prompt.
Ladder prefill_attention_of(const rungs::AttentionShape& shape, ThreadTeam& team, Device& device) {
  const std::int64_t tokens = shape.positions, pairs = shape.n_head * tokens * (tokens + 1) / 2;
  Ladder ladder{"prefill-attention", "a prompt of SmolLM2-135M, 9 query heads and 3 of keys", false,
                4.0 * static_cast<double>(pairs * shape.head_size)};
  ladder.shape = {{"n_head", shape.n_head},
                  {"n_kv_head", shape.n_kv_head},
                  {"head_size", shape.head_size},
                  {"tokens", tokens}};
  const auto& queries =
      keep<std::vector<float>>(ladder, random_values(tokens * shape.n_head * shape.head_size));
  const auto& numbers =
      keep<std::vector<float>>(ladder, random_values(shape.n_kv_head * tokens * shape.head_size));
  auto& out = keep<std::vector<float>>(ladder, queries.size());
  const auto& prompt = keep<rungs::Prompt>(
      ladder, rungs::Prompt{shape, tokens, queries.data(), numbers.data(), numbers.data()});
  for (const rungs::PrefillRung& rung : rungs::prefill_attention_ladder()) {
    if (rung.run == nullptr) {
      ladder.skipped.push_back({{"name", rung.name}, {"lacks", rung.lacks}});
      continue;
    }
    add(ladder, rung.name, rung.idea, 2 * std::ssize(numbers) * std::int64_t{sizeof(float)},
        [&, run = rung.run] { run(prompt, team, out.data()); });
  }
  add_engine(ladder, shape, tokens, queries, device);
  return ladder;
}

json measure(Ladder ladder, const RungOptions& options, Device& device) {
  // The limit is the rate of reading memory or of multiplying floats.
  ReadBandwidth memory(device, kBandwidthBytes, options.threads);
  Task limit{[&] {
               return ladder.is_read
                          ? seconds_per_call(kShortest, [&] { memory.read(); })
                          : seconds_per_call(kShortest, [&] { multiply_add(options.threads, kPeakSteps); });
             },
             {}};
  std::vector<Task*> tasks{&limit};
  for (Line& line : ladder.lines) tasks.push_back(&line.task);
  measure_in_rounds(tasks, options.rounds);

  const double most =
      (ladder.is_read ? static_cast<double>(kBandwidthBytes) : multiply_add(options.threads, kPeakSteps)) /
      limit.seconds.median() / 1e9;
  const char* const unit = ladder.is_read ? "GB/s" : "GFLOP/s";
  std::string shape;
  for (const auto& [key, value] : ladder.shape.items())
    shape += fmt::format("{}{} {}", shape.empty() ? "" : ", ", key, value.dump());
  fmt::print("\n{}: {} ({}). The limit: {:.0f} {}.\n\n", ladder.name, ladder.subject, shape, most,
             ladder.is_read ? "GB/s read" : "GFLOP/s in float32");
  fmt::print("{:<18}{:>10}{:>10}{:>10}{:>10}\n", "", "ms", unit, "of limit", "x below");
  json results = json::array();
  double below = 0.0;
  for (const Line& line : ladder.lines) {
    const double seconds = line.task.seconds.median();
    const double speed = (ladder.is_read ? line.bytes : ladder.operations) / seconds / 1e9;
    const bool is_rung = !line.idea.empty();
    const std::string factor = is_rung && below > 0.0 ? fmt::format("{:.2f}", below / seconds) : "";
    fmt::print("{:<18}{:>10.3f}{:>10.1f}{:>9.0f}%{:>10}  {}\n", line.name, 1e3 * seconds, speed,
               100 * speed / most, factor, line.idea);
    results.push_back({{"name", line.name},
                       {"ms", 1e3 * seconds},
                       {"ms_least", 1e3 * line.task.seconds.min()},
                       {"ms_most", 1e3 * line.task.seconds.max()},
                       {ladder.is_read ? "gb_per_s" : "gflop_per_s", speed},
                       {"bytes", line.bytes}});
    below = is_rung ? seconds : 0.0;
  }
  for (const json& rung : ladder.skipped) {
    fmt::print("{:<18} skipped: this processor or this build lacks {}\n", rung["name"].get<std::string>(),
               rung["lacks"].get<std::string>());
  }
  json result = {{"ladder", ladder.name}, {"limit", most}, {"rungs", results}, {"skipped", ladder.skipped}};
  result.update(ladder.shape);
  return result;
}

}  // namespace

json measure_rungs(const RungOptions& options) {
  const std::unique_ptr<Device> device = make_cpu_device(options.threads);
  ThreadTeam team(options.threads);
  const std::vector<std::pair<std::string_view, std::function<Ladder()>>> all{
      {"matvec",
       [&] {
         return product_of("matvec", "one row times the output layer of GPT-2 355M", rungs::matvec_ladder(),
                           kMatvecShape, team, *device);
       }},
      {"product",
       [&] {
         return product_of("product", "96 rows times the first matrix of GPT-2 124M's MLP",
                           rungs::product_ladder(), kProductShape, team, *device);
       }},
      {"attention", [&] { return attention_of(kAttentionShape, team, *device); }},
      {"prefill-attention", [&] { return prefill_attention_of(kPromptShape, team, *device); }}};
  std::string names;
  bool is_known = options.ladder.empty();
  for (const auto& [name, _] : all) {
    names += fmt::format("{}{}", names.empty() ? "" : name == all.back().first ? " or " : ", ", name);
    is_known |= options.ladder == name;
  }
  if (!is_known) throw UsageError("--ladder {}: unknown ladder; choose {}", quoted(options.ladder), names);
  const Machine machine = this_machine(device->description(), options.threads);
  print(machine);
  json ladders = json::array();
  for (const auto& [name, ladder] : all) {
    if (options.ladder.empty() || options.ladder == name)
      ladders.push_back(measure(ladder(), options, *device));
  }
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
