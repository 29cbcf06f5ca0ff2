// The trace of a run: its lines say what the model did, to the bit, and what became of each text.
#include "common/program/trace.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "static_kv_cache.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/test_device.h"

namespace staircase {
namespace {

using nlohmann::json;
using Tokens = std::vector<int>;

const std::filesystem::path kSource = STAIRCASE_SOURCE_TREE;

std::vector<json> read_events(const std::filesystem::path& file) {
  std::ifstream lines(file);
  std::vector<json> events;
  for (std::string line; std::getline(lines, line);) events.push_back(json::parse(line));
  return events;
}

std::vector<json> of_kind(const std::vector<json>& events, const std::string& kind) {
  std::vector<json> some;
  for (const json& event : events) {
    if (event["event"] == kind) some.push_back(event);
  }
  return some;
}

std::vector<float> copy(std::span<const float> values) {
  return {values.begin(), values.end()};
}

TEST_CASE("a pass shows its rows, what the cache held, and the very logits that the model gave") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  Gpt2 model = Gpt2::load(kSource / "models/tales-1m", make_test_device(1));
  std::vector<std::vector<float>> given;
  {
    TraceFile trace(file);
    model.watch(trace.watcher("a model"));
    StaticKvCache cache(model, 3);
    const Tokens first{5, 6, 7}, second{8}, none, both{9, 10};
    const std::vector<std::span<const int>> batch{first, none, second};
    const std::vector<float> logits = copy(model.next_logits(batch, &cache));
    const auto vocab_size = static_cast<std::size_t>(model.config().vocab_size);
    given.push_back(copy(std::span(logits).first(vocab_size)));
    given.push_back(copy(std::span(logits).last(vocab_size)));
    const std::vector<float> of_both = copy(model.last_logits(both, 2, &cache));
    given.push_back(copy(std::span(of_both).first(vocab_size)));
    given.push_back(copy(std::span(of_both).last(vocab_size)));
    model.watch(nullptr);
    model.next_logits(first);
  }
  const std::vector<json> events = read_events(file);
  const std::vector<json> passes = of_kind(events, "pass"), logits = of_kind(events, "logits");
  REQUIRE(passes.size() == 2);
  CHECK(passes[0]["model"] == "a model");
  CHECK(passes[0]["rows"] == json::parse(R"([{"row":0,"start":0,"tokens":[5,6,7]},
                                             {"row":2,"start":0,"tokens":[8]}])"));
  CHECK(passes[1]["rows"] == json::parse(R"([{"row":0,"start":3,"tokens":[9,10]}])"));
  REQUIRE(logits.size() == given.size());
  const std::vector<std::pair<int, int>> places{{0, 2}, {2, 0}, {0, 3}, {0, 4}};  // row and position
  for (std::size_t i = 0; i < given.size(); ++i) {
    CHECK(logits[i]["row"] == places[i].first);
    CHECK(logits[i]["position"] == places[i].second);
    CHECK(logits[i]["logits"].get<std::vector<float>>() == given[i]);
  }
}

TEST_CASE("the trace of a program tells its options, its prompts and the texts that it wrote") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  const ProgramRun run = run_program(STAIRCASE_WHOLE_PROGRAM,
                                     "--model tales-6m --draft-model tales-1m --prompt 'A fox' --prompt "
                                     "'Once upon' --max-new-tokens 3 --json "
                                     "--device cpu --benchmark-lengths 7,8 --trace " +
                                         file);
  REQUIRE_MESSAGE(run.status == 0, run.err);
  const json sequences = run.json()["sequences"];
  const std::vector<json> events = read_events(file);
  const json& start = events.at(0);
  CHECK(start["event"] == "start");
  CHECK(start["options"]["--model"] == "tales-6m");
  CHECK(start["options"]["--json"] == "true");
  CHECK(start["options"]["--fails"] == "false");
  CHECK(start["options"]["--rests"] == "true");
  CHECK(start["options"]["--temperature"] == "1");
  CHECK(start["options"]["--benchmark-lengths"] == "7,8");
  CHECK(start["options"]["--prompts"] == "");
  CHECK(start["n_positions"] == 512);
  CHECK(start["eos_token_id"] == 4095);
  for (std::size_t i = 0; i < 2; ++i) CHECK(start["prompts"][i] == sequences[i]["prompt_token_ids"]);

  std::vector<Tokens> texts(2);
  std::string words;
  std::vector<float> newest;
  for (const json& event : events) {
    if (event["event"] == "logits") newest = event["logits"].get<std::vector<float>>();
    if (event["event"] != "token") continue;
    const int token = event["token"];
    texts.at(event["text"].get<std::size_t>() - 1).push_back(token);
    if (event["text"] == 1) words += start["vocabulary"].at(token).get<std::string>();
    CHECK(event["origin"] == "model");
    CHECK(std::ranges::max_element(newest) - newest.begin() == token);  // this program takes the likeliest
  }
  CHECK(words == sequences[0]["text"]);
  const std::vector<json> passes = of_kind(events, "pass");
  REQUIRE(passes.size() == 7);  // three for each text, and one of the draft model
  for (std::size_t i = 0; i < 7; ++i) CHECK(passes[i]["model"] == (i < 6 ? "tales-6m" : "tales-1m"));
  const std::vector<json> begins = of_kind(events, "text"), ends = of_kind(events, "end");
  REQUIRE(begins.size() == 2);
  REQUIRE(ends.size() == 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(texts[i] == sequences[i]["token_ids"].get<Tokens>());
    CHECK(begins[i] == json{{"event", "text"}, {"text", i + 1}, {"prompt", i}});
    CHECK(ends[i] == json{{"event", "end"}, {"text", i + 1}, {"finish_reason", "length"}});
  }
}

TEST_CASE("a draft model's passes have its name") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  TraceFile trace(file);
  Gpt2 target = Gpt2::load(kSource / "models/tales-1m", make_test_device(1));
  Gpt2 draft = target.load_beside(kSource / "models/tales-1m");
  target.watch(trace.watcher("target"));
  draft.watch(trace.watcher("draft"));
  Gpt2 moved = std::move(draft);  // as Program hands it over
  target.next_logits(Tokens{1});
  moved.next_logits(Tokens{2});
  const std::vector<json> passes = of_kind(read_events(file), "pass");
  REQUIRE(passes.size() == 2);  // each line is in the file as soon as it is written
  CHECK(passes[0]["model"] == "target");
  CHECK(passes[1]["model"] == "draft");
}

TEST_CASE("where a trace cannot be written the program says why") {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"--trace /no/such/folder/trace", "--trace /no/such/folder/trace: the file cannot be written: No such"},
      {"--trace /", "--trace /: the file cannot be written: Is a directory"},
      {"--trace /dev/full", "--trace /dev/full: the file takes no more: No space left"}};
  for (const auto& [arguments, sentence] : wrong) {
    const ProgramRun run = run_program(STAIRCASE_WHOLE_PROGRAM, "--model tales-1m --device cpu " + arguments);
    CHECK(run.status == 1);
    CHECK_MESSAGE(run.err.find("error: " + sentence) != std::string::npos, run.err);
    CHECK(run.out == "");
  }
  const ProgramRun run = run_program(STAIRCASE_WHOLE_PROGRAM, "--model tales-1m --trace=");
  CHECK(run.status == 2);
  CHECK(run.err == "error: --trace: the name is empty\n");
}

}  // namespace
}  // namespace staircase
