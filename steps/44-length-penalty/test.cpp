#include <doctest/doctest.h>

#include "beam_search.h"
#include "tests/plain_beam_search.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const std::vector<int> kPrompt{321, 1682};

std::vector<Beam> found(Model& model, const std::vector<int>& prompt, const RowOptions& options,
                        const BeamOptions& search) {
  StaticKvCache cache(model, search.num_beams);
  return beam_search(model, tales_tokenizer(), prompt, options, search, cache);
}

}  // namespace

TEST_CASE("a search may have more beams than half of what an int holds") {
  RowOptions options;
  options.stopping.max_new_tokens = 1;
  const auto found =
      beam_search(tales(), tales_tokenizer(), kPrompt, options, {.num_beams = 1 << 30}, no_cache());
  REQUIRE(std::ssize(found) == tales().config().vocab_size);
  CHECK(found[0].chosen[0].id == argmax(tales().next_logits(kPrompt)));
}

TEST_CASE("the score is the sum, divided by the length to the power of the penalty") {
  CHECK(beam_score(-6.0, 4, 1.0f) == doctest::Approx(-1.5));
  CHECK(beam_score(-6.0, 4, 0.0f) == doctest::Approx(-6.0));
  CHECK(beam_score(-6.0, 4, 0.5f) == doctest::Approx(-3.0));
  CHECK(beam_score(-6.0, 4, 2.0f) == doctest::Approx(-0.375));
  CHECK(beam_score(-6.0, 4, -1.0f) == doctest::Approx(-24.0));
}

TEST_CASE("the search finds what Hugging Face's finds with each penalty, with the same scores") {
  int compared = 0;
  for (const auto& one : reference("beam.json")["cases"]) {
    if (one["margin"] < 1e-4) continue;  // ten times the noise of float32
    CAPTURE(one["name"].get<std::string>());
    std::vector<Scored> want;
    for (const auto& beam : one["beams"]) want.push_back({beam["ids"], beam["score"]});
    const BeamOptions search{one["num_beams"], one["length_penalty"]};
    const RowOptions options{{.stopping = {.max_new_tokens = one["max_new_tokens"]}}};
    CHECK(difference_from_texts(found(tales(), one["prompt_ids"], options, search), want) == "");
    ++compared;
  }
  CHECK(compared == 6);
}

TEST_CASE("every way to weigh the length gives what the plain search gives") {
  int ended = 0, decided = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Model model = random_model(seed, 11, 37, static_cast<int>(seed));
    for (const int num_beams : {1, 2, 3, 5}) {
      std::set<std::vector<int>> best;
      for (const float length_penalty : {-0.2f, 0.0f, 0.6f, 1.0f, 3.0f}) {
        CAPTURE(seed);
        CAPTURE(num_beams);
        CAPTURE(length_penalty);
        RowOptions options{{.stopping = {.max_new_tokens = 12}}};
        if (seed % 2 == 0) options.sampling.repetition_penalty = 1.4f;
        const std::vector<int> prompt{3, static_cast<int>(seed)};
        const std::vector<Beam> got = found(model, prompt, options, {num_beams, length_penalty});
        const PlainSearch plain{num_beams, 12, length_penalty, "false", options.sampling.repetition_penalty};
        CHECK(difference_from_texts(got, plain_beam_search(model, prompt, plain)) == "");
        for (const Beam& beam : got) ended += beam.finished == FinishReason::kEos;
        best.insert(got[0].tokens);
      }
      decided += best.size() > 1;
    }
  }
  CHECK(ended > 30);    // otherwise there was nothing to decide
  CHECK(decided > 10);  // decided by the penalty
}

TEST_CASE("with as many beams as there are texts the search misses none, whatever the weight of the length") {
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    Model model = random_model(seed, 5);
    for (const float length_penalty : {-1.0f, 0.0f, 1.0f, 3.0f}) {
      const std::vector<Scored> all = all_texts(model, {1, 2}, 3, length_penalty);
      REQUIRE(all.size() == 1 + 4 + 4 * 4 * 5);
      const auto best = [&](int num_beams) {
        return found(model, {1, 2}, {{.stopping = {.max_new_tokens = 3}}}, {num_beams, length_penalty})[0];
      };
      CHECK(tokens_after(2, best(25).tokens) == all[0].tokens);
      CHECK(best(25).score == doctest::Approx(all[0].score).epsilon(1e-4));
      for (const int fewer : {1, 2}) CHECK(best(fewer).score <= all[0].score + 1e-4);
    }
  }
}

TEST_CASE("without a penalty short texts win, and stop sequences end all of them") {
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  RowOptions options{{.stopping = {.max_new_tokens = 30}}};
  options.length.min_new_tokens = 4;
  options.stop = {{"said", ","}};
  int stopped = 0;
  for (const Beam& beam : found(tales(), kPrompt, options, {4, 0.0f})) {
    std::string whole, told;
    for (const Token& token : beam.chosen) {
      whole += tokenizer.bytes(token.id);
      told += *token.text;
    }
    CHECK(told == whole.substr(0, std::min(whole.find("said"), whole.find(","))));
    CHECK((beam.finished == FinishReason::kStop) == (told != whole));
    stopped += beam.finished == FinishReason::kStop;
  }
  CHECK(stopped == 4);
}

TEST_CASE("the penalty reaches the search") {
  const auto& one = reference("beam.json")["cases"][3];
  REQUIRE(one["num_beams"] == 2);
  const std::string prompt = one["prompt"];
  const auto sequences = [&](const std::string& penalty) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM,
                    "--num-beams 2 --num-return-sequences 2 --max-new-tokens 40 --json --prompt '" + prompt +
                        "'" + penalty);
    REQUIRE(run.status == 0);
    return run.json()["sequences"];
  };
  const auto told = sequences(" --length-penalty 0.6");
  for (int i = 0; i < 2; ++i) {
    CHECK(told[i]["token_ids"] == one["beams"][i]["ids"]);
    CHECK(told[i]["score"].get<double>() ==
          doctest::Approx(one["beams"][i]["score"].get<double>()).epsilon(1e-4));
  }
  // Without the option, the score is the mean, as before.
  CHECK(sequences("") == sequences(" --length-penalty 1"));
  CHECK(sequences("")[0]["score"] != told[0]["score"]);
}

TEST_CASE("a penalty out of its range is refused in a sentence, and a useless one causes a warning") {
  for (const auto& [wrong, message] : std::vector<std::pair<std::string, std::string>>{
           {"--num-beams 2 --length-penalty nan",
            "--length-penalty is nan, but it must be between -10 and 10"},
           {"--length-penalty 11", "--length-penalty is 11, but it must be between -10 and 10"},
           {"--length-penalty -10.5", "--length-penalty is -10.5, but it must be between -10 and 10"},
           {"--num-beams 2 --length-penalty 2 --num-return-sequences 3",
            "--num-return-sequences is 3, but it must be at most 2, the value of --num-beams"}}) {
    const std::string& arguments = wrong;
    CAPTURE(arguments);
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, arguments);
    CHECK(refused.status == 2);
    CHECK(refused.err == "error: " + message + "\n");
    CHECK(refused.out.empty());
  }
  const auto said = [](const std::string& options) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --prompt The " + options);
    CHECK(run.status == 0);
    return run.err;
  };
  CHECK(said("--length-penalty 2").find("warning: --length-penalty does nothing without --num-beams\n") !=
        std::string::npos);
  for (const char* fine : {"--num-beams 2 --length-penalty 2", "--length-penalty 1", "--num-beams 2"})
    CHECK(said(fine).find("warning") == std::string::npos);
}
