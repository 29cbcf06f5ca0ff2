// The frame of the steps' programs, from outside: step 01, and a program with all that the frame offers, are
// run as a person or a script would run them.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/device.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/tiny_model.h"

namespace staircase {
namespace {

using Tokens = std::vector<int>;
using nlohmann::json;

using Result = ProgramRun;

/// Runs step 01.
Result run(const std::string& arguments, const std::string& input = "") {
  return run_program(STAIRCASE_FIRST_STEP, arguments, input);
}

/// Of the build as well as of the machine.
bool has_gpu() {
  try {
    make_cuda_device();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// Checks that a run fails with that status and one line on standard error which contains `part`.
void check_refused(const std::string& arguments, int status, const std::string& part,
                   const std::string& input = "") {
  const Result result = run(arguments, input);
  CAPTURE(arguments.substr(0, 200));
  CAPTURE(result.err);
  CHECK(result.status == status);
  CHECK(result.out == "");
  CHECK(begins_with(result.err, "error: "));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(contains(result.err, part));
}

json run_json(const std::string& arguments, const std::string& input = "") {
  const Result result = run("--json " + arguments, input);
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  return json::parse(result.out);
}

Tokens prompt_of(const json& object) {
  return object.at("sequences").at(0).at("prompt_token_ids");
}

Tokens tokens_of(const json& object) {
  return object.at("sequences").at(0).at("token_ids");
}

TEST_CASE("wrong usage ends with status 2 and a sentence that names the option") {
  check_refused("--threads 0", 2, "--threads");
  check_refused("--threads -1", 2, "--threads");
  check_refused("--threads 2x", 2, "--threads");
  check_refused("--device tpu", 2, "--device");
  check_refused("--max-new-tokens abc", 2, "--max-new-tokens");
  check_refused("--max-new-tokens 2.5", 2, "--max-new-tokens");
  check_refused("--max-new-tokens 99999999999", 2, "--max-new-tokens");
  check_refused("--no-such-option", 2, "--no-such-option");
  check_refused("something", 2, "something");
  check_refused("--prompt", 2, "--prompt");
}

TEST_CASE("copies that mpirun has started and that would all do the same are refused, by the first alone") {
  setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
  for (const std::string rank : {"0", "1", "2"}) {
    setenv("OMPI_COMM_WORLD_RANK", rank.c_str(), 1);
    const ProgramRun copy = run_program(STAIRCASE_FIRST_STEP, "--prompt A");
    CHECK(copy.status == 2);
    CHECK(copy.out.empty());
    CHECK((copy.err.find("error: mpirun has started 3 copies of this program") == 0) == (rank == "0"));
    CHECK(copy.err.empty() == (rank != "0"));
  }
  unsetenv("OMPI_COMM_WORLD_SIZE");
  unsetenv("OMPI_COMM_WORLD_RANK");
}

TEST_CASE("a failure ends with status 1 and a sentence") {
  check_refused("--model /no/such/folder", 1, "/no/such/folder");
  check_refused("--prompt - <&-", 1, "standard input cannot be read");
  check_refused("--prompt - </", 1, "standard input cannot be read");
}

TEST_CASE("--device cuda reports a build without CUDA") {
  const Result result = run("--device cuda --max-new-tokens 1");
  if (has_gpu()) {
    CHECK(result.status == 0);
    return;
  }
  CHECK(result.status == 1);
  CHECK(begins_with(result.err, "error: --device cuda: "));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
}

TEST_CASE("--help goes to standard output and names every option") {
  const Result result = run("--help");
  CHECK(result.status == 0);
  CHECK(result.err == "");
  for (const char* const option :
       {"--model", "--prompt", "--device", "--threads", "--json", "--max-new-tokens"}) {
    CHECK(contains(result.out, option));
  }
}

TEST_CASE("a pipe gets the new text and nothing else; the statistics go to standard error") {
  const json object = run_json("--prompt 'The queen' --max-new-tokens 20");
  const Result result = run("--prompt 'The queen' --max-new-tokens 20");
  CHECK(result.status == 0);
  CHECK(result.out == object["sequences"][0]["text"].get<std::string>() + "\n");
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(contains(result.err, "20 new tokens"));
}

TEST_CASE("step 01 makes the reference's greedy choices wherever they are clear") {
  std::ifstream file(STAIRCASE_SOURCE_TREE "/tests/reference/greedy.json");
  const json references = json::parse(file);
  int compared = 0;
  for (const auto& reference : references.at("cases")) {
    const auto prompt = reference.at("prompt").get<std::string>();
    const auto want = reference.at("ids").get<Tokens>();
    const auto gaps = reference.at("gaps").get<std::vector<double>>();
    const auto prompt_ids = reference.at("prompt_ids").get<Tokens>();
    if (prompt_ids.empty() || prompt_ids.size() + want.size() > 512) continue;
    const json object = run_json(fmt::format("--prompt - --max-new-tokens {}", want.size()), prompt);
    CAPTURE(reference.at("name").get<std::string>());
    CHECK(prompt_of(object) == prompt_ids);
    const Tokens got = tokens_of(object);
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < want.size() && gaps[i] > 1e-3; ++i) {
      CAPTURE(i);
      CHECK(got[i] == want[i]);
      ++compared;
    }
  }
  CHECK(compared > 100);
}

TEST_CASE("an empty prompt begins a text from the end-of-text token") {
  for (const char* const prompt : {"", "--prompt ''", "--prompt -"}) {
    const json object = run_json(std::string(prompt) + " --max-new-tokens 2");
    CHECK(prompt_of(object) == Tokens{4095});
    CHECK(tokens_of(object).size() == 2);
    CHECK(object["stats"]["prompt_tokens"] == 1);
  }
}

TEST_CASE("standard input is taken byte for byte") {
  const std::string nasty("\n a\tb\r\n\0c \xff\xfe\xc3 \xf0\x9f\x98\x80 \n", 20);
  const Tokens all = prompt_of(run_json("--prompt - --max-new-tokens 0", nasty));
  // What precedes the last line break must be the same, and the line break itself must be there.
  const Tokens newline = prompt_of(run_json("--prompt - --max-new-tokens 0", "\n"));
  REQUIRE(newline.size() == 1);
  CHECK(all.front() == newline[0]);
  CHECK(all.back() == newline[0]);
  // This vocabulary has a token for each byte, and merges of ASCII only. So two bytes that are not a
  // character, and the four of the emoji, are a token each, and no byte can be lost unnoticed.
  CHECK(all.size() >= 14);
  const Tokens zero = prompt_of(run_json("--prompt - --max-new-tokens 0", std::string(1, '\0')));
  CHECK(zero.size() == 1);
  CHECK(std::count(all.begin(), all.end(), zero[0]) == 1);
}

TEST_CASE("a prompt of invalid UTF-8 works, and the output is valid all the same") {
  const json object = run_json("--prompt \"$(printf '\\377\\376hi')\" --max-new-tokens 3");
  CHECK(prompt_of(object).size() >= 3);
  CHECK(tokens_of(object).size() == 3);
}

TEST_CASE("a full disk or a closed output is an error and no crash") {
  check_refused("--prompt hi --max-new-tokens 2 >&-", 1, "standard output cannot be written");
  if (!std::filesystem::exists("/dev/full")) return;
  check_refused("--prompt hi --max-new-tokens 2 >/dev/full", 1, "standard output cannot be written");
  check_refused("--prompt hi --max-new-tokens 2 --json >/dev/full", 1, "standard output cannot be written");
  check_refused("--help >/dev/full", 1, "standard output cannot be written");
}

TEST_CASE("a closed standard error loses the message, not the status") {
  for (const std::string to : {"2>&-", "2>/dev/full"}) {
    CHECK(run("--prompt hi --max-new-tokens 2 " + to).status == 0);
    CHECK(run("--threads 0 " + to).status == 2);
    CHECK(run("--model /no/such/folder " + to).status == 1);
  }
}

TEST_CASE("prompt and new tokens may fill the context, with one more that the model never sees") {
  // " a" is a token, and so is "a" at the start.
  const auto text = [](int tokens) {
    std::string text = "a";
    for (int i = 1; i < tokens; ++i) text += " a";
    return text;
  };
  const auto fits = [&](int prompt_tokens, int new_tokens) {
    const json object =
        run_json(fmt::format("--prompt - --max-new-tokens {}", new_tokens), text(prompt_tokens));
    CHECK(prompt_of(object).size() == static_cast<std::size_t>(prompt_tokens));
    CHECK(tokens_of(object).size() == static_cast<std::size_t>(new_tokens));
  };
  fits(1, 3);
  fits(510, 3);
  fits(512, 1);
  fits(513, 0);
  check_refused("--prompt - --max-new-tokens 3", 2, "03-context-window", text(511));
  check_refused("--prompt - --max-new-tokens 1", 2, "03-context-window", text(513));
  check_refused("--prompt - --max-new-tokens 0", 2, "03-context-window", text(514));
  check_refused("--prompt - --max-new-tokens 2147483647", 2, "03-context-window", text(1));
}

TEST_CASE("--context may be as large as the model's own, and no larger") {
  CHECK(run("--prompt Once --max-new-tokens 1 --context 512").status == 0);
  CHECK(run("--prompt Once --max-new-tokens 1 --context 1").status == 0);
  check_refused("--prompt Once --context 513", 2,
                "--context is 513, but tales-6m supports at most 512 positions");
}

TEST_CASE("a prompt of a megabyte is refused for its length") {
  std::string text;
  while (text.size() < (1u << 20)) text += "once upon a time ";
  check_refused("--prompt -", 2, "03-context-window", text);
  check_refused("--prompt -", 2, "03-context-window", std::string(1 << 20, 'a'));
}

TEST_CASE("the number of threads changes nothing in the output") {
  const Tokens want = tokens_of(run_json("--prompt 'Once' --max-new-tokens 12 --threads 1"));
  for (const int threads : {2, 3, 16}) {
    CHECK(tokens_of(run_json(fmt::format("--prompt 'Once' --max-new-tokens 12 --threads {}", threads))) ==
          want);
  }
}

TEST_CASE("a broken model folder ends in one sentence") {
  const TemporaryFolder folder;
  TinyModel(1, 4096).write(folder.path());
  const std::string option = fmt::format("--model {} --prompt hi", folder.path().string());
  check_refused(option, 1, "vocab.json");
  for (const std::string file : {"vocab.json", "merges.txt"}) {
    std::filesystem::copy_file(STAIRCASE_SOURCE_TREE "/models/tales-1m/" + file, folder.path() / file);
  }
  std::filesystem::resize_file(folder.path() / "model.safetensors", 1000);
  check_refused(option, 1, "model.safetensors");
  std::filesystem::remove(folder.path() / "model.safetensors");
  check_refused(option, 1, "model.safetensors");
  std::ofstream(folder.path() / "config.json") << "{";
  check_refused(option, 1, "config.json");
}

TEST_CASE("a program finds the models of the project or prefix that it was moved with") {
  const TemporaryFolder folder;
  for (const std::string place : {"models/tale", "installed/share/staircase/models/other-tale"}) {
    std::filesystem::create_directories(folder.path() / place);
    std::filesystem::copy(STAIRCASE_SOURCE_TREE "/models/tales-1m", folder.path() / place);
  }
  for (const std::string place : {"build/steps/first", "installed/bin/first"}) {
    const std::filesystem::path program = folder.path() / place;
    std::filesystem::create_directories(program.parent_path());
    std::filesystem::copy_file(STAIRCASE_FIRST_STEP, program);
    const std::string model = place[0] == 'b' ? "tale" : "other-tale";
    const ProgramRun run = run_program(program.string(), "--prompt Once --max-new-tokens 1 --model " + model);
    CHECK_MESSAGE(run.status == 0, run.err);
    CHECK(run_program(STAIRCASE_FIRST_STEP, "--prompt Once --model " + model).status == 1);
  }
}

TEST_CASE("the end of text of a model may have another name, or there is none") {
  const TemporaryFolder folder;
  TinyModel(1, 4096).write(folder.path());
  const std::filesystem::path source = STAIRCASE_SOURCE_TREE "/models/tales-1m";
  std::filesystem::copy_file(source / "merges.txt", folder.path() / "merges.txt");
  json vocabulary = json::parse(std::ifstream(source / "vocab.json"));
  vocabulary.erase("<|endoftext|>");
  vocabulary["</s>"] = 4095;
  folder.write("vocab.json", vocabulary.dump());
  const std::string option = "--max-new-tokens 1 --model " + folder.path().string();
  CHECK(prompt_of(run_json(option + " --prompt ''")) == Tokens{4095});
  CHECK(prompt_of(run_json(option + " --prompt '</s>'")).size() > 1);  // a person's text is text

  json config = json::parse(std::ifstream(folder.path() / "config.json"));
  config["eos_token_id"] = nullptr;
  folder.write("config.json", config.dump());
  CHECK(prompt_of(run_json(option + " --prompt 'a'")).size() == 1);
  check_refused(option + " --prompt ''", 1, "no end-of-text token to begin with");
}

TEST_CASE("a model with more tokens than its tokenizer continues texts, even with tokens that only it has") {
  const TemporaryFolder folder;
  constexpr int kRows = 4160;  // for 4096 tokens: multiples of 64 are common
  TinyModel tiny(1, kRows);
  // Nothing is as likely as one of the others, whatever precedes it.
  constexpr int kLikely = kRows - 2;
  for (float& bias : tiny.tensors["ln_f.bias"].values) bias = 8.0f;
  std::fill_n(tiny.tensors["wte.weight"].values.begin() + kLikely * tiny.n_embd, tiny.n_embd, 0.9921875f);
  tiny.write(folder.path(), "BF16");
  for (const std::string file : {"vocab.json", "merges.txt"}) {
    std::filesystem::copy_file(STAIRCASE_SOURCE_TREE "/models/tales-1m/" + file, folder.path() / file);
  }
  const json object =
      run_json(fmt::format("--model {} --prompt Hi --max-new-tokens 3", folder.path().string()));
  CHECK(tokens_of(object) == Tokens{kLikely, kLikely, kLikely});
  CHECK(object["sequences"][0]["text"] == "");
}

TEST_CASE("a special token in a prompt is text") {
  const Tokens prompt = prompt_of(run_json("--prompt 'a<|endoftext|>b' --max-new-tokens 1"));
  CHECK(prompt.size() > 3);
  CHECK(std::count(prompt.begin(), prompt.end(), 4095) == 0);
}

TEST_CASE("a begin-of-text token precedes a prompt if the tokenizer requires one") {
  const TemporaryFolder folder;
  const std::filesystem::path tales = STAIRCASE_SOURCE_TREE "/models/tales-1m";
  for (const std::string file : {"config.json", "model.safetensors", "vocab.json", "merges.txt"}) {
    std::filesystem::copy_file(tales / file, folder.path() / file);
  }
  folder.write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<|endoftext|>"})");
  const std::string model = fmt::format("--model {} --max-new-tokens 1 ", folder.path().string());
  CHECK(prompt_of(run_json(model + "--prompt Once")) == Tokens{4095, 2054});
  CHECK(prompt_of(run_json(model + "--prompt=")) == Tokens{4095});
  folder.write("added_tokens.json", R"({"<|user|>": 4096})");
  check_refused(model + "--prompt Once", 1, "\"<|user|>\" has the id 4096");
}

TEST_CASE("an option with = and nothing after it has the empty text, and not the next option") {
  const json object = run_json("--prompt= --max-new-tokens 2");
  CHECK(prompt_of(object) == Tokens{4095});
  CHECK(tokens_of(object).size() == 2);
  check_refused("--max-new-tokens= --threads 1", 2, "--max-new-tokens");
  check_refused("--no-such-option= --threads 1", 2, "--no-such-option=");
}

/// Runs a program that offers everything; it prints what it will load before the last line, which marks the
/// end.
Result run_whole(const std::string& arguments, const std::string& input = "") {
  return run_program(STAIRCASE_WHOLE_PROGRAM, arguments, input);
}

/// The same in JSON; it must succeed.
json run_whole_json(const std::string& arguments, const std::string& input = "") {
  const Result result = run_whole("--json " + arguments, input);
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  return json::parse(result.out);
}

/// How many tokens each sequence has.
std::vector<std::size_t> counts_of(const json& object) {
  std::vector<std::size_t> counts;
  for (const json& sequence : object.at("sequences")) counts.push_back(sequence.at("token_ids").size());
  return counts;
}

TEST_CASE("an option that can be repeated takes one text each time") {
  CHECK(run_whole_json("--prompt a --prompt b --stop c --stop d").at("sequences").size() == 2);
  for (const char* const wrong : {"--prompt a zebra", "--prompt a --stop b zebra",
                                  "--draft-model tales-1m zebra", "--benchmark-lengths 1,2 zebra"}) {
    const Result refused = run_whole(wrong);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(contains(refused.err, "error: not understood: zebra ("));
  }
  CHECK(run("--prompt a --prompt b").status == 2);  // there --prompt is for one text
}

TEST_CASE("--prompts adds a prompt for each line of a file") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "prompts").string();
  std::ofstream(file, std::ios::binary) << "b\r\n\na b";
  const auto prompts = [&](const std::string& arguments) {
    std::vector<std::size_t> lengths;
    const json object = run_whole_json(arguments + " --prompts " + file);
    for (const json& sequence : object["sequences"]) lengths.push_back(sequence["prompt_token_ids"].size());
    return lengths;
  };
  CHECK(prompts("") == std::vector<std::size_t>{1, 1, 2});
  std::ofstream(file, std::ios::binary) << "\xef\xbb\xbf"
                                           "b\r\n\na b";  // as an editor may begin it
  CHECK(prompts("") == std::vector<std::size_t>{1, 1, 2});
  CHECK(prompts("--prompt 'a a a'") == std::vector<std::size_t>{3, 1, 1, 2});
  std::ofstream(file, std::ios::trunc).flush();
  const Result empty = run_whole("--prompts " + file);
  CHECK(empty.status == 1);
  CHECK(empty.err == "error: --prompts " + file + ": it contains no prompt\n");
}

