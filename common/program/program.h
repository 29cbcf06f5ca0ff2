// The frame of every step's program: the shared command line, loading, and the way out of an error. Messages
// and errors of a main.cpp pass through it.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/base/options.h"
#include "common/model/model.h"
#include "common/parallel/mpi_ranks.h"
#include "common/parallel/ranks.h"
#include "common/program/loading.h"
#include "common/program/output.h"
#include "common/program/requests.h"

namespace staircase {

/// A step adds its own options and passes a function that takes a model and a prompt.
class Program : public OptionSink {
 public:
  /// A program without prompts has no --prompt, no --json and no --trace.
  explicit Program(const std::string& description, bool has_prompts = true);
  ~Program() override;

  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

  /// Adds --dtype: the data type of the weights. Prints `estimate`, if there is one, before any of them is
  /// read.
  void add_dtype_option(std::function<std::string(const ModelConfig& config, DType dtype)> estimate);

  /// Adds --cache-dtype: the data type of keys and values in a cache, which otherwise follows from --dtype.
  /// It is refused while `use_cache`, if there is one, is off.
  void add_cache_dtype_option(const bool* use_cache = nullptr);

  /// Turns the text of a prompt into tokens. `model` is its folder or .gguf file.
  using EncodePrompt = std::function<std::vector<int>(const std::string& text, const Tokenizer& tokenizer,
                                                      const std::filesystem::path& model)>;

  /// Splits the model among the ranks. Rank 0 reads standard input and writes; the others only compute. The
  /// first error on a rank ends all of them.
  void share_over(Ranks& ranks, Split split = Split::kMatrices);

  /// Sets how --prompt becomes tokens, instead of Tokenizer::encode_prompt.
  void encode_prompts(EncodePrompt encode);

  /// Makes --prompt repeatable and adds --prompts: a file with one prompt per line.
  void add_prompts_option();

  /// Adds --requests: a file of requests, whose prompts replace --prompt and --prompts. `take` gets each
  /// line; one that it rejects with an Error is reported and left out, and the exit status becomes 1.
  void add_requests_option(std::function<void(RequestLine& line)> take);

  /// Adds --draft-model: a second, smaller model with the same vocabulary, loaded next to the first.
  void add_draft_model_option(std::optional<Model>& draft);
  /// The same for several of them, each with the name of the option in front; none may come twice.
  void add_draft_model_option(std::vector<NamedModel>& drafts);

  /// For a program that chats: unless an option is given, the model's generation_config.json sets it. Adds
  /// --generation-config: a file to take instead. With `if_set`, only while that flag is on. Call this after
  /// declaring the options of a text.
  void use_generation_config(const bool* if_set = nullptr);

  /// Whether an option is given. Valid after the command line is read.
  bool has(const std::string& name) const;

  /// Warns about prompts that exceed the model's context.
  void warn_of_long_prompts();

  /// Continues a prompt, and passes each token to `output`.
  using Run = std::function<void(Model& model, const std::vector<int>& prompt, Output& output)>;

  /// Continues all prompts.
  using RunAll = std::function<void(Model& model, const Prompts& prompts, Output& output)>;

  /// Uses the model for something other than continuing prompts.
  using Serve = std::function<void(NamedModel& model, const Tokenizer& tokenizer)>;

  /// Reads the command line, loads the model, runs. Returns the exit status: 0, 1 after a failure, 2 for
  /// wrong usage; an error is one line on standard error.
  int run(int argc, char** argv, const Run& run);
  int run(int argc, char** argv, const RunAll& run);
  int run(int argc, char** argv, const Serve& serve);

  /// The same on rank 0 of those that share the model: the others compute their part of each pass.
  int run(int argc, char** argv, std::unique_ptr<Ranks> ranks, const Serve& serve);

 private:
  struct Impl;

  /// The common part: the command line, `work`, and the way out of an error.
  int run_guarded(int argc, char** argv, const std::function<void()>& work);

  /// Work between the model's configuration and its weights.
  void before_loading(const ModelConfig& config, const Prompts& prompts) const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace staircase
