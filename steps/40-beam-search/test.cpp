#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include "beam_search.h"
#include "tests/error_message.h"
#include "tests/plain_beam_search.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const std::vector<int> kPrompt{321, 1682};

RowOptions up_to(int max_new_tokens) {
  return {{.stopping = {.max_new_tokens = max_new_tokens}}};
}

/// The search without a batch: lists every text with one more token, and keeps the best.
std::vector<Scored> plain_search(Model& model, const std::vector<int>& prompt, int num_beams,
                                 int max_new_tokens, float repetition_penalty = 1.0f) {
  std::vector<Scored> beams{{}};
  for (int length = 1; length <= max_new_tokens; ++length) {
    std::vector<Scored> all;
    for (const Scored& beam : beams) {
      if (!beam.tokens.empty() && beam.tokens.back() == model.config().eos_token_id) {
        all.push_back(beam);
        continue;
      }
      const auto logprobs = plain_logprobs(model, prompt, beam.tokens, repetition_penalty);
      for (int token = 0; token < std::ssize(logprobs); ++token) {
        all.push_back({beam.tokens, beam.score + logprobs[token]});
        all.back().tokens.push_back(token);
      }
    }
    std::stable_sort(all.begin(), all.end());
    all.resize(std::min<std::size_t>(num_beams, all.size()));
    beams = all;
  }
  return beams;
}

/// Empty if the beams are these texts with these sums, in this order; otherwise the first difference.
std::string difference_from_sums(const std::vector<Beam>& beams, const std::vector<Scored>& want) {
  if (beams.size() != want.size()) return std::to_string(beams.size()) + " texts";
  for (std::size_t i = 0; i < want.size(); ++i) {
    std::vector<int> tokens;
    for (const Token& token : beams[i].chosen) tokens.push_back(token.id);
    if (tokens != want[i].tokens) return "other tokens in text " + std::to_string(i);
    if (std::abs(beams[i].sum - want[i].score) >= 1e-4) return "another sum of text " + std::to_string(i);
  }
  return "";
}

}  // namespace

TEST_CASE("a search with one beam is the greedy choice") {
  CHECK(difference_from_greedy([](const std::vector<int>& prompt, int count) {
          return tokens_after(prompt.size(),
                              beam_search(tales(), tales_tokenizer(), prompt, up_to(count), {})[0].tokens);
        }) == "");
}

TEST_CASE("three beams find a more likely text than the greedy choice") {
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  const Beam greedy = beam_search(tales(), tales_tokenizer(), kPrompt, up_to(4), {})[0];
  const Beam best = beam_search(tales(), tales_tokenizer(), kPrompt, up_to(4), {.num_beams = 3})[0];
  CHECK(tokenizer.decode(tokens_after(2, greedy.tokens)) == ", who had been");
  CHECK(tokenizer.decode(tokens_after(2, best.tokens)) == " said, \"I");
  CHECK(greedy.sum == doctest::Approx(-6.1117).epsilon(1e-4));
  CHECK(best.sum == doctest::Approx(-5.3937).epsilon(1e-4));
}

TEST_CASE("for every number of beams, the search finds what the plain search finds") {
  int ended = 0, shorter = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Model model = random_model(seed, 11);
    const float repetition_penalty = seed % 2 == 0 ? 1.4f : 1.0f;
    for (const int num_beams : {1, 2, 3, 5}) {
      for (const int length : {1, 2, 12}) {
        CAPTURE(seed);
        CAPTURE(num_beams);
        CAPTURE(length);
        const std::vector<int> prompt{3, static_cast<int>(seed)};
        RowOptions options = up_to(length);
        options.sampling.repetition_penalty = repetition_penalty;
        const std::vector<Beam> got = beam_search(model, tales_tokenizer(), prompt, options, {num_beams});
        CHECK(difference_from_sums(got, plain_search(model, prompt, num_beams, length, repetition_penalty)) ==
              "");
        for (const Beam& beam : got) {
          const int count = static_cast<int>(beam.chosen.size());
          CHECK(tokens_after(2, beam.tokens).size() == beam.chosen.size());
          CHECK(beam.finished == (beam.tokens.back() == 10 ? FinishReason::kEos : FinishReason::kLength));
          if (beam.finished == FinishReason::kLength) CHECK(count == length);
          ended += beam.finished == FinishReason::kEos;
          shorter += count < length;
        }
      }
    }
  }
  CHECK(ended > 30);  // otherwise there was nothing to decide
  CHECK(shorter > 20);
}

