#include <doctest/doctest.h>

#include "generate.h"
#include "head_drafter.h"
#include "tests/chi_square.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

const std::filesystem::path kHeads = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "models/draft-heads";

std::vector<DraftHead> trained() {
  return read_draft_heads(tales(), kHeads);
}

/// Heads without weights: SiLU(0) is 0, so each repeats what the model itself predicts.
std::vector<DraftHead> without_weights(int count, std::size_t width) {
  return std::vector<DraftHead>(count, {std::vector<float>(width * width), std::vector<float>(width)});
}

std::vector<DraftHead> random_heads(int count, std::size_t width) {
  std::mt19937 generator(7);
  const auto numbers = [&](std::size_t size) {
    std::vector<float> values(size);
    for (float& value : values) value = 4.0f * (uniform(generator) - 0.5f);
    return values;
  };
  std::vector<DraftHead> heads;
  for (int k = 0; k < count; ++k) heads.push_back({numbers(width * width), numbers(width)});
  return heads;
}

std::vector<float> next_distribution(Model& model, std::span<const int> tokens,
                                     const SamplingOptions& options) {
  std::vector<float> logits = copy_of(model.next_logits(tokens));
  return distribution(logits, tokens, options);
}

/// A prompt of two tokens, and the text that the target alone generates from it.
const std::vector<int> kPrompt{321, 1682};
std::vector<int> plain_text(int count) {
  StaticKvCache cache(tales());
  const TextOptions options{.stopping = {.max_new_tokens = count, .ignore_eos = true}};
  return generate(tales(), {kPrompt}, options, cache, [](int, const Token&) {})[0].tokens;
}

}  // namespace

TEST_CASE("a further state is h + SiLU(W h + b)") {
  const std::size_t width = 5;
  const DraftHead head = random_heads(1, width)[0];
  const std::vector<float> h{0.5f, -1.0f, 2.0f, 0.25f, -3.0f}, got = further_state(head, h);
  REQUIRE(got.size() == width);
  for (std::size_t o = 0; o < width; ++o) {
    double x = head.bias[o];
    for (std::size_t i = 0; i < width; ++i) x += static_cast<double>(head.weight[i * width + o]) * h[i];
    CHECK(got[o] == doctest::Approx(h[o] + x / (1.0 + std::exp(-x))).epsilon(1e-5));
  }
}

TEST_CASE("the logits of each head are those of PyTorch") {
  const auto& runs = reference("draft_heads.json");
  const std::vector<DraftHead> heads = trained();
  for (const auto& run : runs["cases"]) {
    tales().next_logits(run["tokens"].get<std::vector<int>>());
    const std::vector<float> state = tales().hidden_states()[0];
    for (std::size_t k = 0; k < heads.size(); ++k) {
      CAPTURE(k);
      const std::vector<std::vector<float>> further{further_state(heads[k], state)};
      const std::vector<float> logits = tales().output_logits(further)[0];
      const auto& want = run["heads"][k];
      CHECK(argmax(logits) == want["argmax"].get<int>());
      for (std::size_t i = 0; i < want["places"].size(); ++i)
        CHECK(std::abs(logits[want["places"][i].get<int>()] - want["logits"][i].get<float>()) < 1e-3f);
    }
  }
}

TEST_CASE("the heads read the state that chose the newest token, however many drafts were accepted") {
  /// Proposes three tokens, of which 0, 1, 2 or 3 are right, and compares them with what the heads propose.
  struct Compared : Drafter {
    explicit Compared(std::vector<int> known) : text(std::move(known)) {}
    Distributions propose(std::vector<int>& tokens, int count, const SamplingOptions& options,
                          std::mt19937& generator) override {
      std::vector<int> copy = tokens;
      const Distributions proposed = heads.propose(copy, count, options, generator);
      if (tokens.size() == kPrompt.size()) {
        CHECK(proposed.empty());  // nothing is computed yet
        return {};
      }
      Model& other = same;  // the target's states stay those of its last pass
      const auto want = next_distribution(other, std::span(tokens).first(tokens.size() - 1), options);
      CHECK(proposed == Distributions(std::min(count, 3), want));
      Distributions q;
      const int right = rounds++ % 4;
      for (int i = 0; i < std::min(count, 3); ++i) {
        const int token = text[tokens.size()];
        tokens.push_back(i < right ? token : (token + 1) % tales().config().vocab_size);
        q.emplace_back(tales().config().vocab_size);
        q.back()[tokens.back()] = 1.0f;
      }
      return q;
    }
    std::vector<int> text;
    HeadDrafter heads{tales(), without_weights(3, tales().config().n_embd)};
    Model same = tales().load_beside(find_model("tales-6m"));
    int rounds = 0;
  };
  Compared drafter(plain_text(70));
  Speculation counts;
  const TextOptions options{.stopping = {.max_new_tokens = 40, .ignore_eos = true}};
  speculate(tales(), drafter, kPrompt, options, 4, counts, [](const Token&) {});
  CHECK(drafter.rounds >= 12);
  CHECK(counts.accepted > drafter.rounds);
}

TEST_CASE("a head proposes one token, and no more are proposed than requested") {
  HeadDrafter drafter(tales(), trained());
  std::mt19937 generator(1);
  std::vector<int> text = kPrompt;
  tales().next_logits(text);  // stands for another text
  CHECK(drafter.propose(text, 4, {}, generator).empty());
  for (const int count : {4, 3, 2, 1, 0}) {
    CAPTURE(count);
    text.push_back(argmax(tales().next_logits(text)));
    std::vector<int> copy = text;
    const Distributions q = drafter.propose(copy, count, {}, generator);
    REQUIRE(std::ssize(q) == std::min(count, 3));
    REQUIRE(copy.size() == text.size() + q.size());
    CHECK(std::equal(text.begin(), text.end(), copy.begin()));
    for (std::size_t i = 0; i < q.size(); ++i) CHECK(q[i][copy[text.size() + i]] == 1.0f);
  }
}

