#include <doctest/doctest.h>

#include <set>

#include "beam_search.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

Gpt2 tiny(std::uint32_t seed, int vocab_size, int n_positions = 37) {
  const TemporaryFolder folder;
  TinyModel(seed, vocab_size, n_positions).write(folder.path());
  return Gpt2::load(folder.path(), make_cpu_device(1));
}

std::vector<Beam> found(Gpt2& model, const std::vector<int>& prompt, const GenerateOptions& options,
                        const BeamOptions& search, bool use_cache = true) {
  StaticKvCache cache(model, search.num_beams);
  BeamTree tree;
  return beam_search(model, prompt, options, search, use_cache ? &cache : nullptr, tree);
}

/// A text and its score.
struct Scored {
  std::vector<int> tokens;
  double score = 0.0;
  bool operator<(const Scored& other) const { return score > other.score; }
};

void check_same(const std::vector<Beam>& got, const std::vector<Scored>& want, std::size_t prompt_length) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(behind(prompt_length, got[i].tokens) == want[i].tokens);
    CHECK(std::abs(got[i].score - want[i].score) < 1e-4);
  }
}

/// ln p of each token behind `tokens`, from scratch, as the penalty leaves them.
std::vector<double> logprobs_behind(Gpt2& model, std::vector<int> tokens, const GenerateOptions& options) {
  const auto context = static_cast<std::size_t>(model.config().n_positions);
  const std::span<float> logits =
      model.next_logits(std::span<const int>(tokens).last(std::min(context, tokens.size())));
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  std::vector<double> logprobs;
  for (const float logit : logits) logprobs.push_back(logit - std::log(sum));
  // All are negative: the penalty multiplies each of them.
  for (const int token : std::set<int>(tokens.begin(), tokens.end())) {
    logprobs[token] *= options.sampling.repetition_penalty;
  }
  return logprobs;
}

/// The search as Hugging Face writes it: arrays of fixed sizes, and -1e9 for what is not there.
std::vector<Scored> plain_search(Gpt2& model, const std::vector<int>& prompt, const GenerateOptions& options,
                                 const BeamOptions& search) {
  const auto n = static_cast<std::size_t>(search.num_beams);
  std::vector<Scored> running(n, {{}, -1e9}), ended(n, {{}, -1e9});
  running[0].score = 0.0;
  for (int length = 1; length <= options.max_new_tokens; ++length) {
    std::vector<Scored> all;
    for (const Scored& beam : running) {
      std::vector<int> tokens = prompt;
      tokens.insert(tokens.end(), beam.tokens.begin(), beam.tokens.end());
      const std::vector<double> logprobs = logprobs_behind(model, tokens, options);
      for (int token = 0; token < std::ssize(logprobs); ++token) {
        std::vector<int> longer = beam.tokens;
        longer.push_back(token);
        all.push_back({longer, beam.score + logprobs[token]});
      }
    }
    std::stable_sort(all.begin(), all.end());
    all.resize(2 * n);
    running.clear();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool ends =
          all[i].tokens.back() == model.config().eos_token_id || length == options.max_new_tokens;
      if (!ends && running.size() < n) running.push_back(all[i]);
      if (ends && i < n) {
        ended.push_back({all[i].tokens, all[i].score / std::pow(length, search.length_penalty)});
      }
    }
    std::stable_sort(ended.begin(), ended.end());
    ended.resize(n);
    if (running.empty()) break;
    const bool full = ended.back().score > -1e8;
    const bool longest = search.early_stopping == EarlyStopping::kNever && search.length_penalty > 0;
    const double hope =
        running[0].score / std::pow(longest ? options.max_new_tokens : length, search.length_penalty);
    if (full && (search.early_stopping == EarlyStopping::kTrue || hope <= ended.back().score)) break;
  }
  return ended;
}

const std::vector<int> kPrompt{321, 1682};
constexpr EarlyStopping kEarlyStopping[] = {EarlyStopping::kFalse, EarlyStopping::kTrue,
                                            EarlyStopping::kNever};

}  // namespace

