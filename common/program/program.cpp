#include "common/program/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <thread>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/base/quoted.h"
#include "common/model/generation_config.h"
#include "common/model/lead_passes.h"
#include "common/model/model_folder.h"
#include "common/program/chat_defaults.h"
#include "common/program/command_line.h"
#include "common/program/inputs.h"
#include "common/program/rank_checks.h"
#include "common/program/standard_output.h"
#include "common/text/tokenizer.h"
#include "kernels/platform.h"

namespace staircase {

namespace {

constexpr int kUsualContext = 4096;

}  // namespace

struct Program::Impl {
  explicit Impl(const std::string& description) : command_line(description) {}

  CommandLine command_line;
  std::string model = "tales-6m";
  std::vector<std::string> prompts{""};
  std::string prompt_file, request_file;
  std::vector<OptionTexts> request_options;
  DeviceKind device = DeviceKind::kAuto;
  int threads = available_processors();
  DType dtype = DType::kFloat32;
  std::optional<DType> cache_dtype;
  std::optional<int> context;
  std::vector<std::string> draft_models;
  bool json = false;
  std::string trace_file;
  std::vector<std::string> trace_attention;
  std::optional<TraceFile> trace;
  std::function<void(RequestLine&)> take_request;
  std::function<std::string(const ModelConfig&, DType)> estimate;
  EncodePrompt encode;
  bool warns_of_long_prompts = false;
  std::function<bool()> takes_generation = [] { return false; };
  std::string generation_file;
  std::optional<GenerationConfig> generation;  // the settings that were used, and those that were not
  std::function<void(std::vector<NamedModel>)> take_drafts = [](std::vector<NamedModel>) {};
  std::function<std::size_t()> draft_activation_bytes = [] { return std::size_t{0}; };
  SingleRank single_rank;
  std::unique_ptr<Ranks> own_ranks;
  Ranks* ranks = &single_rank;
  // Its destructor may wait for other ranks, so it must run after an error is reported and before the ranks
  // end.
  std::shared_ptr<Device> used_device;
  Split split = Split::kMatrices;
  bool complete = true;  // whether no request was rejected

  /// Sets the defaults of a chat's options to the recommendations of the model's authors.
  void set_defaults() {
    if (!takes_generation()) return;
    if (!generation_file.empty()) {
      generation = set_chat_defaults(command_line, read_generation_config(generation_file));
      return;
    }
    std::filesystem::path folder;
    try {
      folder = find_model(model);
    } catch (const Error&) {
      return;  // reported later, unless --help needs no model
    }
    generation = set_chat_defaults(command_line, generation_config_of(folder));
  }

  /// Reports which recommendations for this model are used. Servers report their own.
  void report_recommendations(const std::filesystem::path& folder) {
    if (!generation) {
      generation = generation_config_of(folder);
      leave_unread(*generation);
    }
    report_generation_config(*generation, "; options override it");
  }

  /// The prompts of the accepted requests in --requests.
  Prompts requested(const Tokenizer& tokenizer, const ModelConfig& config) {
    RequestTexts requests = read_requests(request_file, tokenizer, config, take_request);
    complete = requests.complete;
    request_options = std::move(requests.options);
    return std::move(requests.prompts);
  }

  /// The texts to continue: --prompt, if it was given, and the lines of --prompts.
  std::vector<std::string> texts() const {
    const bool has_file = command_line.has("--prompts");
    std::vector<std::string> texts;
    if (!has_file || command_line.has("--prompt")) {
      for (const std::string& prompt : prompts) {
        texts.push_back(prompt == "-" && ranks->rank() == 0 ? read_input("--prompt", prompt) : prompt);
      }
    }
    if (has_file && ranks->rank() == 0) {
      for (std::string& prompt : read_prompts(prompt_file)) texts.push_back(std::move(prompt));
    }
    if (ranks->size() > 1) {
      texts.resize(std::stoul(ranks->broadcast(std::to_string(texts.size()))));
      for (std::string& text : texts) text = ranks->broadcast(text);
    }
    return texts;
  }

