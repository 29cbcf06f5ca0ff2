#include <doctest/doctest.h>

#include "beam_search.h"
#include "tests/plain_beam_search.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const std::vector<int> kPrompt{321, 1682};

const std::vector<std::pair<EarlyStopping, std::string>> kEarlyStopping = {
    {EarlyStopping::kFalse, "false"}, {EarlyStopping::kTrue, "true"}, {EarlyStopping::kNever, "never"}};

std::vector<Beam> found(
    Gpt2& model, const std::vector<int>& prompt, const RowOptions& options, const BeamOptions& search,
    const OnBeam& on_beam = [](const Beam&) {}) {
  StaticKvCache cache(model, search.num_beams);
  return beam_search(model, prompt, options, search, &cache, on_beam);
}

}  // namespace

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

TEST_CASE("every way to stop and to weigh the length gives what the plain search gives") {
  int ended = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Gpt2 model = random_model(seed, 11);
    for (const int num_beams : {1, 2, 3, 5}) {
      for (const float length_penalty : {-0.2f, 0.0f, 0.6f, 1.0f, 3.0f}) {
        for (const auto& [early_stopping, name] : kEarlyStopping) {
          CAPTURE(seed);
          CAPTURE(num_beams);
          CAPTURE(length_penalty);
          CAPTURE(name);
          RowOptions options{{.stopping = {.max_new_tokens = 12}}};
          if (seed % 2 == 0) options.sampling.repetition_penalty = 1.4f;
          const std::vector<int> prompt{3, static_cast<int>(seed)};
          const std::vector<Beam> got =
              found(model, prompt, options, {num_beams, length_penalty, early_stopping});
          const PlainSearch plain{num_beams, 12, length_penalty, name, options.sampling.repetition_penalty};
          CHECK(difference_from_texts(got, plain_beam_search(model, prompt, plain)) == "");
          for (const Beam& beam : got) ended += beam.finished == FinishReason::kEos;
        }
      }
    }
  }
  CHECK(ended > 100);  // or nothing was to be decided
}

TEST_CASE("a search goes on while a text that grows may yet win, by the length that suits it best") {
  // The best text that grows has a sum of -4 after 4 of 10 tokens.
  const auto goes_on = [](double ended_score, float length_penalty, EarlyStopping early_stopping) {
    return can_beat(ended_score, -4.0, 4, 10, {2, length_penalty, early_stopping});
  };
  for (const EarlyStopping when : {EarlyStopping::kFalse, EarlyStopping::kNever}) {
    const bool never = when == EarlyStopping::kNever;
    CHECK(goes_on(-0.8, 1.0f, when) == never);  // -4 / 4, or -4 / 10 at the end
    CHECK(goes_on(-1.1, 1.0f, when));
    CHECK(!goes_on(-0.3, 1.0f, when));
    CHECK(goes_on(-20.0, -1.0f, when));  // -4 * 4: more tokens make it worse
    CHECK(!goes_on(-10.0, -1.0f, when));
    CHECK(goes_on(-4.1, 0.0f, when));
    CHECK(!goes_on(-4.0, 0.0f, when));
  }
  CHECK(!goes_on(-100.0, 1.0f, EarlyStopping::kTrue));
}

TEST_CASE(
    "a search that stops at once looks at the fewest beams, and one that wants to be certain at the most") {
  int earlier = 0, later = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Gpt2 model = random_model(seed, 11);
    std::vector<int> seen;
    std::vector<double> best;
    for (const EarlyStopping when : {EarlyStopping::kTrue, EarlyStopping::kFalse, EarlyStopping::kNever}) {
      seen.push_back(0);
      best.push_back(found(model, {3, 1}, {{.stopping = {.max_new_tokens = 30}}}, {2, 1.0f, when},
                           [&](const Beam&) { ++seen.back(); })[0]
                         .score);
    }
    CAPTURE(seed);
    CHECK(std::ranges::is_sorted(seen));
    CHECK(std::ranges::is_sorted(best));  // who looks further finds nothing worse
    earlier += seen[0] < seen[1];
    later += seen[1] < seen[2];
  }
  CHECK(earlier > 0);
  CHECK(later > 0);
}

TEST_CASE("with as many beams as there are texts the search misses none") {
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    Gpt2 model = random_model(seed, 5);
    for (const float length_penalty : {0.0f, 1.0f}) {
      const std::vector<Scored> all = all_texts(model, {1, 2}, 3, length_penalty);
      REQUIRE(all.size() == 1 + 4 + 4 * 4 * 5);
      const auto best = [&](int num_beams) {
        return found(model, {1, 2}, {{.stopping = {.max_new_tokens = 3}}},
                     {num_beams, length_penalty, EarlyStopping::kNever})[0];
      };
      CHECK(behind(2, best(25).tokens) == all[0].tokens);
      CHECK(best(25).score == doctest::Approx(all[0].score).epsilon(1e-4));
      for (const int fewer : {1, 2}) CHECK(best(fewer).score <= all[0].score + 1e-4);
    }
  }
}

