#include <doctest/doctest.h>

#include <set>

#include "batches.h"
#include "beam_search.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

nlohmann::json sequences(const std::string& arguments) {
  const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--json " + arguments);
  REQUIRE(run.status == 0);
  return run.json()["sequences"];
}

}  // namespace

TEST_CASE("a search may have more beams than half of what an int holds") {
  RowOptions options;
  options.stopping.max_new_tokens = 1;
  const auto found =
      beam_search(tales(), tales_tokenizer(), {321}, options, {.num_beams = 1 << 30}, no_cache());
  REQUIRE(std::ssize(found) == tales().config().vocab_size);
  CHECK(found[0].chosen[0].id == argmax(tales().next_logits(std::vector<int>{321})));
}

TEST_CASE("each prompt is continued by the requested number of texts of its search, the best first") {
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  const Prompts prompts{tokenizer.encode("The"), tokenizer.encode("Once upon a")};
  RowOptions options;
  options.stopping.max_new_tokens = 6;
  const BeamOptions search{.num_beams = 3};
  for (const int wanted : {1, 2, 3}) {
    CAPTURE(wanted);
    RunOptions run;
    run.num_return_sequences = wanted;
    nlohmann::json told;
    {
      const Captured out(stdout);
      Output output(tokenizer, tales().config().eos_token_id, prompts, Output::Form::kJson);
      search_all(tales(), prompts, options, run, search, output);
      output.close(0);
      told = nlohmann::json::parse(out.text())["sequences"];
    }
    REQUIRE(std::ssize(told) == 2 * wanted);
    for (int p = 0; p < 2; ++p) {
      const std::vector<Beam> found =
          beam_search(tales(), tales_tokenizer(), prompts[p], options, search, no_cache());
      for (int i = 0; i < wanted; ++i) {
        const auto& text = told[p * wanted + i];
        CHECK(text["prompt_token_ids"] == prompts[p]);
        CHECK(text["token_ids"] == tokens_after(prompts[p].size(), found[i].tokens));
        CHECK(text["score"].get<double>() == doctest::Approx(found[i].score).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("a search may return as many texts as it has beams, and one more is refused") {
  // The model is missing, so accepted options end with status 1.
  const auto status = [](int texts) {
    return run_program(STAIRCASE_STEP_PROGRAM,
                       fmt::format("--model /nonexistent --num-beams 3 --num-return-sequences {}", texts))
        .status;
  };
  for (const int texts : {1, 2, 3}) CHECK(status(texts) == 1);
  CHECK(status(4) == 2);
}

TEST_CASE("the program prints the best texts of each prompt, best first") {
  const auto& one = reference("beam.json")["cases"][2];
  const std::string prompt = one["prompt"];
  const auto told = sequences(
      "--num-beams 4 --num-return-sequences 2 --max-new-tokens 40 --prompt The --prompt '" + prompt + "'");
  REQUIRE(told.size() == 4);
  CHECK(told[0]["score"] >= told[1]["score"]);
  for (int i = 0; i < 2; ++i) {
    CHECK(told[2 + i]["token_ids"] == one["beams"][i]["ids"]);
    CHECK(told[2 + i]["score"].get<double>() ==
          doctest::Approx(one["beams"][i]["score"].get<double>()).epsilon(1e-4));
    CHECK(told[2 + i]["finish_reason"] == "eos");
    CHECK(told[2 + i]["prompt_token_ids"] == one["prompt_ids"]);
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--num-beams 2 --echo --max-new-tokens 0 --prompt The").out ==
        "The\n");
}

TEST_CASE("all beams are returned if that many are requested, as by Hugging Face") {
  int compared = 0;
  for (const auto& one : reference("beam.json")["cases"]) {
    if (one["length_penalty"] != 1) continue;
    CAPTURE(one["name"].get<std::string>());
    const auto told =
        sequences(fmt::format("--num-beams {0} --num-return-sequences {0} --max-new-tokens 40 --prompt '{1}'",
                              one["num_beams"].get<int>(), one["prompt"].get<std::string>()));
    REQUIRE(told.size() == one["beams"].size());
    for (std::size_t i = 0; i < told.size(); ++i) {
      CHECK(told[i]["token_ids"] == one["beams"][i]["ids"]);
      CHECK(told[i]["text"].get<std::string>() == one["beams"][i]["text"].get<std::string>());
      CHECK(told[i]["score"].get<double>() ==
            doctest::Approx(one["beams"][i]["score"].get<double>()).epsilon(1e-4));
    }
    ++compared;
  }
  CHECK(compared == 3);
}

TEST_CASE("a smaller request gets the first of the texts, and they are all different") {
  const std::string search = "--num-beams 5 --max-new-tokens 12 --prompt The --prompt Once ";
  const auto all = sequences(search + "--num-return-sequences 5");
  REQUIRE(all.size() == 10);
  for (int p = 0; p < 2; ++p) {
    std::set<std::vector<int>> different;
    for (int i = 0; i < 5; ++i) {
      different.insert(all[5 * p + i]["token_ids"].get<std::vector<int>>());
      if (i > 0) CHECK(all[5 * p + i]["score"] <= all[5 * p + i - 1]["score"]);
    }
    CHECK(different.size() == 5);
  }
  for (const int wanted : {1, 2, 4}) {
    CAPTURE(wanted);
    const auto told = sequences(search + fmt::format("--num-return-sequences {}", wanted));
    REQUIRE(std::ssize(told) == 2 * wanted);
    for (int i = 0; i < 2 * wanted; ++i) CHECK(told[i] == all[5 * (i / wanted) + i % wanted]);
  }
}

TEST_CASE("each text has its own score, its own reason to end and its own log-probabilities") {
  const auto told =
      sequences("--num-beams 4 --num-return-sequences 4 --max-new-tokens 8 --logprobs 0 --prompt '" +
                reference("beam.json")["cases"][2]["prompt"].get<std::string>() + "'");
  REQUIRE(told.size() == 4);
  std::set<std::string> reasons;
  for (const auto& text : told) {
    double sum = 0.0;
    std::vector<int> ids;
    for (const auto& token : text["logprobs"]) {
      sum += token["logprob"].get<double>();
      ids.push_back(token["token_id"]);
    }
    CHECK(text["token_ids"] == ids);
    CHECK(text["score"].get<double>() == doctest::Approx(sum / ids.size()).epsilon(1e-4));
    CHECK((text["finish_reason"] == "eos") == (ids.back() == tales().config().eos_token_id));
    reasons.insert(text["finish_reason"]);
  }
  CHECK(reasons == std::set<std::string>{"eos", "length"});  // otherwise there was nothing to distinguish
}

TEST_CASE("the texts of all prompts are numbered in order") {
  for (const std::string prompts : {"--prompt The", "--prompt The --prompt Once"}) {
    const std::string arguments = "--num-beams 2 --num-return-sequences 2 --max-new-tokens 3 " + prompts;
    CAPTURE(arguments);
    std::string want;
    int number = 0;
    for (const auto& text : sequences(arguments)) {
      want +=
          fmt::format("{}[{}]\n{}", number == 0 ? "" : "\n\n", number + 1, text["text"].get<std::string>());
      ++number;
    }
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, arguments).out == want + "\n");
  }
}

TEST_CASE("if the search finds no text, each requested one is empty and has no score") {
  const auto told = sequences("--num-beams 3 --num-return-sequences 2 --max-new-tokens 0 --prompt The");
  REQUIRE(told.size() == 2);
  for (const auto& text : told) {
    CHECK(text["token_ids"].empty());
    CHECK(!text.contains("score"));
  }
}

TEST_CASE("options without a meaning in a search are refused in a sentence") {
  const std::string draws =
      "--num-beams does not sample: it cannot be combined with --do-sample, --temperature, --top-k, "
      "--top-p or --show-candidates";
  for (const auto& [wrong, message] : std::vector<std::pair<std::string, std::string>>{
           {"--num-beams 2 --do-sample", draws},
           {"--num-beams 2 --temperature 0.5", draws},
           {"--num-beams 2 --top-k 3", draws},
           {"--num-beams 2 --top-p 0.5", draws},
           {"--num-beams 2 --show-candidates 3", draws},
           {"--num-beams 2 --num-return-sequences 3 --do-sample", draws},
           {"--num-beams 2 --num-return-sequences 3",
            "--num-return-sequences is 3, but it must be at most 2, the value of --num-beams"},
           {"--num-return-sequences 2",
            "--num-return-sequences 2 needs --do-sample or --num-beams: without them all would be the same"},
           {"--num-beams 1 --num-return-sequences 2",
            "--num-return-sequences 2 needs --do-sample or --num-beams: without them all would be the "
            "same"}}) {
    const std::string& arguments = wrong;
    CAPTURE(arguments);
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, arguments);
    CHECK(refused.status == 2);
    CHECK(refused.err == "error: " + message + "\n");
    CHECK(refused.out.empty());
  }
}

TEST_CASE("more texts than an int can count are refused") {
  const ProgramRun refused =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--num-beams 1500000000 --num-return-sequences 1500000000 --max-batch-size 1500000000 "
                  "--max-new-tokens 1 --prompt a --prompt b");
  CHECK(refused.status == 2);
  CHECK(ends_with(refused.err, "error: 2 times 1500000000 texts is too much: the limit is 2147483647\n"));
}

TEST_CASE("without a search, the same number of texts may be sampled as before") {
  const auto drawn =
      sequences("--do-sample --seed 3 --num-return-sequences 3 --max-new-tokens 5 --prompt The");
  CHECK(drawn.size() == 3);
  for (const auto& text : drawn) CHECK(!text.contains("score"));
}
