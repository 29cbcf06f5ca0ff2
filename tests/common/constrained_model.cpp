// Constrained texts of decoders that know nothing of constraints: drafts and their rejection, and beams.
// Compared with the masks of step 101, which reads the whole text again for each token, and with all texts
// there are.
#include "common/decoding/constrained_model.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <random>

#include "beam_search.h"
#include "common/decoding/static_kv_cache.h"
#include "prompt_lookup.h"
#include "regex.h"
#include "tests/chi_square.h"
#include "tests/error_message.h"
#include "tests/step.h"
#include "token_masks.h"

using namespace staircase;

namespace {

Model load(const char* name) {
  return Model::load(find_model(name), make_cpu_device(1));
}

std::shared_ptr<Constraint> constraint(const std::string& pattern) {
  static const auto sorted =
      std::make_shared<const SortedTokens>(tales_tokenizer(), tales().config().end_tokens);
  return Constraint::of_regex(pattern, sorted);
}

const std::vector<int>& prompt() {
  static const std::vector<int> tokens = tales_tokenizer().encode("The animals in this tale are a fox and");
  return tokens;
}

/// The logits after a text, without those that the pattern forbids after its new tokens.
std::vector<float> masked(Model& model, const Regex& pattern, const std::vector<int>& text) {
  std::vector<float> logits = copy_of(model.next_logits(text));
  keep_allowed(logits, std::span(text).subspan(prompt().size()), pattern, tales_tokenizer(),
               model.config().end_tokens);
  return logits;
}

/// A way to write an allowed text as tokens, the last of which ends it.
struct Way {
  std::vector<int> tokens;
  double probability = 1.0;  // renormalised after each token
  double sum = 0.0;          // of the model's own log-probabilities
};

void add_ways(Model& model, const Regex& pattern, const Way& begun, std::vector<Way>& ways) {
  std::vector<int> text = prompt();
  text.insert(text.end(), begun.tokens.begin(), begun.tokens.end());
  const std::vector<float> own = log_softmax(model.next_logits(text));
  const std::vector<float> logits = masked(model, pattern, text), probabilities = softmax(logits);
  for (int token = 0; token < std::ssize(logits); ++token) {
    if (logits[token] == kMasked) continue;
    Way longer = begun;
    longer.tokens.push_back(token);
    longer.probability *= static_cast<double>(probabilities[token]);
    longer.sum += static_cast<double>(own[token]);
    if (model.config().end_tokens.contains(token))
      ways.push_back(longer);
    else
      add_ways(model, pattern, longer, ways);
  }
}

/// The new tokens after the prompt, written with drafts.
std::vector<int> speculated(Model& target, Drafter& drafter, const TextOptions& options,
                            Speculation& counts) {
  const Generation text = speculate(target, drafter, prompt(), options, 4, counts, [](const Token&) {});
  return {text.tokens.begin() + std::ssize(prompt()), text.tokens.end()};
}

const std::vector<std::string> kPatterns{
    " a (fox|lion|crow)( and a (fox|lion|crow)){0,6}\\.", "( [a-z]+){5,8}\\.", "[A-Z a-z,]{20,60}[.!?]",
    "\\[(\\d{1,3}, ){3,5}\\d{1,3}\\]", " (\"[^\"]{0,30}\"|the [a-z]* of the [a-z]*)( said)?"};

}  // namespace

TEST_CASE(
    "with drafts, a constrained text is that of one token after another, and masked drafts are kept more "
    "often") {
  int drafted[2] = {}, accepted[2] = {};
  for (const std::string& pattern : kPatterns) {
    CAPTURE(pattern);
    TextOptions options;
    options.stopping.max_new_tokens = 60;
    std::vector<int> expected = prompt();
    const Regex automaton(pattern);
    while (std::ssize(expected) < std::ssize(prompt()) + 60) {
      expected.push_back(argmax(masked(tales(), automaton, expected)));
      if (tales().config().end_tokens.contains(expected.back())) break;
    }
    expected.erase(expected.begin(), expected.begin() + std::ssize(prompt()));
    for (const bool masks_drafts : {false, true}) {
      Model target = load("tales-6m"), small = load("tales-1m");
      const auto shared = constraint(pattern);
      const ConstrainedModel constrained(target, shared);
      std::optional<ConstrainedModel> too;
      if (masks_drafts) too.emplace(small, shared);
      DraftModel drafter(small);
      Speculation counts;
      CHECK(speculated(target, drafter, options, counts) == expected);
      drafted[masks_drafts] += counts.drafted;
      accepted[masks_drafts] += counts.accepted;
    }
    Model target = load("tales-6m");
    const ConstrainedModel constrained(target, constraint(pattern));
    PromptLookup lookup(2, target.config().vocab_size);
    Speculation counts;
    CHECK(speculated(target, lookup, options, counts) == expected);
  }
  CHECK(accepted[0] > 0);
  CHECK(accepted[1] < drafted[1]);  // some are rejected, so states go back
  CHECK(1.0 * accepted[1] / drafted[1] > 1.0 * accepted[0] / drafted[0]);
}

