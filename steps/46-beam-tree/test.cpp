#include <doctest/doctest.h>

#include <map>

#include "beam_tree.h"
#include "tests/error_message.h"
#include "tests/plain_beam_search.h"
#include "tests/run_program.h"
#include "tests/step.h"

using namespace staircase;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(find_model("tales-6m"));
  return loaded;
}

/// A beam of a text whose tokens are letters, after a prompt of two tokens.
Beam beam(const std::string& letters, double sum, std::optional<double> score = {}) {
  Beam made{{321, 1682}, StopFilter({}, tales_tokenizer())};
  for (const char letter : letters) {
    made.chosen.push_back({tokenizer().encode(std::string(1, letter))[0]});
    made.tokens.push_back(made.chosen.back().id);
  }
  made.sum = sum;
  made.score = score.value_or(sum / letters.size());
  if (score) made.finished = FinishReason::kEos;
  return made;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("a search may have more beams than half of what an int holds") {
  RowOptions options;
  options.stopping.max_new_tokens = 1;
  const auto found = beam_search(tales(), tales_tokenizer(), {321}, options, {.num_beams = 1 << 30},
                                 no_cache(), [](const Beam&) {});
  REQUIRE(std::ssize(found) == tales().config().vocab_size);
  CHECK(found[0].chosen[0].id == argmax(tales().next_logits(std::vector<int>{321})));
}

TEST_CASE("the best text is the trunk of the tree, and its branches are indented") {
  BeamTree tree;
  for (const Beam& added : {beam("a", -1.0), beam("b", -2.0), beam("ac", -1.5, -0.75), beam("ad", -1.75),
                            beam("bf", -3.0), beam("bg", -4.0), beam("ade", -2.0, -0.5)}) {
    tree.add(added);
  }
  CHECK(tree.text(tokenizer()) ==
        "prompt\n"
        "├─ \"b\"\n"
        "│  ├─ \"g\"  × -4.0000\n"
        "│  \"f\"  × -3.0000\n"
        "\"a\"\n"
        "├─ \"c\"  ■ -0.7500\n"
        "\"de\"  ■ -0.5000\n");
  CHECK(BeamTree().text(tokenizer()) == "prompt  × 0.0000\n");
}

TEST_CASE("away from the best text the branch with most tokens goes straight on") {
  BeamTree tree;
  for (const Beam& added : {beam("a", -1.0, -0.25), beam("b", -2.0), beam("bc", -2.5), beam("bd", -3.0),
                            beam("bde", -4.0), beam("bdef", -5.0), beam("bdeg", -6.0)}) {
    tree.add(added);
  }
  CHECK(tree.text(tokenizer()) ==
        "prompt\n"
        "├─ \"b\"\n"
        "│  ├─ \"c\"  × -2.5000\n"
        "│  \"de\"\n"
        "│  ├─ \"g\"  × -6.0000\n"
        "│  \"f\"  × -5.0000\n"
        "\"a\"  ■ -0.2500\n");
}

TEST_CASE("texts that end one after another along a long trunk do not push it to the right") {
  BeamTree tree;
  std::string text;
  for (int i = 0; i < 1000; ++i) {  // a text ends at each token
    text += 'a';
    tree.add(beam(text, -1.0 * i));
    tree.add(beam(text.substr(1) + 'b', -1.0 * i, -2.0 - i));
  }
  tree.add(beam(text + 'c', -1000.0, -0.5));
  const std::string drawn = tree.text(tokenizer());
  CHECK(count(drawn, "\n") == 2001);
  CHECK(count(drawn, "│") == 0);
  CHECK(ends_with(drawn, "\"ac\"  ■ -0.5000\n"));
}

TEST_CASE("an observer of the search gets each beam that goes on or ends, in the order of the choice") {
  Model model = random_model(2, 11);
  const RowOptions options{{.stopping = {.max_new_tokens = 10}}};
  StaticKvCache cache(model, 3);
  std::vector<Beam> seen;
  const std::vector<Beam> best = beam_search(model, tales_tokenizer(), {3, 1}, options, {3}, cache,
                                             [&](const Beam& beam) { seen.push_back(beam); });
  std::set<std::vector<int>> growing{{3, 1}}, ended;
  std::map<std::size_t, int> going_on;  // by their lengths
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const std::vector<int>& tokens = seen[i].tokens;
    CHECK(growing.contains({tokens.begin(), tokens.end() - 1}));  // the text was seen before and not ended
    CHECK((seen[i].finished ? ended : growing).insert(tokens).second);
    if (!seen[i].finished) ++going_on[tokens.size()];
    if (i == 0 || tokens.size() != seen[i - 1].tokens.size()) continue;
    CHECK(seen[i].sum <= seen[i - 1].sum);
  }
  CHECK(!going_on.empty());
  for (const auto& [length, count] : going_on) CHECK(count == 3);
  CHECK(difference_from_texts(
            best, plain_beam_search(model, {3, 1}, {.num_beams = 3, .max_new_tokens = 10})) == "");
  for (const Beam& beam : best) CHECK(ended.contains(beam.tokens));
}