TEST_CASE("the search finds what Hugging Face's finds, with the same scores") {
  int compared = 0;
  for (const auto& one : reference("beam.json")["cases"]) {
    if (one["margin"] < 1e-4) continue;  // ten times the noise of float32
    CAPTURE(one["name"].get<std::string>());
    const std::vector<int> prompt = one["prompt_ids"];
    std::vector<Scored> want;
    for (const auto& beam : one["beams"]) want.push_back({beam["ids"], beam["score"]});
    const BeamOptions search{one["num_beams"], one["length_penalty"]};
    check_same(found(tales(), prompt, {.max_new_tokens = one["max_new_tokens"]}, search), want,
               prompt.size());
    ++compared;
  }
  CHECK(compared == 6);
}

TEST_CASE("every way to stop and to weigh the length gives what the plain search gives") {
  int lengths = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Gpt2 model = tiny(seed, 11);
    for (const int num_beams : {1, 2, 3, 5}) {
      for (const float length_penalty : {-0.2f, 0.0f, 0.6f, 1.0f, 3.0f}) {
        for (const EarlyStopping early_stopping : kEarlyStopping) {
          GenerateOptions options{.max_new_tokens = 12};
          if (seed % 2 == 0) options.sampling.repetition_penalty = 1.4f;
          const BeamOptions search{num_beams, length_penalty, early_stopping};
          const std::vector<int> prompt{3, static_cast<int>(seed)};
          CAPTURE(seed);
          CAPTURE(num_beams);
          CAPTURE(length_penalty);
          const std::vector<Beam> got = found(model, prompt, options, search);
          check_same(got, plain_search(model, prompt, options, search), prompt.size());
          for (const Beam& beam : got) lengths += beam.finished == FinishReason::kEos;
        }
      }
    }
  }
  CHECK(lengths > 100);  // or nothing was to be decided
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

TEST_CASE("with as many beams as there are texts the search misses none") {
  const int vocab_size = 5, depth = 3, num_beams = 25;
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    Gpt2 model = tiny(seed, vocab_size);
    const std::vector<int> prompt{1, 2};
    for (const float length_penalty : {0.0f, 1.0f}) {
      std::vector<Scored> all;
      const std::function<void(std::vector<int>, double)> grow = [&](std::vector<int> text, double sum) {
        const int length = static_cast<int>(text.size());
        if (length == depth || (length > 0 && text.back() == model.config().eos_token_id)) {
          all.push_back({text, sum / std::pow(length, length_penalty)});
          return;
        }
        std::vector<int> tokens = prompt;
        tokens.insert(tokens.end(), text.begin(), text.end());
        const std::vector<double> logprobs = logprobs_behind(model, tokens, {});
        for (int token = 0; token < vocab_size; ++token) {
          std::vector<int> longer = text;
          longer.push_back(token);
          grow(longer, sum + logprobs[token]);
        }
      };
      grow({}, 0.0);
      std::stable_sort(all.begin(), all.end());
      REQUIRE(all.size() == 1 + 4 + 4 * 4 * 5);
      const Scored& best = all[0];
      const auto search = [&](int beams) {
        return found(model, prompt, {.max_new_tokens = depth},
                     {beams, length_penalty, EarlyStopping::kNever});
      };
      CHECK(behind(prompt.size(), search(num_beams)[0].tokens) == best.tokens);
      CHECK(search(num_beams)[0].score == doctest::Approx(best.score).epsilon(1e-4));
      for (const int fewer : {1, 2}) CHECK(search(fewer)[0].score <= best.score + 1e-4);
    }
  }
}

TEST_CASE("a search with one beam is the greedy choice") {
  CHECK(difference_from_greedy([](const std::vector<int>& prompt, int count) {
          return behind(prompt.size(), found(tales(), prompt, {.max_new_tokens = count}, {})[0].tokens);
        }) == "");
}

