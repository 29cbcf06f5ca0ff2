// The frame of every step's program: the shared command line, loading, and the handling of errors. A main.cpp
// also gets messages and errors from this header.
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

/// A step adds its own options, and passes a function that gets a model and a prompt.
class Program : public OptionSink {
 public:
  /// Without `has_prompts`, the program has no --prompt, --json or --trace.
  explicit Program(const std::string& description, bool has_prompts = true);
  ~Program() override;

  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

  /// Adds --dtype: the data type of the weights. If `estimate` is set, prints its result before any weight is
  /// read.
  void add_dtype_option(std::function<std::string(const ModelConfig& config, DType dtype)> estimate);

  /// Adds --cache-dtype: the data type of keys and values in a cache, which otherwise follows from --dtype.
  /// Rejects the option if `use_cache` is given and false.
  void add_cache_dtype_option(const bool* use_cache = nullptr);

  /// Turns the text of a prompt into tokens. `model` is the model's folder or .gguf file.
  using EncodePrompt = std::function<std::vector<int>(const std::string& text, const Tokenizer& tokenizer,
                                                      const std::filesystem::path& model)>;

  /// Splits the model among the ranks. Rank 0 reads standard input and writes the output; the other ranks
  /// only compute. The first error on any rank ends all of them.
  void share_over(Ranks& ranks, Split split = Split::kMatrices);

  /// Sets how --prompt becomes tokens, instead of Tokenizer::encode_prompt.
  void encode_prompts(EncodePrompt encode);

  /// Makes --prompt repeatable and adds --prompts: a file with one prompt per line.
  void add_prompts_option();

  /// Adds --requests: a file of requests, whose prompts replace --prompt and --prompts. `take` gets each
  /// line. A line that `take` rejects with an Error is reported and skipped, and the exit status becomes 1.
  void add_requests_option(std::function<void(RequestLine& line)> take);

  /// Adds --draft-model: a second, smaller model with the same vocabulary, loaded next to the first.
  void add_draft_model_option(std::optional<Model>& draft);
  /// Adds --draft-model for several models: the option is repeated for each of them. No model may be named
  /// twice.
  void add_draft_model_option(std::vector<NamedModel>& drafts);

  /// For a chat: the model's generation_config.json sets every option that is not given. Adds
  /// --generation-config, which names a file to use instead. With `if_set`, this applies only if that flag is
  /// on. Call this after declaring the sampling options.
  void use_generation_config(const bool* if_set = nullptr);

  /// Whether an option was given. Valid once the command line has been read.
  bool has(const std::string& name) const;

  /// Warns about prompts that exceed the model's context.
  void warn_of_long_prompts();

  /// A function that continues a prompt and passes each token to `output`.
  using Run = std::function<void(Model& model, const std::vector<int>& prompt, Output& output)>;

  /// A function that continues all prompts.
  using RunAll = std::function<void(Model& model, const Prompts& prompts, Output& output)>;

  /// A function that uses the model for something other than continuing prompts.
  using Serve = std::function<void(NamedModel& model, const Tokenizer& tokenizer)>;

  /// Reads the command line, loads the model and calls the function. Returns the exit status: 0, 1 after a
  /// failure, 2 for wrong usage. An error is one line on standard error.
  int run(int argc, char** argv, const Run& run);
  int run(int argc, char** argv, const RunAll& run);
  int run(int argc, char** argv, const Serve& serve);

  /// Calls the function only on rank 0 of the ranks that share the model. The other ranks compute their part
  /// of each pass.
  int run(int argc, char** argv, std::unique_ptr<Ranks> ranks, const Serve& serve);

 private:
  struct Impl;

  /// The part that all runs share: the command line, `work`, and the handling of errors.
  int run_guarded(int argc, char** argv, const std::function<void()>& work);

  /// Called after the model's configuration is read and before its weights are.
  void before_loading(const ModelConfig& config, const Prompts& prompts) const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace staircase