TEST_CASE(
    "every beam of a search is in its tree: the texts that ended with their scores, the best as the trunk") {
  const RowOptions options{{.stopping = {.max_new_tokens = 10}}};
  StaticKvCache cache(tales(), 3);
  BeamTree tree;
  int ended = 0;
  const std::vector<Beam> found =
      beam_search(tales(), tales_tokenizer(), {321, 1682}, options, {3}, cache, [&](const Beam& b) {
        tree.add(b);
        ended += b.finished.has_value();
      });
  const std::string drawn = tree.text(tokenizer());
  CHECK(count(drawn, "■") == ended);
  REQUIRE(found.size() == 3);
  for (const Beam& one : found) CHECK(count(drawn, fmt::format("■ {:.4f}\n", one.score)) == 1);
  CHECK(ends_with(drawn, fmt::format("■ {:.4f}\n", found[0].score)));
  // Without its twigs, the tree is the best text.
  std::string trunk;
  for (std::size_t from = 0, to; from < drawn.size(); from = to + 1) {
    to = drawn.find('\n', from);
    if (drawn[from] == '"') trunk += drawn.substr(from + 1, drawn.rfind('"', to) - from - 1);
  }
  CHECK('"' + trunk + '"' == quoted(tokenizer().decode(tokens_after(2, found[0].tokens))));
}

TEST_CASE("the program draws the tree of each prompt, and nothing else changes") {
  const std::string arguments = "--num-beams 3 --max-new-tokens 12 --prompt The --prompt Once --json";
  const ProgramRun plain = run_program(STAIRCASE_STEP_PROGRAM, arguments);
  const ProgramRun drawn = run_program(STAIRCASE_STEP_PROGRAM, arguments + " --show-beams");
  REQUIRE(plain.status == 0);
  REQUIRE(drawn.status == 0);
  CHECK(drawn.json()["sequences"] == plain.json()["sequences"]);
  CHECK(count(drawn.err, "\nprompt\n") == 2);
  CHECK(count(drawn.err, "■ ") >= 6);
  CHECK(count(drawn.err, "× ") > 0);
  CHECK(plain.err.find("■") == std::string::npos);
  const auto best = drawn.json()["sequences"][0]["score"].get<double>();
  CHECK(contains(drawn.err, fmt::format("■ {:.4f}", best)));
}

TEST_CASE("without a search there is no tree, but a warning") {
  const ProgramRun warned =
      run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 1 --prompt The --show-beams");
  CHECK(warned.status == 0);
  CHECK(contains(warned.err, "warning: --show-beams does nothing without --num-beams\n"));
  CHECK(contains(
      run_program(STAIRCASE_STEP_PROGRAM, "--max-new-tokens 0 --num-beams 2 --prompt The --show-beams").err,
      "prompt  × 0.0000\n"));
}