TEST_CASE("a line of requests has its own options, and a wrong one is reported by line and key") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "requests").string();
  std::ofstream(file) << R"({"prompt": "a", "max_new_tokens": 3})"
                         "\n"
                         R"({"prompt": "a"})"
                         "\n\n"
                         R"({"prompt": "a", "temperature": -1})"
                         "\n"
                         R"({"prompt": "a", "max_new_tokens": 2.5})"
                         "\n"
                         R"({"prompt": "a", "top": 2})"
                         "\n"
                         R"({"prompt": "a", "max_new_tokens": 0})";
  const Result result = run_whole("--json --max-new-tokens 2 --requests " + file);
  CHECK(result.status == 1);
  CHECK(counts_of(json::parse(result.out)) == std::vector<std::size_t>{3, 2, 0});
  const auto line = [&](int number, const std::string& fault) {
    return fmt::format("error: --requests {}, line {}: {}\n", file, number, fault);
  };
  CHECK(begins_with(
      result.err, line(4, "temperature is -1, but it must be a number of 0 or more") +
                      line(5, "max_new_tokens is 2.5, but it must be a whole number of 0 or more") +
                      line(6, "unknown key \"top\"; known keys: prompt, max_new_tokens, temperature, stop")));

  std::ofstream(file) << "{}\n";
  const Result none = run_whole("--requests " + file);
  CHECK(none.status == 1);
  CHECK(none.err == line(1, "the line has no prompt"));
  std::ofstream(file, std::ios::trunc) << "\n";
  CHECK(run_whole("--requests " + file).err ==
        "error: --requests " + file + ": it contains no request to run\n");
  const Result both = run_whole("--prompt a --requests " + file);
  CHECK(both.status == 2);
  CHECK(both.err == "error: --requests and --prompt cannot be given together (--help lists the options)\n");
}

