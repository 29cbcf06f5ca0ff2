#include "common/program/program.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>
#include <sstream>
#include <type_traits>

#include "common/base/error.h"
#include "common/base/json_file.h"
#include "common/base/message.h"
#include "common/model/model_folder.h"
#include "common/text/tokenizer.h"

namespace staircase {
namespace {

/// How often an option may be repeated. Up to 2^25 CLI11 would let several values follow one name, whatever
/// allow_extra_args says; its own "any number" would put dots behind the option in the help.
constexpr int kAnyNumber = 1 << 28;

/// Standard input, byte for byte.
std::string read_standard_input(const std::string& option) {
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = read(STDIN_FILENO, buffer, sizeof buffer);
    if (count > 0) text.append(buffer, static_cast<std::size_t>(count));
    if (count == 0) return text;
    if (count < 0 && errno != EINTR) {
      throw Error("{} -: standard input cannot be read: {}", option, std::strerror(errno));
    }
  }
}

/// What lies in the file that an option names; - is standard input.
std::string read_input(const std::string& option, const std::string& file) {
  if (file.empty()) throw Error("{}: the name is empty", option);
  return file == "-" ? read_standard_input(option) : read_file_or_pipe(file);
}

/// Accepts a number of that type from `least` to `most`, and says what would be right otherwise.
template <typename T>
CLI::Validator number(T least = std::numeric_limits<T>::lowest(), T most = std::numeric_limits<T>::max()) {
  return CLI::Validator(
      [=](const std::string& text) {
        T value{};
        const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = fault == std::errc() && end == text.data() + text.size();
        if (whole && !(value < least || value > most)) return std::string();
        if constexpr (std::is_integral_v<T>) {
          return fmt::format("{} is not a whole number from {} to {}", text, least, most);
        } else {
          return fmt::format("{} is not a number", text);
        }
      },
      "");
}

/// "auto" takes a GPU where there is one to use.
std::shared_ptr<Device> make_device(const std::string& name, int threads) {
  if (name == "cpu") return make_cpu_device(threads);
  try {
    return make_cuda_device();
  } catch (const std::exception& error) {
    if (name == "cuda") throw Error("--device cuda: {}", error.what());
    return make_cpu_device(threads);
  }
}

/// Accepts one of these words. The name of the option's type lists them in the help, so the validator does
/// not.
CLI::Validator one_word(const std::vector<std::string>& words) {
  return CLI::IsMember(words).description("");
}

/// Throws Error when standard output takes no more.
void print_help(const std::string& help) {
  if (std::fputs(help.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    throw Error("standard output takes no more text: {}", std::strerror(errno));
  }
}

}  // namespace

struct Program::Impl {
  explicit Impl(const std::string& description) : app(description) {}

  CLI::App app;
  std::string model = "tales-6m";
  std::vector<std::string> prompts{""};
  std::string prompt_file;
  std::string device = "auto";
  int threads = available_processors();
  std::string dtype = "float32";
  std::vector<std::string> draft_models;
  std::function<void(NamedModel draft)> take_draft;
  bool json = false;
  std::vector<std::function<void()>> range_checks;
  std::function<void(const Gpt2Config&, DType)> tell_before_loading = [](const Gpt2Config&, DType) {};
  std::function<void()> check = [] {};
  CLI::Option* prompts_option = nullptr;
  std::string request_file;
  CLI::Option* request_option = nullptr;
  std::function<void(RequestLine&)> take_request;
  bool failed = false;  // in part: what could be done was done

  /// What the help says behind the name: the kind of value, and which numbers are possible.
  static std::string kind(const char* letter, const Range& range, bool whole = true) {
    return range.is_bounded() ? fmt::format("{} ({})", letter, range.text(whole)) : letter;
  }