TEST_CASE("drawn with drafts, constrained texts have the model's own distribution, renormalised") {
  const std::string pattern = " (a lion|the (crow|fox)s?)";
  std::vector<Way> ways;
  add_ways(tales(), Regex(pattern), {}, ways);
  REQUIRE(ways.size() > 8);
  std::map<std::vector<int>, std::size_t> number;
  std::vector<float> probabilities;
  for (const Way& way : ways) {
    number[way.tokens] = probabilities.size();
    probabilities.push_back(static_cast<float>(way.probability));
  }
  for (const bool masks_drafts : {false, true}) {
    CAPTURE(masks_drafts);
    Model target = load("tales-6m"), small = load("tales-1m");
    const auto shared = constraint(pattern);
    ConstrainedModel constrained(target, shared);
    std::optional<ConstrainedModel> too;
    if (masks_drafts) too.emplace(small, shared);
    std::vector<int> counts(ways.size());
    TextOptions options;
    options.sampling.do_sample = true;
    Speculation speculation;
    for (unsigned seed = 0; seed < 1500; ++seed) {
      options.sampling.seed = seed;
      constrained.begin();
      if (too) too->begin();
      DraftModel drafter(small);
      ++counts[number.at(speculated(target, drafter, options, speculation))];
    }
    CHECK(p_value(counts, probabilities) > 0.001);
    CHECK(speculation.accepted > 100);
    CHECK(speculation.accepted < speculation.drafted);
  }
}

TEST_CASE("a search finds the most likely of all allowed texts, each beam in a state of its own") {
  for (const std::string pattern : {" a( fox)?", " [a-c]?(x|yz)", "( x){0,5}", "(ab|cd){0,2}[.!]"}) {
    CAPTURE(pattern);
    std::vector<Way> ways;
    add_ways(tales(), Regex(pattern), {}, ways);
    std::ranges::stable_sort(ways, std::greater<>(), &Way::sum);
    BeamOptions search{.num_beams = 64, .length_penalty = 0.0f, .early_stopping = EarlyStopping::kNever};
    REQUIRE(std::ssize(ways) < search.num_beams);
    RowOptions options;
    options.stopping.max_new_tokens = 30;
    for (const bool is_lesson : {false, true}) {
      if (is_lesson)
        options.edit_raw_logits = KeepAllowed<Regex>{std::make_shared<TokenMasks<Regex>>(
            TokenMasks<Regex>{Regex(pattern), tales_tokenizer(), tales().config().end_tokens})};
      else
        options.edit_raw_logits = KeepConstraint{constraint(pattern)};
      StaticKvCache cache(tales(), search.num_beams);
      const std::vector<Beam> found =
          beam_search(tales(), tales_tokenizer(), prompt(), options, search, cache, [](const Beam&) {});
      REQUIRE(found.size() == ways.size());
      for (std::size_t i = 0; i < ways.size(); ++i) {
        CHECK(found[i].finished == FinishReason::kEos);
        CHECK(found[i].sum == doctest::Approx(ways[i].sum).epsilon(1e-4));
      }
      CHECK(std::ranges::equal(std::span(found[0].tokens).subspan(prompt().size()), ways[0].tokens));
    }
  }
}

TEST_CASE("with few beams, each text of a search matches, and ends only where it may") {
  for (const std::string& pattern : kPatterns) {
    CAPTURE(pattern);
    const Regex automaton(pattern);
    for (const int beams : {2, 3, 5}) {
      RowOptions options;
      options.stopping.max_new_tokens = 40;
      options.edit_raw_logits = KeepConstraint{constraint(pattern)};
      StaticKvCache cache(tales(), beams);
      const std::vector<Beam> found = beam_search(tales(), tales_tokenizer(), prompt(), options,
                                                  {.num_beams = beams}, cache, [](const Beam&) {});
      CHECK(!found.empty());
      for (const Beam& beam : found) {
        std::vector<int> text(beam.tokens.begin() + std::ssize(prompt()), beam.tokens.end());
        const bool ended = tales().config().end_tokens.contains(text.back());
        CHECK(ended == (beam.finished == FinishReason::kEos));
        if (ended) text.pop_back();
        const auto states = automaton.after(automaton.start(), tales_tokenizer().decode(text));
        CHECK(!states.empty());
        if (ended) CHECK(automaton.accepts(states));
      }
    }
  }
}

TEST_CASE("a constraint that cannot be followed is refused as one that cannot be read") {
  CHECK_THROWS_AS(constraint("(a?){6000}"), UsageError);
  CHECK_THROWS_AS(constraint("(a"), UsageError);
}

TEST_CASE("a new text needs a new beginning") {
  Model model = load("tales-1m");
  ConstrainedModel constrained(model, constraint("( fox){5}"));
  const auto allowed = [&](const std::vector<int>& text) {
    const std::span<const float> logits = model.next_logits(text);
    return std::ranges::count_if(logits, [](float logit) { return logit != kMasked; });
  };
  CHECK(allowed({1, 2, 3}) < 10);
  CHECK(error_message([&] {
          allowed({1, 2});
        }) == "a text is shorter than the prompt before it: begin() is missing");
  constrained.begin();
  CHECK(allowed({1, 2}) < 10);
}