TEST_CASE("a trace never takes the place of a stream that is closed") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "trace").string();
  const auto lines_of_trace = [&] {
    std::ifstream trace(file);
    int count = 0;
    for (std::string line; std::getline(trace, line); ++count) CHECK(json::accept(line));
    return count;
  };
  const Result silent = run_whole("--max-new-tokens 3 --trace " + file + " >&-");
  CHECK(silent.status == 1);
  CHECK(contains(silent.err, "error: standard output cannot be written"));
  CHECK(lines_of_trace() > 1);
  CHECK(run_whole("--max-new-tokens 3 --trace " + file + " 2>&-").status == 0);
  CHECK(lines_of_trace() > 3);
  CHECK(run_whole("--max-new-tokens 3 --trace " + file + " <&-").status == 0);
  CHECK(contains(run_whole("--prompt - <&-").err, "standard input cannot be read"));
}

TEST_CASE("a file whose every read fails is named") {
  const std::string file = "/proc/self/mem";
  if (!std::filesystem::exists(file)) return;  // no Linux
  const Result result = run_whole("--prompts " + file);
  CHECK(result.status == 1);
  CHECK(begins_with(result.err, "error: " + file + " cannot be read: "));
}

TEST_CASE("prompts and requests are read from a pipe, too") {
  const auto sequences = [](const std::string& option, const std::string& line) {
    const Result result = run_program(
        "/bin/sh", fmt::format("-c 'cat | {} --json {} /dev/stdin'", STAIRCASE_WHOLE_PROGRAM, option),
        line + line);
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
    return json::parse(result.out).at("sequences").size();
  };
  CHECK(sequences("--prompts", "a\n") == 2);
  CHECK(sequences("--requests", "{\"prompt\": \"a\"}\n") == 2);
  CHECK(run_whole_json("--prompts -", "a\nb\n").at("sequences").size() == 2);
  CHECK(run_whole_json("--requests -", "{\"prompt\": \"a\"}\n").at("sequences").size() == 1);
}

