#include <doctest/doctest.h>

#include <fstream>

#include "batches.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  return tokenizer;
}

RowOptions max_tokens(int count) {
  RowOptions options;
  options.stopping = {.max_new_tokens = count, .ignore_eos = true};
  return options;
}

/// What `serve_all` prints for these requests as JSON.
nlohmann::json served(const Prompts& prompts, const std::vector<RowOptions>& requests) {
  const Captured out(stdout);
  Output output(tokenizer(), tales().config().end_tokens, prompts, Output::Form::kJson);
  serve_all(tales(), prompts, requests, output);
  output.close(0);
  return nlohmann::json::parse(out.text());
}

/// The requests that these lines become on a command line with these arguments.
std::vector<RowOptions> read(const std::string& lines, std::vector<std::string> arguments = {}) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "requests.jsonl") << lines;
  arguments.insert(arguments.begin(), {"read", "--model", find_model("tales-1m").string(), "--requests",
                                       (folder.path() / "requests.jsonl").string()});
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  RowOptions options;
  RunOptions run;
  std::vector<RowOptions> requests;
  Program program("Reads requests.");
  add_options(program, options);
  add_options(program, run);
  program.add_prompts_option();
  add_requests_option(program, requests, options, run);
  const Captured out(stdout), err(stderr);
  program.run(static_cast<int>(pointers.size()), pointers.data(), [](Model&, const Prompts&, Output&) {});
  return requests;
}

}  // namespace

TEST_CASE("a line has its own options, and the command line sets those that it leaves out") {
  const std::vector<RowOptions> requests =
      read(R"({"prompt": "A", "max_new_tokens": 5, "do_sample": true, "top_k": 3})"
           "\n"
           R"({"prompt": "B", "seed": 4, "stop": ["king", "."]})"
           "\n",
           {"--max-new-tokens", "7", "--seed", "9", "--top-p", "0.5"});
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].stopping.max_new_tokens == 5);
  CHECK(requests[0].sampling.do_sample);
  CHECK(requests[0].sampling.top_k == 3);
  CHECK(requests[0].sampling.seed == 9);
  CHECK(requests[0].sampling.top_p == 0.5f);
  CHECK(requests[0].stop.sequences.empty());
  // The second line inherits nothing from the first.
  CHECK(requests[1].stopping.max_new_tokens == 7);
  CHECK(!requests[1].sampling.do_sample);
  CHECK(!requests[1].sampling.top_k);
  CHECK(requests[1].sampling.seed == 4);
  CHECK(requests[1].stop.sequences == std::vector<std::string>{"king", "."});
}

TEST_CASE("a wrong line becomes no request") {
  const std::vector<RowOptions> requests = read(
      "{\"prompt\": \"A\", \"max_new_tokens\": 1}\n"
      "{\"prompt\": \"A\", \"temperatur\": 1}\n"
      "{\"prompt\": \"A\", \"max_new_tokens\": 2, \"min_new_tokens\": 3}\n"
      "{\"prompt\": \"A\", \"max_new_tokens\": 4}\n");
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].stopping.max_new_tokens == 1);
  CHECK(requests[1].stopping.max_new_tokens == 4);
}

TEST_CASE("each text equals its prompt's text alone, with the options and the seed of its request") {
  std::vector<RowOptions> requests(6, max_tokens(9));
  requests[1].sampling = {.do_sample = true, .seed = 5, .temperature = 1.2f};
  requests[2].sampling = {.do_sample = true, .seed = 5, .temperature = 1.2f};
  requests[3].stop = {{"he"}};
  requests[4].stopping.max_new_tokens = 0;
  requests[5].sampling.repetition_penalty = 1.5f;
  Prompts prompts;
  for (const char* text :
       {"The wolf", "Once upon a time", "Once upon a time", "The king and", "A fox", "The"}) {
    prompts.push_back(tokenizer().encode(text));
  }
  const nlohmann::json sequences = served(prompts, requests)["sequences"];
  REQUIRE(sequences.size() == requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    StaticKvCache cache(tales());
    const Generation want = generate(tales(), tales_tokenizer(), {prompts[i]}, 1, requests[i], 1, cache,
                                     [](int, const Token&) {})[0];
    CHECK(sequences[i]["prompt_token_ids"] == prompts[i]);
    CHECK(sequences[i]["token_ids"] == tokens_after(prompts[i].size(), want.tokens));
    CHECK((sequences[i]["finish_reason"] == "stop") == (want.finish_reason == FinishReason::kStop));
  }
  CHECK(sequences[1]["token_ids"] == sequences[2]["token_ids"]);
}