TEST_CASE("each new beam gets its parent's entries, with the fewest copies, wherever its parent is") {
  // All parents that up to five beams can have among up to five rows.
  for (int rows = 1; rows <= 5; ++rows) {
    for (int beams = 0; beams <= 5; ++beams) {
      for (int code = 0; code < std::pow(rows, beams); ++code) {
        std::vector<int> parents;
        for (int i = 0, rest = code; i < beams; ++i, rest /= rows) parents.push_back(rest % rows);
        const std::vector<int> order = assign_rows(parents);
        REQUIRE(std::set<int>(order.begin(), order.end()).size() == parents.size());
        std::vector<int> entries(std::max(rows, beams), -1);
        for (int i = 0; i < rows; ++i) entries[i] = i;
        int copies = 0;
        std::set<int> staying;
        for (int row = 0; row < beams; ++row) {
          const int parent = parents[order[row]];
          if (parent < beams) staying.insert(parent);
          if (parent == row) continue;
          entries[row] = entries[parent];
          ++copies;
        }
        bool right = copies == beams - std::ssize(staying);
        for (int row = 0; row < beams; ++row) right = right && entries[row] == parents[order[row]];
        REQUIRE(right);
      }
    }
  }
}

TEST_CASE("the cache changes nothing, and few of its rows are copied") {
  const GenerateOptions options{.max_new_tokens = 30, .ignore_eos = true};
  const BeamOptions search{5};
  StaticKvCache cache(tales(), 5);
  BeamTree tree;
  const std::vector<Beam> with = beam_search(tales(), kPrompt, options, search, &cache, tree);
  const std::vector<Beam> without = found(tales(), kPrompt, options, search, false);
  REQUIRE(with.size() == without.size());
  for (std::size_t i = 0; i < with.size(); ++i) CHECK(with[i].tokens == without[i].tokens);
  // All rows, after every token but the last: 2 + 3 + … + 30 positions each.
  const std::size_t row = cache.use().bytes / 5 / static_cast<std::size_t>(cache.capacity());
  CHECK(cache.use().copied < row * 5 * (2 + 30) * 29 / 2 * 7 / 10);
  CHECK(cache.use().copied > 0);
}

TEST_CASE("a search goes on behind the end of the context, and with a prompt that is longer") {
  Gpt2 model = tiny(4, 11, 13);
  for (const int length : {1, 12, 13, 14, 40}) {
    std::vector<int> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back(i * i % 7);
    GenerateOptions options{.max_new_tokens = 20, .ignore_eos = true, .on_overflow = Overflow::kRecompute};
    const std::vector<Beam> with = found(model, prompt, options, {3});
    const std::vector<Beam> without = found(model, prompt, options, {3}, false);
    for (std::size_t i = 0; i < with.size(); ++i) CHECK(with[i].tokens == without[i].tokens);
    options.on_overflow = Overflow::kSlide;
    CHECK(found(model, prompt, options, {3})[0].chosen.size() == 20);
  }
}