  std::vector<int> prompt(const std::string& text, const Tokenizer& tokenizer, const ModelConfig& config,
                          const std::filesystem::path& folder) const {
    return encode && !text.empty() ? encode(text, tokenizer, folder) : prompt_tokens(text, tokenizer, config);
  }

  /// Checks the options of --trace, as far as that needs no model.
  void check_trace() const {
    if (command_line.has("--trace") && ranks->size() > 1) {
      throw UsageError("--trace needs one process, which computes all heads, not {} ranks", ranks->size());
    }
    if (command_line.has("--trace") && trace_file == "-") {
      throw UsageError("--trace -: a trace needs the name of a file");
    }
    if (command_line.has("--trace-attention") && !command_line.has("--trace")) {
      throw UsageError("--trace-attention needs --trace, the file it writes to");
    }
  }

  /// Reads the model's configuration and limits its context. A cache is allocated for a whole context, and
  /// current models have a context that few texts need and few machines can hold.
  ModelConfig read_limited_config(const std::filesystem::path& folder) const {
    ModelConfig config = read_config(folder);
    if (context.value_or(1) > config.n_positions) {
      throw UsageError("--context is {}, but {} supports at most {} positions", *context, typed(model),
                       config.n_positions);
    }
    if (!context && config.n_positions > kUsualContext) {
      say(fmt::format("texts are limited to {} tokens; --context allows up to {}, with more memory",
                      kUsualContext, config.n_positions));
    }
    config.n_positions = std::min(config.n_positions, context.value_or(kUsualContext));
    config.cache_dtype = cache_dtype;
    return config;
  }

  Model load(const std::filesystem::path& folder, const ModelConfig& config) {
    used_device = make_device(device, threads);
    Model loaded = Model::load(folder, used_device, dtype, *ranks, split);
    loaded.limit_context(config.n_positions);
    if (config.cache_dtype) loaded.use_cache_dtype(*config.cache_dtype);
    return loaded;
  }

  /// Reports an error and ends. Most errors occur on all ranks alike, so the other ranks give rank 0 a second
  /// to report it for all.
  int fail(const std::string& message, int status) const {
    if (ranks->rank() > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1300));
      quiet() = ranks->is_aborting();
    }
    say_error(ranks->rank() > 0 ? fmt::format("rank {}: {}", ranks->rank(), message) : message);
    ranks->abort(status);
    return status;
  }

  void serve(const Program& program, const Serve& serve) {
    const std::filesystem::path folder = find_model(model);
    const ModelConfig config = read_limited_config(folder);
    const std::vector<NamedFolder> draft_folders = find_drafts(draft_models);
    if (!draft_folders.empty() && ranks->size() > 1)
      throw UsageError("--draft-model needs one process, but mpirun has started {}", ranks->size());
    program.before_loading(config, {});
    NamedModel named{model, load(folder, config)};
    // So that a broken model ends the program here, not at the first request.
    named.model.next_logits(std::vector<int>{std::max(named.model.config().eos_token_id, 0)});
    if (generation) report_recommendations(folder);
    const Tokenizer tokenizer = load_tokenizer(folder, named.model.config());
    take_drafts(load_drafts(draft_folders, named.model, folder, tokenizer));
    lead_passes(named.model, *ranks, [&] { serve(named, tokenizer); });
  }

  void run(const Program& program, const RunAll& run) {
    const bool has_requests = command_line.has("--requests");
    const std::vector<std::string> texts = has_requests ? std::vector<std::string>() : this->texts();
    const std::filesystem::path folder = find_model(model);
    const std::vector<NamedFolder> draft_folders = find_drafts(draft_models);
    const ModelConfig config = read_limited_config(folder);
    std::optional<AttentionHead> head;
    if (!trace_attention.empty()) head = traced_head(trace_attention[0], config, model);
    const Tokenizer tokenizer = load_tokenizer(folder, config);
    Prompts prompts = has_requests ? requested(tokenizer, config) : Prompts();
    for (const std::string& text : texts) prompts.push_back(prompt(text, tokenizer, config, folder));
    if (prompts.empty()) return;  // all requests were rejected
    program.before_loading(config, prompts);
    Model loaded = load(folder, config);
    report_recommendations(folder);
    std::size_t weight_bytes = loaded.weight_bytes();
    std::vector<NamedModel> drafts = load_drafts(draft_folders, loaded, folder, tokenizer);
    for (const NamedModel& draft : drafts) weight_bytes += draft.model.weight_bytes();
    if (command_line.has("--trace")) trace.emplace(trace_file);
    if (trace) {
      loaded.after_pass(trace->watcher(model), head);
      loaded.device().watch_copies(trace->copy_watcher());
      for (NamedModel& draft : drafts) draft.model.after_pass(trace->watcher(draft.name));
    }
    take_drafts(std::move(drafts));

    if (trace)
      trace->start(command_line.values(), loaded.config(), tokenizer, prompts, std::move(request_options));
    Output output(tokenizer, loaded.config().end_tokens, prompts,
                  json ? Output::Form::kJson : Output::Form::kText, trace ? &*trace : nullptr);
    run(loaded, prompts, output);
    output.close(weight_bytes, loaded.activation_bytes() + draft_activation_bytes());
    say(to_string(output.statistics()));
  }
};