TEST_CASE(
    "four texts of 6, 2, 2 and 2 tokens take 12 passes, and each is printed before the next one begins") {
  const std::vector<RowOptions> requests{max_tokens(6), max_tokens(2), max_tokens(2), max_tokens(2)};
  const Prompts prompts(4, tokenizer().encode("The wolf"));
  std::vector<int> rows;
  std::vector<std::size_t> printed;  // bytes, as each pass ends
  const Unobserved unobserved;
  const Captured out(stdout);
  tales().on_stage([&](std::string_view name, std::span<const float> values) {
    if (name != "ln_f") return;
    rows.push_back(static_cast<int>(values.size()) / tales().config().n_embd);
    printed.push_back(out.text().size());
  });
  Output output(tokenizer(), tales().config().end_tokens, prompts, Output::Form::kText);
  serve_all(tales(), prompts, requests, output);
  output.close(0);
  CHECK(rows == std::vector<int>(12, 1));
  // Passes 6 and 8 are the first passes of the second and the third text.
  const std::string all = out.text();
  REQUIRE(printed.size() == 12);
  const std::string first = all.substr(0, all.find("\n\n[2]")), second = all.substr(0, all.find("\n\n[3]"));
  CHECK(begins_with(all.substr(0, printed[6]), first));
  CHECK(begins_with(all.substr(0, printed[8]), second));
}

TEST_CASE("the cache is that of one text, and its copies are counted once") {
  const std::vector<int> ids = reference("sliding.json")["ids"];
  const std::vector<int> full(ids.begin(), ids.begin() + 511);
  const nlohmann::json one = served({full}, {max_tokens(4)});
  const nlohmann::json two = served({full, full}, {max_tokens(4), max_tokens(4)});
  const auto number = [](const nlohmann::json& run, const char* name) {
    return run.at("stats").at(name).get<std::size_t>();
  };
  CHECK(number(one, "cache_copied_bytes") > 0);
  CHECK(number(two, "cache_copied_bytes") == 2 * number(one, "cache_copied_bytes"));
  CHECK(number(two, "cache_bytes") == number(one, "cache_bytes"));
}

TEST_CASE("a request of a file equals the same options on the command line") {
  const char* const kLines[][2] = {
      {R"("prompt": "The wolf", "max_new_tokens": 20)", "--prompt 'The wolf' --max-new-tokens 20"},
      {R"("prompt": "", "do_sample": true, "seed": 5, "temperature": 0.8, "top_k": 20, "top_p": 0.9)",
       "--prompt '' --do-sample --seed 5 --temperature 0.8 --top-k 20 --top-p 0.9"},
      {R"("prompt": "Once upon a time", "stop": ["king", "was"])",
       "--prompt 'Once upon a time' --stop king --stop was"},
      {R"("prompt": "The end.", "ignore_eos": true, "min_new_tokens": 3, "presence_penalty": 0.5)",
       "--prompt 'The end.' --ignore-eos --min-new-tokens 3 --presence-penalty 0.5"},
      {R"("prompt": "A fox", "frequency_penalty": 0.5, "repetition_penalty": 1.2, "logprobs": 2)",
       "--prompt 'A fox' --frequency-penalty 0.5 --repetition-penalty 1.2 --logprobs 2"},
      {R"("prompt": "A king", "show_candidates": 2, "on_overflow": "recompute", "refill": 9)",
       "--prompt 'A king' --show-candidates 2 --on-overflow recompute --refill 9"}};
  std::string file, texts;
  for (const auto& [line, arguments] : kLines) file += fmt::format("{{{}}}\n\n", line);
  const std::string all = " --max-new-tokens 30 --json --threads 1";
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--requests -" + all, file);
  REQUIRE(run.status == 0);
  const auto got = run.json();
  REQUIRE(got["sequences"].size() == std::size(kLines));
  for (std::size_t i = 0; i < std::size(kLines); ++i) {
    std::string arguments = kLines[i][1];
    if (i > 0) arguments += " --max-new-tokens 30";
    const ProgramRun one = run_program(STAIRCASE_STEP_PROGRAM, arguments + " --json --threads 1");
    CAPTURE(arguments);
    REQUIRE(one.status == 0);
    CHECK(got["sequences"][i] == one.json()["sequences"][0]);
    texts += fmt::format("{}[{}]\n{}", i == 0 ? "" : "\n\n", i + 1,
                         got["sequences"][i]["text"].get<std::string>());
  }
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "some.jsonl") << file;
  const ProgramRun printed = run_program(
      STAIRCASE_STEP_PROGRAM, "--max-new-tokens 30 --requests " + (folder.path() / "some.jsonl").string());
  CHECK(printed.out == texts + "\n");
}