TEST_CASE("with as many beams as there are texts the search misses none") {
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    Model model = random_model(seed, 5);
    const std::vector<Scored> all = all_texts(model, {1, 2}, 3, 0.0);  // divided by length^0: the sums
    REQUIRE(all.size() == 1 + 4 + 4 * 4 * 5);
    const auto best = [&](int num_beams) {
      return beam_search(model, tales_tokenizer(), {1, 2}, up_to(3), {num_beams})[0];
    };
    CHECK(tokens_after(2, best(21).tokens) == all[0].tokens);
    CHECK(best(21).sum == doctest::Approx(all[0].score).epsilon(1e-4));
    for (const int fewer : {1, 2}) CHECK(best(fewer).sum <= all[0].score + 1e-4);
    CHECK(difference_from_sums(beam_search(model, tales_tokenizer(), {1, 2}, up_to(3), {100}), all) == "");
  }
}

TEST_CASE("among equal texts, those of the better beam come first, and then those with the lowest ids") {
  int equal = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Model model = model_of_twins(seed);
    for (const int num_beams : {2, 3, 4, 6}) {
      CAPTURE(seed);
      CAPTURE(num_beams);
      const std::vector<Scored> want = plain_search(model, {3, 1}, num_beams, 6);
      CHECK(difference_from_sums(beam_search(model, tales_tokenizer(), {3, 1}, up_to(6), {num_beams}),
                                 want) == "");
      equal += std::abs(want[0].score - want[1].score) < 1e-9;
    }
  }
  CHECK(equal > 10);  // otherwise there was no choice between equals
}

TEST_CASE("a search may have more beams than there are texts") {
  const auto found = beam_search(tales(), tales_tokenizer(), kPrompt, up_to(1), {.num_beams = 1 << 30});
  REQUIRE(std::ssize(found) == tales().config().vocab_size);
  CHECK(found[0].chosen[0].id == argmax(tales().next_logits(kPrompt)));
}

TEST_CASE("a finished beam no longer goes through the model, and a search with only finished beams is over") {
  int narrower = 0, over = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    Model model = random_model(seed, 11);
    std::vector<int> rows;  // rows of each pass: the first has the prompt, then each row grows by a token
    model.on_stage([&](std::string_view name, std::span<const float> values) {
      if (name == "embeddings")
        rows.push_back(static_cast<int>(values.size() / model.config().n_embd / (2 + rows.size())));
    });
    beam_search(model, tales_tokenizer(), {3, 1}, up_to(30), {4});
    model.on_stage(nullptr);
    for (int length = 0; length < std::ssize(rows); ++length) {
      const std::vector<Scored> beams = plain_search(model, {3, 1}, 4, length);
      CHECK(rows[length] == std::ranges::count_if(beams, [](const Scored& beam) {
              return beam.tokens.empty() || beam.tokens.back() != 10;
            }));
      narrower += length > 0 && rows[length] < rows[length - 1];
    }
    over += rows.size() < 30;
  }
  CHECK(narrower > 0);
  CHECK(over > 0);
}

TEST_CASE("a search sees the last tokens that the context holds, and goes on after its end") {
  Model model = random_model(4, 11, 13);
  for (const int length : {1, 12, 13, 14, 40}) {
    std::vector<int> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back(i * i % 7);
    const std::vector<Beam> got = beam_search(model, tales_tokenizer(), prompt, up_to(20), {.num_beams = 3});
    CHECK(difference_from_sums(got, plain_search(model, prompt, 3, 20)) == "");
    const RowOptions endless{{.stopping = {.max_new_tokens = 20, .ignore_eos = true}}};
    CHECK(beam_search(model, tales_tokenizer(), prompt, endless, {.num_beams = 3})[0].chosen.size() == 20);
  }
}

TEST_CASE("a search's presence and frequency penalties skip the prompt, its repetition penalty does not") {
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  const std::vector<int> prompt = tokenizer.encode("The dog saw the cat, and the cat saw the");
  const auto next = [&](const SamplingOptions& sampling) {
    RowOptions options = up_to(1);
    options.sampling = sampling;
    return tokenizer.decode(
        tokens_after(prompt.size(), beam_search(tales(), tokenizer, prompt, options, {})[0].tokens));
  };
  CHECK(next({.presence_penalty = 100.0f}) == " cat");
  CHECK(next({.frequency_penalty = 100.0f}) == " cat");
  CHECK(next({.repetition_penalty = 100.0f}) != " cat");
}

TEST_CASE("beams end at stop sequences, and not before the minimum number of tokens") {
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  RowOptions options = up_to(30);
  options.length.min_new_tokens = 4;
  options.stop = {{"ing", "."}};
  int stopped = 0;
  for (const Beam& beam : beam_search(tales(), tales_tokenizer(), kPrompt, options, {.num_beams = 4})) {
    std::string whole, shown;
    for (const Token& token : beam.chosen) {
      whole += tokenizer.bytes(token.id);
      shown += *token.text;
    }
    CHECK(shown == whole.substr(0, std::min(whole.find("ing"), whole.find("."))));
    CHECK((beam.finished == FinishReason::kStop) == (shown != whole));
    stopped += beam.finished == FinishReason::kStop;
  }
  CHECK(stopped > 1);
  const std::vector<int> ending = reference("beam.json")["cases"][2]["prompt_ids"];
  for (const int least : {0, 6, 7, 10, 12}) {
    RowOptions later = up_to(30);
    later.length.min_new_tokens = least;
    for (const Beam& beam : beam_search(tales(), tales_tokenizer(), ending, later, {.num_beams = 4})) {
      CAPTURE(least);
      CHECK(std::ssize(beam.chosen) > least);
      CHECK(std::ranges::count(beam.tokens, tales().config().eos_token_id) <= 1);
    }
  }
}