  void add(const std::string& name, bool* value, const std::string& help, const Range&) {
    app.add_flag(*value ? fmt::format("{},!--no-{}", name, name.substr(2)) : name, *value, help);
  }
  void add(const std::string& name, int* value, const std::string& help, const Range& range) {
    app.add_option(name, *value, help)->check(number<int>())->type_name(kind("N", range));
  }
  void add(const std::string& name, unsigned* value, const std::string& help, const Range& range) {
    app.add_option(name, *value, help)->check(number<unsigned>())->type_name(kind("N", range));
  }
  void add(const std::string& name, float* value, const std::string& help, const Range& range) {
    app.add_option(name, *value, help)->check(number<float>())->type_name(kind("X", range, false));
  }
  void add(const std::string& name, std::optional<int>* value, const std::string& help, const Range& range) {
    app.add_option(name, *value, help)
        ->check(number<int>())
        ->type_name(kind("N", range))
        ->always_capture_default(false);
  }
  void add(const std::string& name, std::optional<float>* value, const std::string& help,
           const Range& range) {
    app.add_option(name, *value, help)
        ->check(number<float>())
        ->type_name(kind("X", range, false))
        ->always_capture_default(false);
  }
  void add(const std::string& name, std::vector<int>* values, const std::string& help, const Range& range) {
    app.add_option(name, *values, help)
        ->delimiter(',')
        ->expected(1, kAnyNumber)
        ->allow_extra_args(false)
        ->check(number<int>())
        ->type_name(kind("N,N", range))
        ->default_str(fmt::format("{}", fmt::join(*values, ",")));
  }
  void add(const std::string& name, std::vector<std::string>* values, const std::string& help, const Range&) {
    app.add_option(name, *values, help)
        ->expected(1, kAnyNumber)
        ->allow_extra_args(false)
        ->type_name("TEXT")
        ->default_str("");
  }
  void add(const std::string& name, NumberOrAuto value, const std::string& help, const Range& range) {
    const CLI::Validator whole = number<int>();
    app.add_option_function<std::string>(
           name,
           [value](const std::string& text) {
             value.value->reset();
             if (text != "auto") *value.value = std::stoi(text);
           },
           help)
        ->check([whole](const std::string& text) { return text == "auto" ? std::string() : whole(text); })
        ->type_name(kind("N|auto", range))
        ->default_str(*value.value ? std::to_string(**value.value) : "auto");
  }
  void add(const std::string& name, Path value, const std::string& help, const Range&) {
    app.add_option(name, *value.value, help)->type_name("PATH");
  }
  void add(const std::string& name, const Choice& choice, const std::string& help, const Range&) {
    app.add_option_function<std::string>(
           name,
           [choice](const std::string& word) {
             const auto place = std::find(choice.words.begin(), choice.words.end(), word);
             choice.choose(static_cast<std::size_t>(place - choice.words.begin()));
           },
           help)
        ->check(one_word(choice.words))
        ->type_name(fmt::format("{}", fmt::join(choice.words, "|")))
        ->default_str(choice.present);
  }

  /// The arguments in the order in which CLI11 takes them, the last one first. To CLI11 `--name=` has no
  /// value yet, and it would take the next argument for one; so the empty text becomes an argument of its
  /// own.
  std::vector<std::string> reversed_arguments(int argc, char** argv) const {
    std::vector<std::string> arguments;
    for (int i = argc - 1; i > 0; --i) {
      const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
      const CLI::Option* const option = app.get_option_no_throw(name);
      const bool takes_a_value = option != nullptr && option->get_items_expected_max() > 0;
      if (takes_a_value && argument == name + "=") {
        arguments.insert(arguments.end(), {"", name});
      } else {
        arguments.push_back(argument);
      }
    }
    return arguments;
  }

  /// The prompts of the lines of --requests that can be understood.
  std::vector<std::string> request_texts() {
    std::vector<std::string> texts;
    std::istringstream lines(read_input("--requests", request_file));
    int number = 0;
    for (std::string text; std::getline(lines, text);) {
      ++number;
      if (text.find_first_not_of(" \t\r") == text.npos) continue;
      try {
        RequestLine line(text);
        take_request(line);
        texts.push_back(line.prompt());
      } catch (const Error& error) {
        say(fmt::format("error: --requests {}, line {}: {}", request_file, number, error.what()));
        failed = true;
      }
    }
    if (texts.empty()) throw Error("--requests {}: there is no request in it to run", request_file);
    return texts;
  }