TEST_CASE("without a penalty short texts win, and stop sequences end all of them") {
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  RowOptions options{{.stopping = {.max_new_tokens = 30}}};
  options.length.min_new_tokens = 4;
  options.stop = {{"said", ","}, &tokenizer};
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

TEST_CASE("the program tells the best texts of each prompt, best first") {
  const auto& one = reference("beam.json")["cases"][2];
  const std::string prompt = one["prompt"];
  const ProgramRun run = run_program(
      STAIRCASE_STEP_PROGRAM,
      "--num-beams 4 --num-return-sequences 2 --max-new-tokens 40 --json --prompt The --prompt '" + prompt +
          "'");
  REQUIRE(run.status == 0);
  const auto sequences = nlohmann::json::parse(run.out)["sequences"];
  REQUIRE(sequences.size() == 4);
  CHECK(sequences[0]["score"] >= sequences[1]["score"]);
  for (int i = 0; i < 2; ++i) {
    CHECK(sequences[2 + i]["token_ids"] == one["beams"][i]["ids"]);
    CHECK(sequences[2 + i]["score"].get<double>() ==
          doctest::Approx(one["beams"][i]["score"].get<double>()).epsilon(1e-4));
    CHECK(sequences[2 + i]["finish_reason"] == "eos");
  }
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--num-beams 2 --echo --max-new-tokens 0 --prompt The").out ==
        "The\n");
}

TEST_CASE("the penalty and the rule to stop reach the search") {
  const auto& one = reference("beam.json")["cases"][3];
  REQUIRE(one["num_beams"] == 2);
  const std::string prompt = one["prompt"];
  const ProgramRun run = run_program(
      STAIRCASE_STEP_PROGRAM,
      "--num-beams 2 --length-penalty 0.6 --early-stopping false --max-new-tokens 40 --json --prompt '" +
          prompt + "'");
  REQUIRE(run.status == 0);
  const auto sequence = nlohmann::json::parse(run.out)["sequences"][0];
  CHECK(sequence["token_ids"] == one["beams"][0]["ids"]);
  CHECK(sequence["score"].get<double>() ==
        doctest::Approx(one["beams"][0]["score"].get<double>()).epsilon(1e-4));
  const auto score = [](const std::string& early_stopping) {
    const ProgramRun stopped = run_program(
        STAIRCASE_STEP_PROGRAM, "--num-beams 2 --length-penalty 2 --max-new-tokens 60 --json --prompt \"" +
                                    reference("beam.json")["cases"][2]["prompt"].get<std::string>() +
                                    "\" --early-stopping " + early_stopping);
    return nlohmann::json::parse(stopped.out)["sequences"][0]["score"].get<double>();
  };
  CHECK(score("true") < score("never"));
}

TEST_CASE("what has no meaning in a search is refused in a sentence, and what does nothing is told") {
  const std::string draws =
      "--num-beams draws nothing: it goes with none of --do-sample, --temperature, --top-k, --top-p and "
      "--show-candidates";
  for (const auto& [wrong, message] : std::vector<std::pair<std::string, std::string>>{
           {"--num-beams 2 --do-sample", draws},
           {"--num-beams 2 --temperature 0.5", draws},
           {"--num-beams 2 --top-k 3", draws},
           {"--num-beams 2 --top-p 0.5", draws},
           {"--num-beams 2 --show-candidates 3", draws},
           {"--num-beams 2 --num-return-sequences 3",
            "--num-return-sequences is 3, but it must be at most 2, the --num-beams"},
           {"--num-return-sequences 2",
            "--num-return-sequences 2 needs --do-sample or --num-beams: without them all would be the same"},
           {"--num-beams 2 --length-penalty nan",
            "--length-penalty is nan, but it must be between -10 and 10"},
           {"--length-penalty 11", "--length-penalty is 11, but it must be between -10 and 10"},
           {"--length-penalty -10.5", "--length-penalty is -10.5, but it must be between -10 and 10"}}) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, wrong);
    CAPTURE(wrong);
    CHECK(refused.status == 2);
    CHECK(refused.err == "error: " + message + "\n");
    CHECK(refused.out.empty());
  }
  const ProgramRun word = run_program(STAIRCASE_STEP_PROGRAM, "--num-beams 2 --early-stopping no");
  CHECK(word.status == 2);
  CHECK(word.err.find("--early-stopping") != std::string::npos);
  for (const char* idle : {"--length-penalty 2", "--early-stopping true"}) {
    const ProgramRun warned =
        run_program(STAIRCASE_STEP_PROGRAM, fmt::format("--max-new-tokens 1 --prompt The {}", idle));
    CAPTURE(idle);
    CHECK(warned.status == 0);
    CHECK(
        warned.err.find("warning: --length-penalty and --early-stopping do nothing without --num-beams\n") !=
        std::string::npos);
  }
  CHECK(
      run_program(STAIRCASE_STEP_PROGRAM, "--num-beams 2 --length-penalty 2 --max-new-tokens 1 --prompt The")
          .err.find("warning") == std::string::npos);
}