TEST_CASE("the log-probabilities of a beam's tokens are the model's own, and add up to its sum") {
  RowOptions options = up_to(20);
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
  CHECK(best.sum <= sum);
}

TEST_CASE("a search has as many rows as beams or texts, and their memory is that of the formula") {
  ModelConfig config = tales().config();
  CHECK(beam_rows(config, 100, 3) == 100);
  CHECK(beam_rows(config, 1 << 30, 1) == 1);  // the prompt alone
  CHECK(beam_rows(config, 1 << 30, 2) == 4096);
  CHECK(beam_rows(config, 4096, 2) == 4096);
  CHECK(beam_rows(config, 4095, 2) == 4095);
  CHECK(beam_rows(config, 1 << 30, 3) == 1 << 24);
  CHECK(beam_rows(config, 1 << 30, 1000) == 1 << 30);
  CHECK(beam_rows(config, 5, 0) == 1);
  config.vocab_size = 1;
  CHECK(beam_rows(config, 5, 1 << 30) == 1);
  Model model = tales_in(DType::kFloat32);
  beam_search(model, tales_tokenizer(), kPrompt, up_to(3), {.num_beams = 50});
  // In the last pass, each row has the prompt and two more tokens. The tokens' ids and positions add less
  // than a thousandth.
  CHECK(static_cast<double>(model.activation_bytes()) ==
        doctest::Approx(static_cast<double>(row_bytes(tales().config(), 50, 4))).epsilon(0.001));
}

TEST_CASE("the program prints the best text of each prompt, and its score is the sum") {
  const ProgramRun run = run_program(
      STAIRCASE_STEP_PROGRAM, "--num-beams 3 --max-new-tokens 4 --json --prompt The --prompt 'The wolf'");
  REQUIRE(run.status == 0);
  const auto sequences = run.json()["sequences"];
  REQUIRE(sequences.size() == 2);
  CHECK(sequences[0]["token_ids"].size() <= 4);
  CHECK(sequences[1]["text"] == " said, \"I");
  CHECK(sequences[1]["score"].get<double>() == doctest::Approx(-5.3937).epsilon(1e-4));
  CHECK(sequences[1]["finish_reason"] == "length");
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--num-beams 2 --echo --max-new-tokens 0 --prompt The").out ==
        "The\n");
}

TEST_CASE("one beam is the loop of the previous steps, which samples with --do-sample") {
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

TEST_CASE("the program prints what beams need, and refuses more than the machine has") {
  const auto said = [](const std::string& arguments, int status) {
    const ProgramRun run = run_program(STAIRCASE_STEP_PROGRAM, "--prompt The " + arguments);
    CHECK(run.status == status);
    return run.err;
  };
  // A row: 256 + 2 * 256 + 2 * 256 + 1024 numbers a token, 3 * 256 more of the last one, and 4,096 logits.
  CHECK(contains(said("--num-beams 20 --max-new-tokens 2", 0),
                 "by formula: 20 beams need 0.5 MiB for a token each, 0.2 MiB for each further one"));
  CHECK(said("--num-beams 20 --max-new-tokens 1", 0).find("beams need") == std::string::npos);
  CHECK(contains(
      said("--num-beams 5000 --max-new-tokens 2 --model " STAIRCASE_SOURCE_TREE "/models/tales-1m", 0),
      "by formula: 4096 beams need "));
  const std::string refusal = said("--num-beams 1100000000", 2);
  CHECK(contains(refusal,
                 "error: --num-beams is 1100000000, but one token per beam needs 30078125 MiB, "
                 "more than the "));
  CHECK(contains(refusal, " MiB of this machine; use fewer beams\n"));
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  CHECK(contains(refusal, fmt::format("more than the {:.0f} MiB of this machine", memory / (1 << 20))));
  const std::int64_t row = std::int64_t{4} * (256 + 2 * 256 + 2 * 256 + 1024 + 3 * 256 + 4096);
  const auto too_many = static_cast<std::int64_t>(1.01 * memory / static_cast<double>(row));
  CHECK(
      contains(said(fmt::format("--num-beams {}", too_many), 2), " MiB of this machine; use fewer beams\n"));
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
