#include <doctest/doctest.h>

#include "beam_search.h"
#include "tests/plain_beam_search.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const std::vector<int> kPrompt{321, 1682};

}  // namespace

TEST_CASE("a search may have more beams than half of what an int holds") {
  RowOptions options;
  options.stopping.max_new_tokens = 1;
  const auto found = beam_search(tales(), tales_tokenizer(), kPrompt, options, {.num_beams = 1 << 30});
  REQUIRE(std::ssize(found) == tales().config().vocab_size);
  CHECK(found[0].chosen[0].id == argmax(tales().next_logits(kPrompt)));
}

TEST_CASE("a search with one beam is the greedy choice") {
  CHECK(difference_from_greedy([](const std::vector<int>& prompt, int count) {
          const RowOptions options{{.stopping = {.max_new_tokens = count}}};
          return tokens_after(prompt.size(),
                              beam_search(tales(), tales_tokenizer(), prompt, options, {})[0].tokens);
        }) == "");
}

TEST_CASE("for every number of beams the search gives what the plain search gives") {
  int ended = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Model model = random_model(seed, 11, 37, static_cast<int>(seed));  // up to six end tokens
    const float repetition_penalty = seed % 2 == 0 ? 1.4f : 1.0f;
    for (const int num_beams : {1, 2, 3, 5}) {
      for (const int length : {1, 2, 12}) {
        CAPTURE(seed);
        CAPTURE(num_beams);
        CAPTURE(length);
        const std::vector<int> prompt{3, static_cast<int>(seed)};
        const RowOptions options{
            {.stopping = {.max_new_tokens = length}, .sampling = {.repetition_penalty = repetition_penalty}}};
        const std::vector<Beam> got = beam_search(model, tales_tokenizer(), prompt, options, {num_beams});
        const PlainSearch plain{
            .num_beams = num_beams, .max_new_tokens = length, .repetition_penalty = repetition_penalty};
        CHECK(difference_from_texts(got, plain_beam_search(model, prompt, plain)) == "");
        for (const Beam& beam : got) {
          ended += beam.finished == FinishReason::kEos;
          CHECK(tokens_after(2, beam.tokens).size() == beam.chosen.size());
          CHECK(beam.score == doctest::Approx(beam.sum / beam.chosen.size()));
        }
      }
    }
  }
  CHECK(ended > 30);  // otherwise there was nothing to decide
}

TEST_CASE("with as many beams as there are texts the search misses none") {
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    Model model = random_model(seed, 5);
    const std::vector<Scored> all = all_texts(model, {1, 2}, 3, 1.0);
    REQUIRE(all.size() == 1 + 4 + 4 * 4 * 5);
    const auto best = [&](int num_beams) {
      return beam_search(model, tales_tokenizer(), {1, 2}, {{.stopping = {.max_new_tokens = 3}}},
                         {num_beams})[0];
    };
    CHECK(tokens_after(2, best(25).tokens) == all[0].tokens);
    CHECK(best(25).score == doctest::Approx(all[0].score).epsilon(1e-4));
    for (const int fewer : {1, 2}) CHECK(best(fewer).score <= all[0].score + 1e-4);
  }
}

TEST_CASE("among equal texts, those of the better beam come first, and then those with the lowest ids") {
  int equal = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Model model = model_of_twins(seed);
    for (const int num_beams : {2, 3, 4, 6}) {
      CAPTURE(seed);
      CAPTURE(num_beams);
      const std::vector<Beam> got =
          beam_search(model, tales_tokenizer(), {3, 1}, {{.stopping = {.max_new_tokens = 6}}}, {num_beams});
      const std::vector<Scored> want =
          plain_beam_search(model, {3, 1}, {.num_beams = num_beams, .max_new_tokens = 6});
      CHECK(difference_from_texts(got, want) == "");
      equal += std::abs(want[0].score - want[1].score) < 1e-9;
    }
  }
  CHECK(equal > 15);  // otherwise there was no choice between equals
}