TEST_CASE("a file or a model without a name is refused before anything is read") {
  for (const std::string option : {"--model", "--draft-model", "--prompts", "--requests", "--benchmark"}) {
    const Result result = run_whole(option + " ''");
    CHECK(result.status == 2);
    CHECK(result.err == "error: " + option + ": the name is empty\n");
  }
}

TEST_CASE("--help prints an option's values and its current one") {
  const Result result = run_whole("--help");
  CHECK(result.status == 0);
  for (const std::string words :
       {"--model DIR=tales-6m", "--device auto|cpu|cuda=auto", "--threads N (between 1 and 1024)=",
        "--dtype float32|float16|bfloat16|int8|int4=float32", "--on-overflow slide|recompute=slide",
        "--stop TEXT ", "--prompt TEXT Excludes", "--prompts FILE Excludes", "--draft-model DIR ",
        "--context N (1 or more)", "--benchmark DIR ", "--temperature X (a number of 0 or more)=1"}) {
    CAPTURE(words);
    CAPTURE(result.out);
    CHECK(contains(result.out, words));
  }
}

TEST_CASE("a step can look at the configuration and the dtype before anything is loaded") {
  CHECK(begins_with(run_whole("--dtype float16").err, "6 layers in float16\n"));
  const TemporaryFolder folder;
  TinyModel(1, 4096).write(folder.path());
  for (const std::string file : {"vocab.json", "merges.txt"}) {
    std::filesystem::copy_file(STAIRCASE_SOURCE_TREE "/models/tales-1m/" + file, folder.path() / file);
  }
  std::filesystem::resize_file(folder.path() / "model.safetensors", 1000);
  const Result result = run_whole("--model " + folder.path().string());
  CHECK(result.status == 1);
  CHECK(begins_with(result.err, "2 layers in float32\nerror: "));
}

