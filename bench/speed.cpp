#include "bench/speed.h"

#include <deque>
#include <optional>

#include "bench/cpu_peaks.h"
#include "bench/library_product.h"
#include "bench/machine.h"
#include "bench/timing.h"
#include "bench/work.h"
#include "common/base/error.h"
#include "common/decoding/static_kv_cache.h"
#include "common/model/model.h"

namespace staircase::bench {
namespace {

using nlohmann::json;

/// A sample that takes fewer seconds is repeated. Otherwise the clock, or a thread that wakes up late, would
/// distort it.
constexpr double kShortest = 0.02;

/// The number of tokens decoded in one sample. The longest context measured leaves room for them.
constexpr int kDecodeSteps = 16;
constexpr int kRoomForDecoding = 24;

/// The context at which batches are decoded and drafts verified, or the nearest one that the model allows;
/// and the numbers of drafted tokens to verify in one pass.
constexpr int kBatchContext = 256;
constexpr int kDrafts[] = {1, 2, 4, 8};

/// Decodes 1, 2, 4 … sequences together, each after its own `context` tokens.
class BatchDecoding {
 public:
  BatchDecoding(Model& model, int context, int largest)
      : model_(model), context_(context), cache_(model, largest) {
    const std::vector<int> text = some_tokens(context * largest, model.config().vocab_size);
    std::vector<std::span<const int>> prompts;
    for (int row = 0; row < largest; ++row) {
      prompts.push_back(std::span(text).subspan(static_cast<std::size_t>(row * context),
                                                static_cast<std::size_t>(context)));
    }
    model.next_logits(prompts, cache_);
  }

  /// Returns the seconds for one more token of each of `batch` sequences.
  double seconds_per_step(int batch) {
    const auto rows = static_cast<std::size_t>(batch),
               vocab_size = static_cast<std::size_t>(model_.config().vocab_size);
    const auto steps = [&] {
      set_lengths(cache_, batch, context_);
      std::vector<int> tokens(rows, 0);
      std::vector<std::span<const int>> sequences;
      for (const int& token : tokens) sequences.emplace_back(&token, 1);
      for (int i = 0; i < kDecodeSteps; ++i) {
        const std::span<const float> logits = model_.next_logits(sequences, cache_);
        for (std::size_t row = 0; row < rows; ++row)
          tokens[row] = argmax(logits.subspan(row * vocab_size, vocab_size));
      }
    };
    return seconds_per_call(kShortest, steps) / kDecodeSteps;
  }

 private:
  Model& model_;
  int context_;
  StaticKvCache cache_;
};

/// Computes the products of one block with the library, one after another.
class LibraryBlock {
 public:
  LibraryBlock(Device& device, const ModelConfig& config, int rows, DType dtype) {
    for (const auto& [name, in, out] : block_products(config)) {
      const std::vector<float> weights(static_cast<std::size_t>(in * out), 0.01f);
      products_.emplace_back(device, rows, in, out, weights.data(), 1, dtype);
      products_.back().set_x(std::vector<float>(static_cast<std::size_t>(rows * in), 0.5f).data());
    }
  }

  void run() {
    for (LibraryProduct& product : products_) product.run();
  }