TEST_CASE("beams end at stop sequences, and not before the least number of tokens") {
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  GenerateOptions options{.max_new_tokens = 30, .min_new_tokens = 4};
  options.stop = {{"said", ","}, &tokenizer};
  int stopped = 0;
  for (const Beam& beam : found(tales(), kPrompt, options, {4, 0.0f})) {  // short texts win
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
  const std::vector<int> ending = reference("beam.json")["cases"][2]["prompt_ids"];
  for (const Beam& beam : found(tales(), ending, {.max_new_tokens = 30, .min_new_tokens = 12}, {4})) {
    CHECK(std::ranges::count(beam.tokens, tales().config().eos_token_id) <= 1);
    CHECK(beam.chosen.size() > 12);
  }
}

TEST_CASE("the log-probabilities of a beam's tokens add up to its sum") {
  for (const Beam& beam : found(tales(), kPrompt, {.max_new_tokens = 20, .logprobs = 2}, {4})) {
    double sum = 0.0;
    for (const Token& token : beam.chosen) sum += *token.logprobs->own;
    CHECK(sum == doctest::Approx(beam.sum).epsilon(1e-5));
    CHECK(beam.chosen[0].logprobs->likeliest.size() == 2);
  }
}

TEST_CASE("the best text is the trunk of the tree, and what branches off is indented") {
  const Tokenizer tokenizer = Tokenizer::load(find_model("tales-6m"));
  const auto id = [&](const char* text) { return tokenizer.encode(text)[0]; };
  BeamTree tree;
  const int a = tree.add(0, id("a"), -1.0), b = tree.add(0, id("b"), -2.0);
  tree.end(tree.add(a, id("c"), -1.5), -0.75);
  const int d = tree.add(a, id("d"), -1.75);
  tree.end(tree.add(d, id("e"), -2.0), -0.5);
  tree.add(b, id("f"), -3.0);
  tree.add(b, id("g"), -4.0);
  CHECK(tree.text(tokenizer) ==
        "prompt\n"
        "├─ \"b\"\n"
        "│  ├─ \"g\"  × -4.0000\n"
        "│  \"f\"  × -3.0000\n"
        "\"a\"\n"
        "├─ \"c\"  ■ -0.7500\n"
        "\"de\"  ■ -0.5000\n");
  CHECK(BeamTree().text(tokenizer) == "prompt  × 0.0000\n");
}

TEST_CASE("the program tells the best texts of each prompt, best first, and refuses what has no meaning") {
  const auto& one = reference("beam.json")["cases"][2];
  const std::string prompt = one["prompt"];
  const std::string arguments =
      "--num-beams 4 --num-return-sequences 2 --max-new-tokens 40 --json --show-beams";
  const ProgramRun run =
      run_program(STAIRCASE_STEP_PROGRAM, arguments + " --prompt The --prompt '" + prompt + "'");
  REQUIRE(run.status == 0);
  const auto sequences = nlohmann::json::parse(run.out)["sequences"];
  REQUIRE(sequences.size() == 4);
  for (int i = 0; i < 2; ++i) {
    CHECK(sequences[2 + i]["token_ids"] == one["beams"][i]["ids"]);
    CHECK(sequences[2 + i]["score"].get<double>() ==
          doctest::Approx(one["beams"][i]["score"].get<double>()).epsilon(1e-4));
    CHECK(sequences[2 + i]["finish_reason"] == "eos");
  }
  CHECK(run.err.find("■ ") != std::string::npos);
  CHECK(run_program(STAIRCASE_STEP_PROGRAM, "--num-beams 2 --echo --max-new-tokens 0 --prompt The").out ==
        "The\n");
  for (const char* wrong : {"--num-beams 0", "--num-beams -3", "--num-beams 33", "--num-beams 2 --do-sample",
                            "--num-beams 2 --temperature 0.5", "--num-beams 2 --num-return-sequences 3",
                            "--num-return-sequences 2", "--num-beams 2 --length-penalty nan",
                            "--length-penalty 11", "--num-beams 2 --early-stopping no",
                            "--num-beams 2 --draft-model tales-1m", "--num-beams 2 --show-candidates 3"}) {
    CHECK(run_program(STAIRCASE_STEP_PROGRAM, wrong).status == 2);
  }
  for (const char* idle : {"--show-beams", "--length-penalty 2", "--early-stopping true"}) {
    const ProgramRun warned =
        run_program(STAIRCASE_STEP_PROGRAM, fmt::format("--max-new-tokens 1 --prompt The {}", idle));
    CAPTURE(idle);
    CHECK(warned.status == 0);
    CHECK(warned.err.find("do nothing without --num-beams") != std::string::npos);
  }
  const TemporaryFolder folder;
  for (const std::string& wrong : {std::string("--draft-model tales-1m"),
                                   "--benchmark-lengths 1 --benchmark " + folder.path().string()}) {
    const ProgramRun refused =
        run_program(STAIRCASE_STEP_PROGRAM, "--num-beams 2 --echo --prompt 'a b c' " + wrong);
    CAPTURE(refused.err);
    CHECK(refused.status == 2);
    CHECK(refused.err.starts_with("error: "));
  }
}