TEST_CASE("rules run before the model is looked up, and those about the model before its weights are read") {
  CHECK(run_whole("--fails --model /nonexistent").err == "error: --fails fails\n");
  CHECK(run_whole("--fails").status == 2);
  const TemporaryFolder folder;
  TinyModel(1, 4096).write(folder.path());
  for (const std::string file : {"vocab.json", "merges.txt"}) {
    std::filesystem::copy_file(STAIRCASE_SOURCE_TREE "/models/tales-1m/" + file, folder.path() / file);
  }
  const std::string with_model = "--model " + folder.path().string();
  CHECK(run_whole(with_model + " --layers 2").status == 0);
  std::filesystem::resize_file(folder.path() / "model.safetensors", 1000);
  const Result refused = run_whole(with_model + " --layers 3");
  CHECK(refused.status == 2);
  CHECK(refused.err == "2 layers in float32\nerror: --layers is 3, but it must be at most the model's 2\n");
}

TEST_CASE(
    "the memory of draft models is included, and each must differ from the others and know the same tokens") {
  const json alone = run_whole_json("--prompt 'Once upon a time'")["stats"];
  const json with_draft = run_whole_json("--prompt 'Once upon a time' --draft-model tales-1m")["stats"];
  CHECK(alone["draft_activation_bytes"] == 0);
  CHECK(alone["activation_bytes"] == alone["own_activation_bytes"]);
  CHECK(alone["activation_bytes"] > 0);
  CHECK(with_draft["draft_activation_bytes"] > 0);
  CHECK(with_draft["activation_bytes"].get<double>() ==
        with_draft["own_activation_bytes"].get<double>() +
            with_draft["draft_activation_bytes"].get<double>());
  CHECK(with_draft["weight_bytes"] > alone["weight_bytes"]);

  const Result twice = run_whole("--draft-model tales-1m --draft-model tales-1m");
  CHECK(twice.status == 2);
  CHECK(contains(twice.err, "--draft-model tales-1m is given twice"));
  const TemporaryFolder other_ends, other_tokens;
  for (const TemporaryFolder* folder : {&other_ends, &other_tokens}) {
    for (const std::string file : {"config.json", "model.safetensors", "vocab.json", "merges.txt"}) {
      std::filesystem::copy_file(STAIRCASE_SOURCE_TREE "/models/tales-1m/" + file, folder->path() / file);
    }
  }
  other_ends.write("generation_config.json", R"({"eos_token_id": [7, 4095]})");
  CHECK(run_whole("--prompt Once --max-new-tokens 1 --draft-model " + other_ends.path().string()).status ==
        0);
  std::ifstream vocabulary(STAIRCASE_SOURCE_TREE "/models/tales-1m/vocab.json");
  json ids = json::parse(vocabulary);
  std::swap(ids.at("a"), ids.at("b"));
  other_tokens.write("vocab.json", ids.dump());
  const Result stranger = run_whole("--draft-model " + other_tokens.path().string());
  CHECK(stranger.status == 1);
  CHECK(contains(stranger.err, "its vocabulary differs from that of"));
}

TEST_CASE("a model's name is looked for beside the program, wherever that was moved") {
  namespace fs = std::filesystem;
  for (const auto& [program, models] :
       {std::pair("build/steps/program", "models"), std::pair("bin/program", "share/staircase/models")}) {
    CAPTURE(std::string(program));
    const TemporaryFolder folder;
    const fs::path moved = folder.path() / program, collection = folder.path() / models;
    fs::create_directories(moved.parent_path());
    fs::create_directories(collection);
    fs::copy_file(STAIRCASE_FIRST_STEP, moved);
    fs::create_directory_symlink(STAIRCASE_SOURCE_TREE "/models/tales-1m", collection / "its-own");
    const Result found = run_program(moved.string(), "--model its-own --prompt Once --max-new-tokens 1");
    CAPTURE(found.err);
    CHECK(found.status == 0);
  }
}

TEST_CASE("words that belong to no option are named in their order") {
  check_refused("--prompt Once upon a time", 2, "error: not understood: upon a time (");
  check_refused("--no-such-option --threads 1", 2, "error: not understood: --no-such-option (");
}

}  // namespace
}  // namespace staircase