TEST_CASE("the prompts of requests are shown like those of the command line") {
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --echo --logprobs 2 --max-new-tokens 3",
                  "{\"prompt\": \"The wolf and\"}\n{\"prompt\": \"Once\", \"max_new_tokens\": 0}\n");
  const ProgramRun want =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--prompt 'The wolf and' --prompt Once --json --echo --logprobs 2 --max-new-tokens 3");
  REQUIRE(run.status == 0);
  const auto got = run.json()["sequences"], all = want.json()["sequences"];
  CHECK(got[0] == all[0]);
  CHECK(got[0]["prompt_logprobs"].size() > 1);
  CHECK(got[1]["prompt_logprobs"] == all[1]["prompt_logprobs"]);
  CHECK(got[1]["token_ids"].empty());
  CHECK(contains(run.err, "perplexity of prompt 1"));
}

TEST_CASE("a broken line is named and left out, and the others run") {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--requests - --json --max-new-tokens 4",
                                     "{\"prompt\": \"The wolf\"}\r\n"
                                     "{\"prompt\": \"A\", \"temperatur\": 1}\n"
                                     "{\"prompt\": \"A\", \"temperature\": -1}\n"
                                     "{\"prompt\": \"A\", \"stop\": \"\"}\n"
                                     "\n"
                                     "nonsense\n"
                                     "{\"prompt\": \"A\", \"min_new_tokens\": 5}\n"
                                     "{\"prompt\": \"A\", \"max_new_tokens\": -1}\n"
                                     "{\"prompt\": \"A\", \"arrival\": 1}\n"
                                     "{\"prompt\": \"A\", \"on_overflow\": \"recompute\", \"refill\": 513}\n"
                                     "{\"prompt\": \"The fox\"}");
  CHECK(run.status == 1);
  CHECK(run.json()["sequences"].size() == 2);
  for (const char* part :
       {"--requests -, line 2: unknown key \"temperatur\"", "line 3: temperature is -1",
        "line 4: stop is empty", "line 6: the line is not valid JSON", "line 7: --min-new-tokens is 5",
        "line 8: max_new_tokens is -1", "line 9: unknown key \"arrival\"",
        "line 10: --refill is 513, but it must be at most the model's 512 positions"}) {
    CAPTURE(part);
    CHECK_MESSAGE(run.err.find(part) != std::string::npos, run.err);
  }
  std::string words;
  for (int i = 0; i < 600; ++i) words += " and";
  const ProgramRun longer = run_program(STAIRCASE_STEP_PROGRAM, "--requests - --max-new-tokens 2",
                                        "{\"prompt\": \"" + words + "\"}");
  CHECK(longer.status == 0);
  CHECK(contains(longer.err, "the model sees only the last 512"));
}

TEST_CASE("wrong usage of requests is refused") {
  const std::string request = "{\"prompt\": \"The\"}\n";
  for (const char* wrong : {"--requests - --prompt a", "--requests - --prompts -", "--requests",
                            "--requests - --num-return-sequences 2 --do-sample",
                            "--requests - --no-use-cache", "--requests - --max-batch-size 0"}) {
    CAPTURE(wrong);
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, wrong, request);
    CHECK(run.status == 2);
    CHECK(contains(run.err, "error: "));
    CHECK(run.out == "");
  }
  for (const auto& [input, fault] : {std::pair("", ": it contains no request to run"),
                                     {"\n \n", ": it contains no request to run"},
                                     {"\n{}\n", ", line 2: the line has no prompt"}}) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--requests -", input);
    CHECK(run.status == 1);
    CHECK(run.err == fmt::format("error: --requests -{}\n", fault));
    CHECK(run.out == "");
  }
  for (const char* missing : {"--requests /no/such/file", "--requests /"}) {
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, missing).status == 1);
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--requests ''").status == 2);
}