  /// The texts to continue: those of --requests, or --prompt, if it was given, and the lines of --prompts.
  std::vector<std::string> texts() {
    if (request_option != nullptr && request_option->count() > 0) return request_texts();
    std::vector<std::string> texts;
    const bool has_prompts = prompts_option != nullptr && prompts_option->count() > 0;
    if (!has_prompts || app.count("--prompt") > 0) {
      for (const std::string& prompt : prompts)
        texts.push_back(prompt == "-" ? read_standard_input("--prompt") : prompt);
    }
    if (!has_prompts) return texts;
    std::istringstream lines(read_input("--prompts", prompt_file));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      texts.push_back(line);
    }
    if (texts.empty()) throw Error("--prompts {}: there is no line in it", prompt_file);
    return texts;
  }

  void add_draft_model_option(int most, const std::string& help, std::function<void(NamedModel draft)> take) {
    take_draft = std::move(take);
    app.add_option("--draft-model", draft_models, help)
        ->expected(1, most)
        ->allow_extra_args(false)
        ->type_name("DIR")
        ->default_str("");
  }

  /// Hands over the draft models and returns the size of their weights in bytes. Throws Error unless each
  /// means the same by every token as the target does.
  std::size_t load_drafts(const Gpt2& target, const std::filesystem::path& target_folder,
                          const Tokenizer& tokenizer) const {
    std::size_t weight_bytes = 0;
    std::set<std::filesystem::path> folders;
    for (const std::string& name : draft_models) {
      const std::filesystem::path folder = find_model(name, "--draft-model");
      if (!folders.insert(std::filesystem::weakly_canonical(folder)).second) {
        throw UsageError("--draft-model {} is given twice, but each model is measured once", name);
      }
      NamedModel draft{name, target.load_beside(folder)};
      const Gpt2Config &ours = target.config(), &theirs = draft.model.config();
      if (!Tokenizer::load(folder).same_tokens(tokenizer) || ours.vocab_size != theirs.vocab_size ||
          ours.eos_token_id != theirs.eos_token_id) {
        throw Error("--draft-model {}: its vocabulary is not that of {}, so it cannot propose tokens to it",
                    folder.string(), target_folder.string());
      }
      weight_bytes += draft.model.weight_bytes();
      take_draft(std::move(draft));
    }
    return weight_bytes;
  }

  void run(const RunAll& run) {
    const std::vector<std::string> prompt_texts = texts();
    const std::filesystem::path folder = find_model(model);
    tell_before_loading(read_config(folder), weight_dtype(dtype));
    Gpt2 gpt2 = Gpt2::load(folder, make_device(device, threads), weight_dtype(dtype));
    const Tokenizer tokenizer = Tokenizer::load(folder);
    if (tokenizer.vocab_size() > gpt2.config().vocab_size) {
      throw Error("{}: the tokenizer knows {} tokens, but the model only {}", folder.string(),
                  tokenizer.vocab_size(), gpt2.config().vocab_size);
    }
    const std::size_t draft_bytes = load_drafts(gpt2, folder, tokenizer);
    Prompts tokens;
    for (const std::string& text : prompt_texts) {
      tokens.push_back(tokenizer.encode(text));
      // Between two texts of its training data the model saw the end-of-text token: from there it begins a
      // new one.
      if (tokens.back().empty()) tokens.back().push_back(gpt2.config().eos_token_id);
    }

    Output output(tokenizer, gpt2.config().eos_token_id, tokens,
                  json ? Output::Form::kJson : Output::Form::kText);
    run(gpt2, tokens, output);
    output.close(gpt2.weight_bytes() + draft_bytes);
    say(to_string(output.statistics()));
  }
};