TEST_CASE("the search finds what Hugging Face's finds, with the same scores") {
  int compared = 0;
  for (const auto& one : reference("beam.json")["cases"]) {
    if (one["length_penalty"] != 1 || one["margin"] < 1e-4) continue;  // ten times the noise of float32
    CAPTURE(one["name"].get<std::string>());
    std::vector<Scored> want;
    for (const auto& beam : one["beams"]) want.push_back({beam["ids"], beam["score"]});
    const RowOptions options{{.stopping = {.max_new_tokens = one["max_new_tokens"]}}};
    CHECK(difference_from_texts(beam_search(tales(), tales_tokenizer(), one["prompt_ids"], options,
                                            {.num_beams = one["num_beams"]}),
                                want) == "");
    ++compared;
  }
  CHECK(compared == 3);
}

TEST_CASE("with four end tokens the search has enough beams, as Hugging Face's") {
  // A Llama of random weights; the end tokens are four of its likeliest continuations. From
  // transformers 5.24.
  const auto llama = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "tests/reference/families/llama-3";
  const TemporaryFolder folder;
  std::filesystem::copy_file(llama / "model.safetensors", folder.path() / "model.safetensors");
  std::filesystem::copy_file(llama / "config.json", folder.path() / "config.json");
  folder.write("generation_config.json", R"({"eos_token_id": [3979, 1641, 3116, 3046]})");
  Model model = Model::load(folder.path(), make_cpu_device(1));
  CHECK(difference_from_texts(beam_search(model, tales_tokenizer(), {1223, 88, 1479, 1699, 679},
                                          {{.stopping = {.max_new_tokens = 8}}}, {.num_beams = 2}),
                              {{{3046}, -5.127034}, {{4050, 3979}, -5.213090}}) == "");
}

TEST_CASE("a search sees the last tokens that the context holds, and goes on after its end") {
  Model model = random_model(4, 11, 13);
  for (const int length : {1, 12, 13, 14, 40}) {
    std::vector<int> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back(i * i % 7);
    const std::vector<Beam> got = beam_search(model, tales_tokenizer(), prompt,
                                              {{.stopping = {.max_new_tokens = 20}}}, {.num_beams = 3});
    const PlainSearch plain{.num_beams = 3, .max_new_tokens = 20};
    CHECK(difference_from_texts(got, plain_beam_search(model, prompt, plain)) == "");
    const RowOptions endless{{.stopping = {.max_new_tokens = 20, .ignore_eos = true}}};
    CHECK(beam_search(model, tales_tokenizer(), prompt, endless, {.num_beams = 3})[0].chosen.size() == 20);
  }
}

TEST_CASE("beams end at stop sequences, and not before the minimum number of tokens") {
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  RowOptions options{{.stopping = {.max_new_tokens = 30}}};
  options.length.min_new_tokens = 4;
  options.stop = {{"ing", "."}};
  int stopped = 0;
  for (const Beam& beam : beam_search(tales(), tales_tokenizer(), kPrompt, options, {.num_beams = 4})) {
    std::string whole, told;
    for (const Token& token : beam.chosen) {
      whole += tokenizer.bytes(token.id);
      told += *token.text;
    }
    CHECK(told == whole.substr(0, std::min(whole.find("ing"), whole.find("."))));
    CHECK((beam.finished == FinishReason::kStop) == (told != whole));
    stopped += beam.finished == FinishReason::kStop;
  }
  CHECK(stopped > 1);
  const std::vector<int> ending = reference("beam.json")["cases"][2]["prompt_ids"];
  for (const int least : {6, 7, 10, 12}) {  // without it, texts of 7, 8, 10 and 11 tokens are found
    RowOptions later{{.stopping = {.max_new_tokens = 30}}};
    later.length.min_new_tokens = least;
    const std::vector<Beam> found = beam_search(tales(), tales_tokenizer(), ending, later, {.num_beams = 4});
    REQUIRE(found.size() == 4);
    std::vector<int> lengths;
    for (const Beam& beam : found) {
      CHECK(std::ranges::count(beam.tokens, tales().config().eos_token_id) <= 1);
      lengths.push_back(static_cast<int>(beam.chosen.size()));
    }
    const int shortest = std::ranges::min(lengths);
    CAPTURE(least);
    CHECK(shortest > least);
    if (least != 12) CHECK(shortest == least + 1);
  }
}

