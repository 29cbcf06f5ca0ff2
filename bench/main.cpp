// The program that tools/bench builds and runs, with models that it makes.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>

#include "bench/changes.h"
#include "bench/generation.h"
#include "bench/gpu.h"
#include "bench/gpu_tune.h"
#include "bench/masks.h"
#include "bench/needle.h"
#include "bench/products.h"
#include "bench/random_model.h"
#include "bench/rungs.h"
#include "bench/scaling.h"
#include "bench/speed.h"
#include "bench/timing.h"
#include "common/base/error.h"
#include "common/model/model.h"
#include "common/model/model_folder.h"
#include "kernels/device.h"
#include "kernels/platform.h"

using namespace staircase;
using namespace staircase::bench;

namespace {

void write_json(const nlohmann::json& result, const std::string& file) {
  if (file.empty()) return;
  std::ofstream stream(file);
  stream << result.dump(2) << '\n';
  if (!stream.flush()) throw Error("--json {}: the file cannot be written", file);
}

/// All options of the command line, for all commands.
struct Options {
  std::string model = "tales-6m", dtype = "float32", cache_dtype, shape = "124m", prompts, folder,
              draft_folder, ladder, json_file, tuning_file;
  std::vector<std::string> shapes, dtypes;
  int threads = available_processors(), rounds = 7, prompt_tokens = 0, new_tokens = 128, stream_mb = 1024;
  int needles = 2;
  std::vector<int> batches, contexts, thread_counts = {1, 2, 4, 8, 16};
  bool cpu_time = false;
};

std::vector<std::string> cache_dtype_names() {
  std::vector<std::string> names;
  for (const DType dtype : cache_dtypes()) names.emplace_back(to_string(dtype));
  return names;
}

/// Returns the type of --cache-dtype, which CLI11 has checked, or no value for an empty name.
std::optional<DType> find_cache_dtype(const std::string& name) {
  for (const DType dtype : cache_dtypes()) {
    if (name == to_string(dtype)) return dtype;
  }
  return {};
}

/// Adds the commands to `app`. The chosen command runs once the command line has been read.
void add_commands(CLI::App& app, Options& o) {
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  const auto add_common = [&](CLI::App* command) {
    command->add_option("--threads", o.threads, "threads on the CPU")->check(CLI::Range(1, 1024));
    command->add_option("--json", o.json_file, "write all figures to this file");
  };
  const auto add_model = [&](CLI::App* command) {
    command->add_option("--model", o.model, "folder or .gguf file of a model, or the name of one in models/");
  };
  const auto add_rounds = [&](CLI::App* command) {
    command->add_option("--rounds", o.rounds, "samples of each measurement")->check(CLI::Range(1, 1000));
  };
  const auto add_clock = [&](CLI::App* command) {
    command->add_flag("--cpu-time", o.cpu_time, "processor time of one thread, for a busy machine");
  };
  const auto choose_clock = [&o] {
    if (o.cpu_time && o.threads != 1) throw UsageError("--cpu-time measures one thread; add --threads 1");
    use_processor_time = o.cpu_time;
  };

  CLI::App* const speed = app.add_subcommand("speed",
                                             "prefill and decoding compared with the machine's "
                                             "limits");
  add_common(speed);
  add_model(speed);
  add_rounds(speed);
  add_clock(speed);
  speed->add_option("--dtype", o.dtype, "data type of the weights: float32, float16, bfloat16, int8 or int4");
  speed
      ->add_option("--cache-dtype", o.cache_dtype,
                   "data type of the cache; by default, the type of the weights")
      ->check(CLI::IsMember(cache_dtype_names()));
  speed
      ->add_option("--prompt-tokens", o.prompt_tokens,
                   "tokens of the prompt; 0: 512, or the context if it is shorter")
      ->check(CLI::Range(0, 1 << 20));
  speed->add_option("--batch", o.batches, "decode that many sequences together; several numbers: 1,2,4")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  speed->callback([&o, choose_clock] {
    choose_clock();
    const nlohmann::json result = measure_speed({.model = find_model(o.model),
                                                 .dtype = weight_dtype(o.dtype),
                                                 .cache_dtype = find_cache_dtype(o.cache_dtype),
                                                 .threads = o.threads,
                                                 .prompt_tokens = o.prompt_tokens,
                                                 .rounds = o.rounds,
                                                 .batches = o.batches});
    write_json(result, o.json_file);
  });

  CLI::App* const products = app.add_subcommand("products", "our matrix product compared with the library's");
  add_common(products);
  add_rounds(products);
  add_clock(products);
  products->add_option("--shape", o.shape, "the model shape: 124m, smollm2-135m, ...");
  products->add_option("--stream-mb", o.stream_mb, "weight copies to walk over, for products of few rows")
      ->check(CLI::Range(1, 1 << 20));
  products->callback([&o, choose_clock] {
    choose_clock();
    const nlohmann::json result = compare_products({.config = published_shape(o.shape),
                                                    .threads = o.threads,
                                                    .rounds = o.rounds,
                                                    .stream_bytes = 1048576.0 * o.stream_mb});
    write_json(result, o.json_file);
  });

  CLI::App* const rungs =
      app.add_subcommand("rungs", "the ladders of kernels, from the plain loop to what the engine runs");
  add_common(rungs);
  add_rounds(rungs);
  rungs->add_option("--ladder", o.ladder, "matvec, product, attention or prefill-attention; all by default");
  rungs->callback([&o] {
    write_json(measure_rungs({.ladder = o.ladder, .threads = o.threads, .rounds = o.rounds}), o.json_file);
  });

  CLI::App* const scaling =
      app.add_subcommand("scaling", "how evenly many threads share the work: counted, not timed");
  scaling->add_option("--shape", o.shape, "the model shape: 124m, smollm2-135m, ...");
  scaling->add_option("--threads", o.thread_counts, "numbers of threads, such as 1,2,4")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  scaling->add_option("--json", o.json_file, "write all figures to this file");
  scaling->callback([&o] {
    write_json(count_shares({.config = published_shape(o.shape), .threads = o.thread_counts}), o.json_file);
  });

  CLI::App* const changes =
      app.add_subcommand("changes", "the effect of each change from GPT-2 to current models");
  add_common(changes);
  add_rounds(changes);
  changes->add_option("--models", o.folder, "folder with the models")->required();
  changes->add_option("--texts", o.prompts, "JSON file with token ids of unseen texts")->required();
  changes->callback([&o] {
    const nlohmann::json result =
        measure_changes({.models = o.folder, .texts = o.prompts, .threads = o.threads, .rounds = o.rounds});
    write_json(result, o.json_file);
  });

  CLI::App* const generation =
      app.add_subcommand("generation", "one run of the comparison with other engines");
  add_common(generation);
  add_model(generation);
  add_clock(generation);
  generation->add_option("--dtype", o.dtype,
                         "data type of the weights: float32, float16, bfloat16, int8 or int4");
  generation
      ->add_option("--cache-dtype", o.cache_dtype,
                   "data type of the cache; by default, the type of the weights")
      ->check(CLI::IsMember(cache_dtype_names()));
  generation->add_option("--prompts", o.prompts, "JSON file with the prompts")->required();
  generation->add_option("--new-tokens", o.new_tokens, "tokens to decode");
  generation->callback([&o, choose_clock] {
    choose_clock();
    const nlohmann::json result = measure_generation({.model = find_model(o.model),
                                                      .prompts = o.prompts,
                                                      .dtype = weight_dtype(o.dtype),
                                                      .cache_dtype = find_cache_dtype(o.cache_dtype),
                                                      .threads = o.threads,
                                                      .new_tokens = o.new_tokens});
    write_json(result, o.json_file);
  });

  CLI::App* const gpu =
      app.add_subcommand("gpu", "prefill and decoding on an NVIDIA GPU, for tools/gpu-check");
  add_model(gpu);
  gpu->add_option("--dtype", o.dtype, "data type of the weights: float32, float16, bfloat16, int8 or int4");
  gpu->add_option("--json", o.json_file, "write all figures to this file")->required();
  gpu->callback([&o] {
    write_json(measure_gpu({.model = find_model(o.model), .dtype = weight_dtype(o.dtype)}), o.json_file);
  });

  CLI::App* const tune =
      app.add_subcommand("tune", "the fastest form of each product on an NVIDIA GPU, for tools/gpu-check");
  tune->add_option("--shapes", o.shapes, "the model shapes: 124m,smollm2-135m, ...")
      ->delimiter(',')
      ->required();
  tune->add_option("--dtypes", o.dtypes, "data types of the weights: bfloat16,int8, ...")
      ->delimiter(',')
      ->required();
  tune->add_option("--file", o.tuning_file, "file for the table; by default, the one that programs read");
  tune->callback([&o] {
    std::vector<DType> dtypes;
    for (const std::string& name : o.dtypes) dtypes.push_back(weight_dtype(name));
    tune_gpu(o.shapes, dtypes, o.tuning_file);
  });

  CLI::App* const masks = app.add_subcommand("masks", "the cost of constraining texts to a schema");
  add_model(masks);
  add_clock(masks);
  masks->add_option("--schemas", o.prompts, "file with a schema and its texts in each line")->required();
  masks->add_option("--json", o.json_file, "write all figures to this file")->required();
  masks->callback([&o] {
    use_processor_time = o.cpu_time;
    write_json(measure_masks({.model = find_model(o.model), .schemas = o.prompts}), o.json_file);
  });

  CLI::App* const needle = app.add_subcommand("needle", "what a long text loses in smaller caches");
  add_common(needle);
  add_model(needle);
  needle->add_option("--dtype", o.dtype,
                     "data type of the weights: float32, float16, bfloat16, int8 or int4");
  needle->add_option("--text", o.prompts, "file with paragraphs, in which a sentence is hidden")->required();
  needle->add_option("--context", o.contexts, "tokens of this text, such as 1000,4000")
      ->delimiter(',')
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  needle->add_option("--needles", o.needles, "sentences hidden at each depth")->check(CLI::Range(1, 1000));
  needle->callback([&o] {
    write_json(measure_needles({.model = find_model(o.model),
                                .text = o.prompts,
                                .dtype = weight_dtype(o.dtype),
                                .threads = o.threads,
                                .contexts = o.contexts,
                                .needles = o.needles}),
               o.json_file);
  });

  CLI::App* const random =
      app.add_subcommand("random-model", "write a model of a published shape with random weights");
  random->add_option("--shape", o.shape, "the model shape: 124m, smollm2-135m, ...")->required();
  random->add_option("--folder", o.folder, "folder for the model")->required();
  random->callback([&o] { write_random_model(o.shape, o.folder); });

  CLI::App* const pair = app.add_subcommand(
      "random-pair", "write a target of a published shape and a draft of one block, with random weights");
  pair->add_option("--shape", o.shape, "the model shape: 124m, smollm2-135m, ...")->required();
  pair->add_option("--folder", o.folder, "folder for the target")->required();
  pair->add_option("--draft-folder", o.draft_folder, "folder for the draft")->required();
  pair->callback([&o] { write_random_pair(o.shape, o.folder, o.draft_folder); });
}

}  // namespace

int main(int argc, char** argv) {
  platform::reserve_standard_streams();
  Options options;
  CLI::App app("Measures the engine. Start it with tools/bench.");
  try {
    add_commands(app, options);
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help("", CLI::AppFormatMode::All));
    return 0;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "error: {} (--help lists the options)\n", error.what());
    return 2;
  } catch (const UsageError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "error: out of memory\n");
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