TEST_CASE("a text that the heads have not seen grow gets no proposal") {
  HeadDrafter drafter(tales(), trained());
  std::mt19937 generator(1);
  tales().next_logits(kPrompt);
  std::vector<int> text(9, 5), shorter(3, 5);
  CHECK(drafter.propose(text, 3, {}, generator).empty());
  CHECK(drafter.propose(shorter, 3, {}, generator).empty());
  CHECK(shorter.size() == 3);
}

TEST_CASE("greedy speculation with heads is the target's greedy decoding") {
  for (const std::optional<int> gamma :
       {std::optional<int>(1), std::optional<int>(4), std::optional<int>()}) {
    HeadDrafter drafter(tales(), trained());
    CHECK(difference_from_greedy([&](const std::vector<int>& prompt, int count) {
            HeadDrafter own(tales(), trained());
            Speculation ignored;
            return tokens_after(
                prompt.size(), speculate(tales(), own, prompt, {.stopping = {.max_new_tokens = count}}, gamma,
                                         ignored, [](const Token&) {})
                                   .tokens);
          }) == "");
  }
}

TEST_CASE("the heads are right more often than the model's own prediction, repeated") {
  const TextOptions options{.stopping = {.max_new_tokens = 200, .ignore_eos = true}};
  Speculation with, without;
  HeadDrafter heads(tales(), trained()), none(tales(), without_weights(3, tales().config().n_embd));
  const auto first = speculate(tales(), heads, kPrompt, options, 3, with, [](const Token&) {});
  const auto second = speculate(tales(), none, kPrompt, options, 3, without, [](const Token&) {});
  CHECK(first.tokens == second.tokens);
  CHECK(with.accepted > 2 * without.accepted);
}

TEST_CASE("drafts of heads give the target's distribution") {
  const TemporaryFolder folder;
  TinyModel(1, 5, 37).write(folder.path());
  Model target = Model::load(folder.path(), make_cpu_device(1));
  TextOptions options{.stopping = {.max_new_tokens = 4, .ignore_eos = true},
                      .sampling = {.do_sample = true, .temperature = 2.0f, .top_p = 0.97f}};
  // The first token comes from a pass without drafts, and three from rounds with drafts.
  const std::vector<int> prompt{3, 1};
  constexpr int kTexts = kSanitized ? 1000 : 8000, kCells = kSanitized ? 25 : 625;  // of the last tokens
  std::vector<int> counts(kCells);
  std::vector<float> chances(kCells);
  for (int i = 0; i < 625; ++i) {
    std::vector<int> tokens = prompt;
    double chance = 1.0;
    for (const int token : {i / 125, i / 25 % 5, i / 5 % 5, i % 5}) {
      chance *= next_distribution(target, tokens, options.sampling)[token];
      tokens.push_back(token);
    }
    chances[i % kCells] += static_cast<float>(chance);
  }
  HeadDrafter drafter(target, random_heads(3, target.config().n_embd));
  std::mt19937 generator(1);
  Speculation all;
  for (int i = 0; i < kTexts; ++i) {
    options.sampling.seed = generator();
    HeadDrafter own = drafter;
    const auto tokens = speculate(target, own, prompt, options, 3, all, [](const Token&) {}).tokens;
    ++counts[(tokens[2] * 125 + tokens[3] * 25 + tokens[4] * 5 + tokens[5]) % kCells];
  }
  CHECK(all.accepted > all.drafted / 10);  // both of the rule's ends are tried
  CHECK(all.accepted < all.drafted * 9 / 10);
  CHECK(p_value(counts, chances) > 0.01);
}

TEST_CASE("the program prints the same text with heads, and what they cost") {
  const std::string prompt = "--json --max-new-tokens 60 --ignore-eos --prompt 'Once upon a time'";
  const auto plain = run_program(STAIRCASE_STEP_PROGRAM, prompt).json();
  for (const std::string more : {"", " --num-speculative-tokens 2", " --num-speculative-tokens auto"}) {
    CAPTURE(more);
    const ProgramRun run =
        run_program(STAIRCASE_STEP_PROGRAM, prompt + " --heads '" + kHeads.string() + "'" + more);
    REQUIRE(run.status == 0);
    CHECK(run.json()["sequences"] == plain["sequences"]);
    CHECK(run.json()["stats"]["tokens_per_target_pass"] > 1.0);
    CHECK(run.json()["stats"].contains("draft_cost"));
  }
}

TEST_CASE("heads of another model and impossible combinations are refused before any token") {
  const std::string heads = "--heads '" + kHeads.string() + "' ";
  const std::pair<std::string, std::string> wrong[] = {
      {heads + "--draft-model tales-1m", "use either --draft-model or --heads, with the cache and one text"},
      {heads + "--no-use-cache", "with the cache and one text"},
      {heads + "--prompt A --prompt B", "with the cache and one text"},
      {heads + "--do-sample --num-return-sequences 2", "with the cache and one text"},
      {heads + "--model tales-1m", "these heads were trained on \"tales-6m\""},
      {"--heads /no/such/folder", "/no/such/folder/config.json does not exist"},
      {"--heads ''", "--heads"},
  };
  for (const auto& [arguments, message] : wrong) {
    const ProgramRun refused = run_program(STAIRCASE_STEP_PROGRAM, arguments);
    CAPTURE(refused.err);
    CHECK(refused.status != 0);
    CHECK(refused.out.empty());
    CHECK(contains(refused.err, message));
  }
}