TEST_CASE("the log-probabilities of a beam's tokens are the model's own, and add up to its sum") {
  RowOptions options{{.stopping = {.max_new_tokens = 20}}};
  options.logprobs.count = 2;
  for (const Beam& beam : beam_search(tales(), tales_tokenizer(), kPrompt, options, {.num_beams = 4})) {
    double sum = 0.0;
    for (const Token& token : beam.chosen) sum += *token.logprobs->own;
    CHECK(sum == doctest::Approx(beam.sum).epsilon(1e-5));
    CHECK(beam.chosen[0].logprobs->likeliest.size() == 2);
  }
  options.sampling.repetition_penalty = 1.5f;  // it changes the sums, but not the model's own figures
  const Beam best = beam_search(tales(), tales_tokenizer(), kPrompt, options, {.num_beams = 4})[0];
  double sum = 0.0;
  for (std::size_t i = 0; i < best.chosen.size(); ++i) {
    const std::vector<int> before(best.tokens.begin(), best.tokens.begin() + 2 + static_cast<int>(i));
    const std::vector<float> logprobs = log_softmax(tales().next_logits(before));
    CHECK(*best.chosen[i].logprobs->own == doctest::Approx(logprobs[best.chosen[i].id]).epsilon(1e-4));
    sum += *best.chosen[i].logprobs->own;
  }
  CHECK(best.sum < sum - 0.1);
}

TEST_CASE("the program prints the best text of each prompt with its score") {
  const auto& one = reference("beam.json")["cases"][2];
  const std::string prompt = one["prompt"];
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM,
                  "--num-beams 4 --max-new-tokens 40 --json --prompt The --prompt '" + prompt + "'");
  REQUIRE(run.status == 0);
  const auto sequences = run.json()["sequences"];
  REQUIRE(sequences.size() == 2);
  CHECK(sequences[0]["token_ids"].size() <= 40);
  CHECK(sequences[1]["token_ids"] == one["beams"][0]["ids"]);
  CHECK(sequences[1]["score"].get<double>() ==
        doctest::Approx(one["beams"][0]["score"].get<double>()).epsilon(1e-4));
  CHECK(sequences[1]["finish_reason"] == "eos");
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--num-beams 2 --echo --max-new-tokens 0 --prompt The").out ==
        "The\n");
}

TEST_CASE("one beam is the loop of the previous steps, which samples on request") {
  const auto sequences = [](const std::string& arguments) {
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, "--json --max-new-tokens 8 --prompt The " + arguments);
    REQUIRE(run.status == 0);
    return run.json()["sequences"];
  };
  for (const std::string other : {"", "--do-sample --num-return-sequences 2", "--show-candidates 2"}) {
    CHECK(sequences("--num-beams 1 " + other) == sequences(other));
    CHECK(!sequences("--num-beams 1 " + other)[0].contains("score"));
  }
}

TEST_CASE("options without a meaning in a search are refused in a sentence") {
  const std::string draws =
      "--num-beams searches for one text and does not sample: it cannot be combined with "
      "--num-return-sequences, --do-sample, --temperature, --top-k, --top-p or --show-candidates";
  for (const auto& [wrong, message] : std::vector<std::pair<std::string, std::string>>{
           {"--num-beams 0", "--num-beams is 0, but it must be 1 or more"},
           {"--num-beams -3", "--num-beams is -3, but it must be 1 or more"},
           {"--num-beams 2 --do-sample", draws},
           {"--num-beams 2 --temperature 0.5", draws},
           {"--num-beams 2 --top-k 3", draws},
           {"--num-beams 2 --top-p 0.5", draws},
           {"--num-beams 2 --show-candidates 3", draws},
           {"--num-beams 4 --num-return-sequences 2", draws},
           {"--num-beams 2 --min-new-tokens 9 --max-new-tokens 8",
            "--min-new-tokens is 9, but it must be at most 8, the value of --max-new-tokens"},
           {"--num-return-sequences 2",
            "--num-return-sequences 2 needs --do-sample: without it all of them would be the same"}}) {
    const std::string& arguments = wrong;
    CAPTURE(arguments);
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, arguments);
    CHECK(refused.status == 2);
    CHECK(refused.err == "error: " + message + "\n");
    CHECK(refused.out.empty());
  }
}
