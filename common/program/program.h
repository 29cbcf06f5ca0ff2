// The frame of every step's program: the command line that all steps share, loading, and the way out of an
// error. What a main.cpp says and throws comes along.
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

/// A step adds its own options and hands over what it does with a model and a prompt.
class Program : public OptionSink {
 public:
  /// A program without prompts has no --prompt, no --json and no --trace.
  explicit Program(const std::string& description, bool has_prompts = true);
  ~Program() override;

  void add(const std::string& name, OptionValue value, const std::string& help, Range range = {}) override;

  /// Adds --dtype: what the weights are kept in. Prints `estimate`, if there is one, before any of them is
  /// read.
  void add_dtype_option(std::function<std::string(const ModelConfig& config, DType dtype)> estimate);

  /// Turns the text of a prompt into tokens. `model` is its folder or .gguf file.
  using EncodePrompt = std::function<std::vector<int>(const std::string& text, const Tokenizer& tokenizer,
                                                      const std::filesystem::path& model)>;

  /// Shares the model with the other ranks. Rank 0 reads standard input and writes; the others only compute.
  /// The first error of a rank ends all of them.
  void share_over(Ranks& ranks, Split split = Split::kMatrices);

  /// Sets how --prompt becomes tokens, in place of Tokenizer::encode_prompt.
  void encode_prompts(EncodePrompt encode);

  /// Makes --prompt repeatable and adds --prompts: one prompt a line of a file.
  void add_prompts_option();

  /// Adds --requests: a file of requests, whose prompts take the place of --prompt and --prompts. `take` gets
  /// each line; one that it refuses by an Error is told of and left out, and the exit status is 1 in the end.
  void add_requests_option(std::function<void(RequestLine& line)> take);

  /// Adds --draft-model: a second, smaller model with the same vocabulary, loaded beside the first.
  void add_draft_model_option(std::optional<Model>& draft);
  /// The same for several of them, each behind the name of the option once more; none may come twice.
  void add_draft_model_option(std::vector<NamedModel>& drafts);

  /// Whether an option is given. Known once the command line is read.
  bool has(const std::string& name) const;

  /// Warns of prompts that the model cannot see whole.
  void warn_of_long_prompts();

  /// Continues a prompt, telling `output` about each token.
  using Run = std::function<void(Model& model, const std::vector<int>& prompt, Output& output)>;

  /// Continues all prompts.
  using RunAll = std::function<void(Model& model, const Prompts& prompts, Output& output)>;

  /// Does something else with the model than to continue prompts of its own.
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

  /// What all of them have in common: the command line, `work`, and the way out of an error.
  int run_guarded(int argc, char** argv, const std::function<void()>& work);

  /// What is to happen between the model's configuration and its weights.
  void before_loading(const ModelConfig& config, const Prompts& prompts) const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace staircase