 private:
  std::vector<LibraryProduct> products_;
};

/// Computes a rate from the work and its seconds. The fastest sample gives the highest rate.
json rate(double work, const Samples& seconds) {
  return {{"median", work / seconds.median() / 1e9},
          {"min", work / seconds.max() / 1e9},
          {"max", work / seconds.min() / 1e9}};
}

json milliseconds(const Samples& seconds) {
  return {{"median", 1e3 * seconds.median()}, {"min", 1e3 * seconds.min()}, {"max", 1e3 * seconds.max()}};
}

double percent(double part, double whole) {
  return 100.0 * part / whole;
}

std::string range(const json& figure, int digits) {
  return fmt::format("{:.{}f} ({:.{}f}–{:.{}f})", figure["median"].get<double>(), digits,
                     figure["min"].get<double>(), digits, figure["max"].get<double>(), digits);
}

/// Prints one line of the table. A column may be empty.
void print_line(const std::string& what, const std::string& ms, const std::string& tokens_per_second,
                const std::string& speed, const std::string& share) {
  fmt::print("{:<24}{:>24}{:>10}{:>26}   {}\n", what, ms, tokens_per_second, speed, share);
}

void print_table(const json& result) {
  const json& limits = result["limits"];
  const auto median = [](const json& figure) { return figure["median"].get<double>(); };
  fmt::print("\n");
  print_line("", "ms: median (min–max)", "tokens/s", "GB/s or GFLOP/s", "share of the limit");
  print_line("read bandwidth", "", "", range(limits["read_gb_per_s"], 1) + " GB/s", "");
  print_line("multiply-adds, float32", "", "", range(limits["multiply_add_gflop_per_s"], 0) + " GFLOP/s", "");
  const json& library = limits["library_product_gflop_per_s"];
  print_line("products of the library", "", "", library.is_null() ? "" : range(library, 0) + " GFLOP/s",
             library.is_null() ? "oneDNN is not built in"
                               : fmt::format("{}, {}", result["machine"]["library"].get<std::string>(),
                                             result["library_product_dtype"].get<std::string>()));

  const json& prefill = result["prefill"];
  std::string share =
      fmt::format("{:.0f} % of float32's multiply-adds", prefill["percent_of_multiply_add"].get<double>());
  if (!library.is_null()) {
    share += fmt::format(", {:.0f} % of the library's products",
                         prefill["percent_of_library_product"].get<double>());
  }
  print_line(fmt::format("prefill, {} tokens", prefill["tokens"].get<int>()), range(prefill["ms"], 2),
             fmt::format("{:.0f}", prefill["tokens_per_s"].get<double>()),
             fmt::format("{:.0f} GFLOP/s", median(prefill["gflop_per_s"])), share);
  const auto print_bytes = [&](const std::string& what, const json& figures) {
    print_line(what, range(figures["ms"], 3), fmt::format("{:.1f}", figures["tokens_per_s"].get<double>()),
               fmt::format("{:.1f} GB/s", median(figures["gb_per_s"])),
               fmt::format("{:.0f} % of the read bandwidth", figures["percent_of_read"].get<double>()));
  };
  print_bytes("one-token pass", result["one_token_pass"]);
  for (const json& decode : result["decode"]) {
    print_bytes(fmt::format("decode, context {}", decode["context"].get<int>()), decode);
  }
  for (const json& batch : result["batches"]) {
    print_line(fmt::format("decode, batch {}", batch["batch"].get<int>()), range(batch["ms"], 3),
               fmt::format("{:.1f}", batch["tokens_per_s"].get<double>()),
               fmt::format("{:.1f} GB/s", median(batch["gb_per_s"])),
               fmt::format("{:.2f} x batch 1; {:.0f} % of the read bandwidth, {:.0f} % of the multiply-adds",
                           batch["times_batch_1"].get<double>(), batch["percent_of_read"].get<double>(),
                           batch["percent_of_multiply_add"].get<double>()));
  }
  for (const json& pass : result["verification"]) {
    print_line(fmt::format("verify {} + 1 tokens", pass["drafted"].get<int>()), range(pass["ms"], 3), "", "",
               fmt::format("{:.2f} x the pass of one token", pass["times_one_token"].get<double>()));
  }
  const json& load = result["load"];
  fmt::print(
      "\nload: {:.1f} ms ({:.1f} GB/s); peak memory {:.0f} MB after loading, {:.0f} MB after running; "
      "weights "
      "{:.0f} MB\n",
      load["ms"].get<double>(), load["gb_per_s"].get<double>(),
      load["peak_bytes_after_loading"].get<double>() / 1e6,
      load["peak_bytes_after_running"].get<double>() / 1e6, load["weight_bytes"].get<double>() / 1e6);
}

}  // namespace

json measure_speed(const SpeedOptions& options) {
  set_library_threads(options.threads);  // only for the library; the device has its own threads
  const std::shared_ptr<Device> device = make_cpu_device(options.threads);
  const Machine machine = this_machine(device->description(), options.threads);
  print(machine);

  std::optional<Model> loaded;
  const double load_seconds =
      seconds_of([&] { loaded.emplace(Model::load(options.model, device, options.dtype)); });
  const std::size_t peak_after_loading = peak_memory();
  Model& model = *loaded;
  if (options.cache_dtype) model.use_cache_dtype(*options.cache_dtype);
  const ModelConfig& config = model.config();
  const auto weight_bytes = static_cast<double>(model.weight_bytes());
  fmt::print("{}: {} blocks, n_embd {}, {} heads, {} tokens in the vocabulary, {:.1f} MB of {} weights\n",
             options.model.filename().string(), config.n_layer, config.n_embd, config.n_head,
             config.vocab_size, weight_bytes / 1e6, to_string(options.dtype));

  const int prompt_tokens =
      options.prompt_tokens == 0 ? std::min(512, config.n_positions) : options.prompt_tokens;
  if (prompt_tokens > config.n_positions) {
    throw UsageError("--prompt-tokens {}: the model's context is {} positions", prompt_tokens,
                     config.n_positions);
  }
  const std::vector<int> text = some_tokens(config.n_positions, config.vocab_size);
  const std::span<const int> prompt = std::span(text).first(static_cast<std::size_t>(prompt_tokens));
  const std::span<const int> one_token = std::span(text).first(1);

  StaticKvCache cache(model);
  std::vector<int> contexts;
  for (const int context : {16, 256, config.n_positions - kRoomForDecoding}) {
    if (context > (contexts.empty() ? 0 : contexts.back()) &&
        context <= config.n_positions - kRoomForDecoding)
      contexts.push_back(context);
  }
  if (contexts.empty()) throw Error("a context of {} positions is too short to measure", config.n_positions);
  model.next_logits(std::span(text).first(static_cast<std::size_t>(contexts.back())), cache);

  Task prefill{[&] { return seconds_per_call(kShortest, [&] { model.next_logits(prompt); }); }, {}};
  Task one_token_pass{[&] { return seconds_per_call(kShortest, [&] { model.next_logits(one_token); }); }, {}};
  std::deque<Task> decodes;
  for (const int context : contexts) {
    decodes.push_back({[&, context] {
                         const auto steps = [&] {
                           cache.truncate(0, context);
                           int token = text[0];
                           for (int i = 0; i < kDecodeSteps; ++i)
                             token = argmax(model.next_logits(std::span(&token, 1), cache));
                         };
                         return seconds_per_call(kShortest, steps) / kDecodeSteps;
                       },
                       {}});
  }
  // Every pass follows the same tokens, as if all drafts were rejected.
  const int batch_context = contexts[contexts.size() == 1 || contexts[1] > kBatchContext ? 0 : 1];
  const auto verify = [&, batch_context](int drafted) {
    return [&, batch_context, drafted] {
      return seconds_per_call(kShortest, [&] {
        cache.truncate(0, batch_context);
        model.last_logits(std::span(text).first(static_cast<std::size_t>(drafted + 1)), drafted + 1, cache);
      });
    };
  };
  Task verify_nothing{verify(0), {}};
  std::deque<Task> verifications;
  for (const int drafted : kDrafts) verifications.push_back({verify(drafted), {}});

  // Run the model before the limits' buffers exist, so the peak memory belongs to the model alone.
  model.next_logits(prompt);
  const std::size_t peak_after_running = peak_memory();

  std::vector<int> batches = options.batches;
  if (!batches.empty()) batches.push_back(1);
  std::sort(batches.begin(), batches.end());
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  std::optional<BatchDecoding> batch_decoding;
  if (!batches.empty()) batch_decoding.emplace(model, batch_context, batches.back());
  std::deque<Task> batch_decodes;
  for (const int batch : batches)
    batch_decodes.push_back({[&, batch] { return batch_decoding->seconds_per_step(batch); }, {}});

  ReadBandwidth bandwidth(*device, model.weight_bytes(), options.threads);
  Task read{[&] { return seconds_per_call(kShortest, [&] { bandwidth.read(); }); }, {}};
  constexpr int kSteps = 100'000;
  double multiply_add_operations = 0.0;
  Task multiply_adds{[&] {
                       return seconds_per_call(kShortest, [&] {
                         multiply_add_operations = multiply_add(options.threads, kSteps);
                       });
                     },
                     {}};
  // As in our engine, weights in float16 are multiplied in float32, and weights in bfloat16 in bfloat16.
  const DType product_dtype = options.dtype == DType::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
  std::optional<LibraryBlock> library;
  if (!machine.library.empty()) library.emplace(*device, config, prompt_tokens, product_dtype);
  Task library_products{[&] { return seconds_per_call(kShortest, [&] { library->run(); }); }, {}};

  std::vector<Task*> tasks{&read, &multiply_adds, &prefill, &one_token_pass};
  if (library) tasks.insert(tasks.begin() + 2, &library_products);
  for (Task& decode : decodes) tasks.push_back(&decode);
  for (Task& decode : batch_decodes) tasks.push_back(&decode);
  tasks.push_back(&verify_nothing);
  for (Task& verification : verifications) tasks.push_back(&verification);
  measure_in_rounds(tasks, options.rounds);

  // Convert seconds to figures.
  const json read_rate = rate(static_cast<double>(bandwidth.bytes()), read.seconds);
  const json multiply_add_rate = rate(multiply_add_operations, multiply_adds.seconds);
  const json library_rate =
      library ? rate(prompt_tokens * block_operations(config), library_products.seconds) : json();
  const auto median = [](const json& figure) { return figure["median"].get<double>(); };

  const double operations = prefill_operations(config, prompt_tokens);
  const json prefill_rate = rate(operations, prefill.seconds);
  json prefill_figures{{"tokens", prompt_tokens},
                       {"ms", milliseconds(prefill.seconds)},
                       {"tokens_per_s", prompt_tokens / prefill.seconds.median()},
                       {"gflop", operations / 1e9},
                       {"gflop_per_s", prefill_rate},
                       {"percent_of_multiply_add", percent(median(prefill_rate), median(multiply_add_rate))},
                       {"percent_of_library_product", nullptr}};
  if (library) {
    prefill_figures["percent_of_library_product"] = percent(median(prefill_rate), median(library_rate));
  }
  const auto bytes_figures = [&](const Task& task, double bytes) {
    const json gb_per_s = rate(bytes, task.seconds);
    return json{{"ms", milliseconds(task.seconds)},
                {"tokens_per_s", 1 / task.seconds.median()},
                {"bytes", bytes},
                {"gb_per_s", gb_per_s},
                {"percent_of_read", percent(median(gb_per_s), median(read_rate))}};
  };
  json decode_figures = json::array();
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const double mean_context = contexts[i] + (kDecodeSteps - 1) / 2.0;
    json figures =
        bytes_figures(decodes[i], decode_bytes(config, model.weight_bytes(), model.kv_dtype(), mean_context));
    figures["context"] = contexts[i];
    decode_figures.push_back(figures);
  }
  json batch_figures = json::array();
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const double mean_context = batch_context + (kDecodeSteps - 1) / 2.0;
    const Samples& seconds = batch_decodes[i].seconds;
    json figures = bytes_figures(batch_decodes[i], decode_bytes(config, model.weight_bytes(),
                                                                model.kv_dtype(), mean_context, batches[i]));
    const json operations_rate = rate(batches[i] * decode_operations(config, mean_context), seconds);
    figures["batch"] = batches[i];
    figures["context"] = batch_context;
    figures["tokens_per_s"] = batches[i] / seconds.median();
    figures["times_batch_1"] = batches[i] * batch_decodes[0].seconds.median() / seconds.median();
    figures["gflop_per_s"] = operations_rate;
    figures["percent_of_multiply_add"] = percent(median(operations_rate), median(multiply_add_rate));
    batch_figures.push_back(figures);
  }
  json verification_figures = json::array();
  for (std::size_t i = 0; i < verifications.size(); ++i) {
    const Samples& seconds = verifications[i].seconds;
    verification_figures.push_back({{"drafted", kDrafts[i]},
                                    {"context", batch_context},
                                    {"ms", milliseconds(seconds)},
                                    {"one_token_ms", milliseconds(verify_nothing.seconds)},
                                    {"times_one_token", seconds.median() / verify_nothing.seconds.median()}});
  }
  const json result{
      {"machine",
       {{"build", machine.build},
        {"compiler", machine.compiler},
        {"optimised", machine.optimised},
        {"cpu", machine.cpu},
        {"device", machine.device},
        {"processors", machine.processors},
        {"library", machine.library}}},
      {"threads", options.threads},
      {"rounds", options.rounds},
      {"clock", use_processor_time ? "processor" : "wall"},
      {"library_product_dtype", to_string(product_dtype)},
      {"model",
       {{"name", options.model.filename().string()},
        {"n_layer", config.n_layer},
        {"n_embd", config.n_embd},
        {"n_head", config.n_head},
        {"n_inner", config.n_inner},
        {"n_positions", config.n_positions},
        {"vocab_size", config.vocab_size},
        {"dtype", to_string(options.dtype)},
        {"cache_dtype", to_string(model.kv_dtype())}}},
      {"load",
       {{"ms", 1e3 * load_seconds},
        {"gb_per_s", weight_bytes / load_seconds / 1e9},
        {"weight_bytes", model.weight_bytes()},
        {"cache_bytes", cache.use().bytes},
        {"peak_bytes_after_loading", peak_after_loading},
        {"peak_bytes_after_running", peak_after_running}}},
      {"limits",
       {{"read_gb_per_s", read_rate},
        {"read_buffer_bytes", bandwidth.bytes()},
        {"multiply_add_gflop_per_s", multiply_add_rate},
        {"library_product_gflop_per_s", library_rate}}},
      {"prefill", prefill_figures},
      {"one_token_pass",
       bytes_figures(one_token_pass, decode_bytes(config, model.weight_bytes(), DType::kFloat32, 0))},
      {"decode", decode_figures},
      {"batches", batch_figures},
      {"verification", verification_figures}};
  print_table(result);
  return result;
}

}  // namespace staircase::bench