Program::Program(const std::string& description) : impl_(std::make_unique<Impl>(description)) {
  CLI::App& app = impl_->app;
  app.option_defaults()->always_capture_default();
  app.add_option("--model", impl_->model, "folder of a GPT-2, or the name of one in models/")
      ->type_name("DIR");
  app.add_option("--prompt", impl_->prompts, "text to continue; - reads it from standard input")
      ->type_name("TEXT")
      ->expected(1)
      ->allow_extra_args(false)
      ->default_str("");
  app.add_option("--device", impl_->device, "where to compute")
      ->check(one_word({"auto", "cpu", "cuda"}))
      ->type_name("auto|cpu|cuda");
  app.add_option("--threads", impl_->threads, "threads on the CPU")
      ->check(number(1, 1024))
      ->type_name("N (between 1 and 1024)");
  app.add_flag("--json", impl_->json, "print one JSON object instead of the text");
}

Program::~Program() = default;

void Program::add(const std::string& name, OptionValue value, const std::string& help, Range range) {
  std::visit([&](auto place) { impl_->add(name, place, help, range); }, value);
  impl_->range_checks.emplace_back([=] { require_range(name, value, range); });
}

void Program::add_dtype_option() {
  impl_->app.add_option("--dtype", impl_->dtype, "what the weights are kept in")
      ->check(one_word({"float32", "float16", "bfloat16"}))
      ->type_name("float32|float16|bfloat16");
}

void Program::add_prompts_option() {
  impl_->app.get_option("--prompt")->expected(1, kAnyNumber);
  impl_->prompts_option =
      impl_->app
          .add_option("--prompts", impl_->prompt_file, "a file with one prompt a line; - is standard input")
          ->type_name("FILE");
}

void Program::add_requests_option(std::function<void(RequestLine&)> take) {
  impl_->take_request = std::move(take);
  impl_->request_option = impl_->app
                              .add_option("--requests", impl_->request_file,
                                          "a file of requests, one JSON object a line; - is standard input")
                              ->type_name("FILE")
                              ->excludes("--prompt")
                              ->excludes("--prompts");
}

void Program::add_draft_model_option(std::optional<Gpt2>& draft) {
  impl_->add_draft_model_option(1, "folder or name of a smaller model that proposes tokens",
                                [&draft](NamedModel loaded) { draft = std::move(loaded.model); });
}

void Program::add_draft_model_option(std::vector<NamedModel>& drafts) {
  impl_->add_draft_model_option(kAnyNumber,
                                "folder or name of a smaller model that proposes tokens; repeatable",
                                [&drafts](NamedModel loaded) { drafts.push_back(std::move(loaded)); });
}

void Program::before_loading(std::function<void(const Gpt2Config&, DType)> tell) {
  impl_->tell_before_loading = std::move(tell);
}

void Program::add_check(std::function<void()> check) {
  impl_->check = std::move(check);
}

int Program::run(int argc, char** argv, const Run& run) {
  return this->run(argc, argv, RunAll([&](Gpt2& model, const Prompts& prompts, Output& output) {
                     run(model, prompts.at(0), output);
                   }));
}

int Program::run(int argc, char** argv, const RunAll& run) {
  try {
    try {
      if (argc > 0) impl_->app.name(argv[0]);
      impl_->app.parse(impl_->reversed_arguments(argc, argv));
    } catch (const CLI::CallForHelp&) {
      print_help(impl_->app.help());
      return 0;
    } catch (const CLI::ExtrasError&) {  // its own message has them in reverse
      throw UsageError(
          "not understood: {} (a text of several words needs quotation marks; --help lists the options)",
          fmt::join(impl_->app.remaining(), " "));
    }
    for (const auto& check : impl_->range_checks) check();
    impl_->check();
    impl_->run(run);
    return impl_->failed ? 1 : 0;
  } catch (const CLI::ParseError& error) {
    say(fmt::format("error: {} (--help lists the options)", error.what()));
    return 2;
  } catch (const UsageError& error) {
    say(fmt::format("error: {}", error.what()));
    return 2;
  } catch (const std::bad_alloc&) {
    say("error: out of memory");
    return 1;
  } catch (const std::exception& error) {
    say(fmt::format("error: {}", error.what()));
    return 1;
  }
}

}  // namespace staircase
