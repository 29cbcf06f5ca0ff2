#include <doctest/doctest.h>

#include "beam_search.h"
#include "tests/error_message.h"
#include "tests/plain_beam_search.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const std::vector<std::pair<EarlyStopping, std::string>> kEarlyStopping = {
    {EarlyStopping::kFalse, "false"}, {EarlyStopping::kTrue, "true"}, {EarlyStopping::kNever, "never"}};

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
      beam_search(tales(), tales_tokenizer(), {321}, options, {.num_beams = 1 << 30}, no_cache());
  REQUIRE(std::ssize(found) == tales().config().vocab_size);
  CHECK(found[0].chosen[0].id == argmax(tales().next_logits(std::vector<int>{321})));
}

TEST_CASE("the search still stops where Hugging Face's does, with each penalty") {
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
    Model model = random_model(seed, 11, 37, static_cast<int>(seed));
    for (const int num_beams : {1, 2, 3, 5}) {
      for (const float length_penalty : {-0.2f, 0.0f, 0.6f, 1.0f, 3.0f}) {
        for (const auto& way : kEarlyStopping) {
          const auto& [early_stopping, name] = way;
          CAPTURE(seed);
          CAPTURE(num_beams);
          CAPTURE(length_penalty);
          CAPTURE(way.second);
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
  CHECK(ended > 100);  // otherwise there was nothing to decide
}

TEST_CASE("a search goes on while a text that grows may yet win, by the length that suits it best") {
  // The best unfinished text has a sum of -4 after 4 of 10 tokens.
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
    "a search that stops immediately calls the model least, and one that must be certain calls it "
    "most") {
  int earlier = 0, later = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Model model = random_model(seed, 11);
    std::vector<int> asked;  // how many tokens go through the model
    std::vector<double> best;
    model.on_stage([&](std::string_view name, std::span<const float> values) {
      if (name == "embeddings") asked.back() += static_cast<int>(values.size()) / model.config().n_embd;
    });
    for (const EarlyStopping when : {EarlyStopping::kTrue, EarlyStopping::kFalse, EarlyStopping::kNever}) {
      asked.push_back(0);
      best.push_back(found(model, {3, 1}, {{.stopping = {.max_new_tokens = 30}}}, {2, 1.0f, when})[0].score);
    }
    CAPTURE(seed);
    CHECK(std::ranges::is_sorted(asked));
    CHECK(std::ranges::is_sorted(best));  // a further search finds nothing worse
    earlier += asked[0] < asked[1];
    later += asked[1] < asked[2];
  }
  CHECK(earlier > 0);
  CHECK(later > 0);
}

TEST_CASE("with as many beams as there are texts the search misses none") {
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    Model model = random_model(seed, 5);
    for (const float length_penalty : {0.0f, 1.0f}) {
      const std::vector<Scored> all = all_texts(model, {1, 2}, 3, length_penalty);
      REQUIRE(all.size() == 1 + 4 + 4 * 4 * 5);
      const auto best = [&](int num_beams) {
        return found(model, {1, 2}, {{.stopping = {.max_new_tokens = 3}}},
                     {num_beams, length_penalty, EarlyStopping::kNever})[0];
      };
      CHECK(tokens_after(2, best(25).tokens) == all[0].tokens);
      CHECK(best(25).score == doctest::Approx(all[0].score).epsilon(1e-4));
      for (const int fewer : {1, 2}) CHECK(best(fewer).score <= all[0].score + 1e-4);
    }
  }
}

TEST_CASE("the rule to stop reaches the search together with the penalty") {
  const auto& one = reference("beam.json")["cases"][3];
  REQUIRE(one["num_beams"] == 2);
  const std::string prompt = one["prompt"];
  const ProgramRun run = run_program(
      STAIRCASE_STEP_PROGRAM,
      "--num-beams 2 --length-penalty 0.6 --early-stopping false --max-new-tokens 40 --json --prompt '" +
          prompt + "'");
  REQUIRE(run.status == 0);
  const auto sequence = run.json()["sequences"][0];
  CHECK(sequence["token_ids"] == one["beams"][0]["ids"]);
  CHECK(sequence["score"].get<double>() ==
        doctest::Approx(one["beams"][0]["score"].get<double>()).epsilon(1e-4));
  const auto told = [](const std::string& options) {
    const ProgramRun stopped =
        run_program(STAIRCASE_STEP_PROGRAM,
                    "--num-beams 2 --num-return-sequences 2 --max-new-tokens 60 --json --prompt \"" +
                        reference("beam.json")["cases"][2]["prompt"].get<std::string>() + "\" " + options);
    REQUIRE(stopped.status == 0);
    return stopped.json()["sequences"];
  };
  const auto at_once = told("--early-stopping true"), guess = told("--early-stopping false"),
             certain = told("--early-stopping never");
  CHECK(at_once[0]["score"] < guess[0]["score"]);
  CHECK(guess[0]["score"] == certain[0]["score"]);
  CHECK(guess[1]["score"] < certain[1]["score"]);
  CHECK(told("") == guess);
  CHECK(told("--length-penalty 2 --early-stopping true")[0]["score"] <
        told("--length-penalty 2 --early-stopping never")[0]["score"]);
}

TEST_CASE("an unknown rule is refused, and a useless one causes a warning") {
  const ProgramRun word = run_program(STAIRCASE_STEP_PROGRAM, "--num-beams 2 --early-stopping no");
  CHECK(word.status == 2);
  CHECK(contains(word.err, "--early-stopping"));
  for (const char* idle : {"--length-penalty 2", "--early-stopping true"}) {
    const ProgramRun warned =
        run_program(STAIRCASE_STEP_PROGRAM, fmt::format("--max-new-tokens 1 --prompt The {}", idle));
    CAPTURE(idle);
    CHECK(warned.status == 0);
    CHECK(
        warned.err.find("warning: --length-penalty and --early-stopping do nothing without --num-beams\n") !=
        std::string::npos);
  }
  for (const char* fine : {"--num-beams 2 --length-penalty 2", "--num-beams 2 --early-stopping never"}) {
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, fmt::format("--max-new-tokens 1 --prompt The {}", fine))
              .err.find("warning") == std::string::npos);
  }
}
