// The frame of every step's program: the command line that all steps share, loading, and the way out of an
// error.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/gpt2.h"
#include "common/output.h"
#include "common/requests.h"

namespace staircase {

/// A model and what was typed for it.
struct NamedModel {
  std::string name;
  Gpt2 model;
};

/// A step adds its own options and hands over what it does with a model and a prompt.
class Program {
 public:
  explicit Program(const std::string& description);
  ~Program();

  /// The value that a variable has now is the default; an optional without a value is off.
  void add_option(const std::string& name, int& value, const std::string& help);
  void add_option(const std::string& name, unsigned& value, const std::string& help);
  void add_option(const std::string& name, float& value, const std::string& help);
  /// The name of a file or folder.
  void add_option(const std::string& name, std::string& value, const std::string& help);
  /// Numbers with commas between them.
  void add_option(const std::string& name, std::vector<int>& values, const std::string& help);
  /// Texts, each behind the name of the option once more.
  void add_option(const std::string& name, std::vector<std::string>& values, const std::string& help);
  void add_option(const std::string& name, std::optional<int>& value, const std::string& help);
  void add_option(const std::string& name, std::optional<float>& value, const std::string& help);
  void add_flag(const std::string& name, bool& value, const std::string& help);

  /// A number or "auto", which is no value.
  void add_auto_option(const std::string& name, std::optional<int>& value, const std::string& help);

  /// One of several words, each with its value.
  template <typename Value>
  void add_choice(const std::string& name, Value& value,
                  const std::vector<std::pair<std::string, Value>>& choices, const std::string& help) {
    std::vector<std::string> words;
    std::string present;
    for (const auto& [word, meaning] : choices) {
      words.push_back(word);
      if (meaning == value) present = word;
    }
    add_choice(
        name, words, present, [&value, choices](std::size_t index) { value = choices[index].second; }, help);
  }

  /// Adds --dtype: what the weights are kept in.
  void add_dtype_option();

  /// Makes --prompt repeatable and adds --prompts: one prompt a line of a file.
  void add_prompts_option();

  /// Adds --requests: a file of requests, whose prompts take the place of --prompt and --prompts. `take` gets
  /// each line; one that it refuses by an Error is told of and left out, and the exit status is 1 in the end.
  void add_requests_option(std::function<void(RequestLine& line)> take);

  /// Adds --draft-model: a second, smaller model with the same vocabulary, loaded beside the first.
  void add_draft_model_option(std::optional<Gpt2>& draft);
  /// The same for several of them, each behind the name of the option once more; none may come twice.
  void add_draft_model_option(std::vector<NamedModel>& drafts);

  /// Runs after the command line is read and before anything is loaded; throws UsageError for impossible
  /// values.
  void add_check(std::function<void()> check);

  /// Continues a prompt, telling `output` about each token.
  using Run = std::function<void(Gpt2& model, const std::vector<int>& prompt, Output& output)>;

  /// Continues all prompts.
  using RunAll = std::function<void(Gpt2& model, const Prompts& prompts, Output& output)>;

  /// Reads the command line, loads the model, runs. Returns the exit status: 0, 1 after a failure, 2 for
  /// wrong usage; an error is one line on standard error.
  int run(int argc, char** argv, const Run& run);
  int run(int argc, char** argv, const RunAll& run);

 private:
  void add_choice(const std::string& name, const std::vector<std::string>& words, const std::string& present,
                  const std::function<void(std::size_t index)>& choose, const std::string& help);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace staircase