Program::Program(const std::string& description, bool has_prompts)
    : impl_(std::make_unique<Impl>(description)) {
  platform::reserve_standard_streams();
  CommandLine& line = impl_->command_line;
  line.add("--model", Path{&impl_->model, "DIR"},
           "folder or .gguf file of a model, or the name of one in models/");
  if (has_prompts) {
    line.add_texts("--prompt", &impl_->prompts, "TEXT", false,
                   "text to continue; - reads it from standard input");
  }
  line.add("--device",
           one_of(&impl_->device,
                  {{"auto", DeviceKind::kAuto}, {"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}}),
           "where to compute");
  line.add("--threads", &impl_->threads, "threads on the CPU", between(1, 1024));
  line.add(
      "--context", &impl_->context,
      fmt::format("maximum number of tokens of a text; default: the model's own, up to {}", kUsualContext),
      at_least(1));
  if (has_prompts) {
    line.add("--json", &impl_->json, "print one JSON object instead of the text");
    line.add("--trace", Path{&impl_->trace_file, "FILE"},
             "write a trace of the run to this file, for "
             "tools/trace");
    line.add_texts("--trace-attention", &impl_->trace_attention, "LAYER,HEAD", false,
                   "also trace what this head attends to; both count from 0");
  }
}

Program::~Program() = default;

void Program::add(const std::string& name, OptionValue value, const std::string& help, Range range) {
  impl_->command_line.add(name, std::move(value), help, range);
}

void Program::share_over(Ranks& ranks, Split split) {
  impl_->ranks = &ranks;
  impl_->split = split;
  quiet() = ranks.rank() > 0;
}

void Program::encode_prompts(EncodePrompt encode) {
  impl_->encode = std::move(encode);
}

void Program::add_dtype_option(std::function<std::string(const ModelConfig&, DType)> estimate) {
  impl_->estimate = std::move(estimate);
  std::vector<std::pair<std::string, DType>> names;
  for (const DType dtype : weight_dtypes()) names.emplace_back(to_string(dtype), dtype);
  impl_->command_line.add("--dtype", one_of(&impl_->dtype, names), "data type of the weights");
}

void Program::add_cache_dtype_option(const bool* use_cache) {
  std::vector<std::pair<std::string, std::optional<DType>>> names = {{"auto", std::nullopt}};
  for (const DType dtype : cache_dtypes()) names.emplace_back(to_string(dtype), dtype);
  impl_->command_line.add("--cache-dtype", one_of(&impl_->cache_dtype, names),
                          "data type of cached keys and values; auto: that of the weights, or bfloat16 for "
                          "int8 and int4");
  rule([impl = impl_.get(), use_cache] {
    if (use_cache == nullptr || *use_cache || !impl->cache_dtype) return;
    throw UsageError("--cache-dtype {} needs a cache; leave out --no-use-cache",
                     to_string(*impl->cache_dtype));
  });
}

void Program::add_prompts_option() {
  impl_->command_line.make_repeatable("--prompt");
  impl_->command_line.add("--prompts", Path{&impl_->prompt_file, "FILE"},
                          "a file with one prompt per line; - is standard input");
}

void Program::add_requests_option(std::function<void(RequestLine&)> take) {
  impl_->take_request = std::move(take);
  impl_->command_line.add("--requests", Path{&impl_->request_file, "FILE"},
                          "a file of requests, one JSON object per line; - is standard input");
  impl_->command_line.exclude("--requests", "--prompt");
  impl_->command_line.exclude("--requests", "--prompts");
}

void Program::add_draft_model_option(std::optional<Model>& draft) {
  impl_->command_line.add_texts("--draft-model", &impl_->draft_models, "DIR", false,
                                "folder or name of a smaller model that proposes tokens");
  impl_->take_drafts = [&draft](std::vector<NamedModel> loaded) {
    if (!loaded.empty()) draft = std::move(loaded[0].model);
  };
  impl_->draft_activation_bytes = [&draft] { return draft ? draft->activation_bytes() : 0; };
}

void Program::add_draft_model_option(std::vector<NamedModel>& drafts) {
  impl_->command_line.add_texts("--draft-model", &impl_->draft_models, "DIR", true,
                                "folder or name of a smaller model that proposes tokens; repeatable");
  impl_->take_drafts = [&drafts](std::vector<NamedModel> loaded) { drafts = std::move(loaded); };
  impl_->draft_activation_bytes = [&drafts] {
    std::size_t bytes = 0;
    for (const NamedModel& draft : drafts) bytes += draft.model.activation_bytes();
    return bytes;
  };
}

void Program::use_generation_config(const bool* if_set) {
  impl_->takes_generation = [if_set] { return if_set == nullptr || *if_set; };
  impl_->command_line.make_negatable("--do-sample");
  impl_->command_line.add(
      "--generation-config", Path{&impl_->generation_file, "FILE"},
      "sampling options in the form of generation_config.json, in place of the model's own");
}

bool Program::has(const std::string& name) const {
  return impl_->command_line.has(name);
}

void Program::warn_of_long_prompts() {
  impl_->warns_of_long_prompts = true;
}

void Program::before_loading(const ModelConfig& config, const Prompts& prompts) const {
  if (impl_->estimate) say(impl_->estimate(config, impl_->dtype));
  apply_model_rules(config);
  if (impl_->warns_of_long_prompts) staircase::warn_of_long_prompts(prompts, config.n_positions);
}

int Program::run(int argc, char** argv, const Run& run) {
  return this->run(argc, argv, RunAll([&](Model& model, const Prompts& prompts, Output& output) {
                     run(model, prompts.at(0), output);
                   }));
}

int Program::run(int argc, char** argv, const RunAll& run) {
  return run_guarded(argc, argv, [&] { impl_->run(*this, run); });
}

int Program::run(int argc, char** argv, const Serve& serve) {
  return run_guarded(argc, argv, [&] { impl_->serve(*this, serve); });
}

int Program::run(int argc, char** argv, std::unique_ptr<Ranks> ranks, const Serve& serve) {
  impl_->own_ranks = std::move(ranks);
  share_over(*impl_->own_ranks);
  return run(argc, argv, serve);
}

int Program::run_guarded(int argc, char** argv, const std::function<void()>& work) {
  try {
    const auto help = impl_->command_line.parse(argc, argv, [&] { impl_->set_defaults(); });
    // Otherwise this rank would end while the others wait for it.
    if (const auto other = impl_->ranks->first_mismatch(help ? 1 : 0)) {
      throw UsageError(
          "rank {} has a different --help from rank 0, where it is {}; all ranks need the same options",
          *other, help ? "true" : "off");
    }
    if (help) {
      print(*help);
      return 0;
    }
    check_connected(*impl_->ranks);
    impl_->check_trace();
    apply_rules();
    check_equal_start(*impl_->ranks, impl_->command_line.values());
    work();
    return impl_->complete ? 0 : 1;
  } catch (const UsageError& error) {
    return impl_->fail(error.what(), 2);
  } catch (const std::bad_alloc&) {
    return impl_->fail("out of memory", 1);
  } catch (const std::exception& error) {
    return impl_->fail(error.what(), 1);
  }
}

}  // namespace staircase
