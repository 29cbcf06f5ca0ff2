// The trace of a run: its lines say what the model did, to the bit, and what became of each text.
#include "common/program/trace.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "beam_search.h"
#include "common/base/quoted.h"
#include "dynamic_kv_cache.h"
#include "paged_kv_cache.h"
#include "ring_kv_cache.h"
#include "static_kv_cache.h"
#include "tests/error_message.h"
#include "tests/run_program.h"
#include "tests/step.h"
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
  Model model = Model::load(kSource / "models/tales-1m", make_test_device(1));
  std::vector<std::vector<float>> given;
  {
    TraceFile trace(file);
    model.after_pass(trace.watcher("a model"));
    StaticKvCache cache(model, 3);
    const Tokens first{5, 6, 7}, second{8}, none, both{9, 10};
    const std::vector<std::span<const int>> batch{first, none, second};
    const std::vector<float> logits = copy(model.next_logits(batch, cache));
    const auto vocab_size = static_cast<std::size_t>(model.config().vocab_size);
    given.push_back(copy(std::span(logits).first(vocab_size)));
    given.push_back(copy(std::span(logits).last(vocab_size)));
    const std::vector<float> of_both = copy(model.last_logits(both, 2, cache));
    given.push_back(copy(std::span(of_both).first(vocab_size)));
    given.push_back(copy(std::span(of_both).last(vocab_size)));
    const std::vector<std::span<const int>> more{second, both, none};
    const std::vector<float> of_three = copy(model.lazy_logits(more, std::vector{1, 2, 1}, cache));
    for (std::size_t i = 0; i < 3; ++i)
      given.push_back(copy(std::span(of_three).subspan(i * vocab_size, vocab_size)));
    model.after_pass(nullptr);
    model.next_logits(first);
  }
  const std::vector<json> events = read_events(file);
  const std::vector<json> passes = of_kind(events, "pass"), logits = of_kind(events, "logits");
  REQUIRE(passes.size() == 3);
  CHECK(passes[0]["model"] == "a model");
  CHECK(passes[0]["rows"] == json::parse(R"([{"row":0,"start":0,"tokens":[5,6,7]},
                                             {"row":2,"start":0,"tokens":[8]}])"));
  CHECK(passes[1]["rows"] == json::parse(R"([{"row":0,"start":3,"tokens":[9,10]}])"));
  REQUIRE(logits.size() == given.size());
  const std::vector<std::pair<int, int>> places{{0, 2}, {2, 0}, {0, 3}, {0, 4},
                                                {0, 5}, {1, 0}, {1, 1}};  // row and position
  for (std::size_t i = 0; i < given.size(); ++i) {
    CHECK(logits[i]["row"] == places[i].first);
    CHECK(logits[i]["position"] == places[i].second);
    CHECK(logits[i]["logits"].get<std::vector<float>>() == given[i]);
  }
}

TEST_CASE("the trace of a program has its options, its prompts and the texts that it wrote") {
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
  CHECK(start["n_head"] == 4);
  CHECK(start["n_kv_head"] == 4);
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
    CHECK(std::ranges::max_element(newest) - newest.begin() == token);  // this program takes the most likely
                                                                        // one
  }
  CHECK(words == sequences[0]["text"].get<std::string>());
  const std::vector<json> passes = of_kind(events, "pass");
  REQUIRE(passes.size() == 7);  // three for each text, and one of the draft model
  for (std::size_t i = 0; i < 7; ++i) CHECK(passes[i]["model"] == (i < 6 ? "tales-6m" : "tales-1m"));
  const std::vector<json> begins = of_kind(events, "text"), ends = of_kind(events, "end");
  REQUIRE(begins.size() == 2);
  REQUIRE(ends.size() == 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(texts[i] == sequences[i]["token_ids"].get<Tokens>());
    CHECK(begins[i] == json{{"event", "text"}, {"text", i + 1}, {"prompt", i}, {"options", json::object()}});
    CHECK(ends[i] == json{{"event", "end"}, {"text", i + 1}, {"finish_reason", "length"}});
  }
}

TEST_CASE("a draft model's passes have its name") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  TraceFile trace(file);
  Model target = Model::load(kSource / "models/tales-1m", make_test_device(1));
  Model draft = target.load_beside(kSource / "models/tales-1m");
  target.after_pass(trace.watcher("target"));
  draft.after_pass(trace.watcher("draft"));
  Model moved = std::move(draft);  // as Program hands it over
  target.next_logits(Tokens{1});
  moved.next_logits(Tokens{2});
  const std::vector<json> passes = of_kind(read_events(file), "pass");
  REQUIRE(passes.size() == 2);  // each line is in the file as soon as it is written
  CHECK(passes[0]["model"] == "target");
  CHECK(passes[1]["model"] == "draft");
}

TEST_CASE("what a cache copies between its rows and inside one is in the trace") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  TraceFile trace(file);
  Model target = Model::load(kSource / "models/tales-1m", make_test_device(1));
  Model draft = target.load_beside(kSource / "models/tales-1m");
  target.after_pass(trace.watcher("target"));
  draft.after_pass(trace.watcher("draft"));
  target.device().watch_copies(trace.copy_watcher());
  StaticKvCache rows(target, 4), others(draft, 2), unseen(target, 2);
  DynamicKvCache growing(draft);
  const Tokens text{5, 6, 7};
  unseen.copy_row(1, 0);  // no pass has shown it: its text is unknown
  target.next_logits(text, rows);
  draft.next_logits(text, others);
  rows.copy_row(0, 3);
  rows.copy_row(3, 1);  // which has been copied itself
  rows.slide(3, 2);
  others.copy_row(0, 1);
  unseen.copy_row(1, 0);
  target.next_logits(text);  // without a cache: later entries belong to none
  rows.copy_row(0, 2);
  draft.next_logits(text, growing);
  draft.next_logits(text, growing);  // all that it holds goes to larger memory, and stays the same row
  const auto copied = [](const char* model, int from, int first, int positions, int to) {
    return json{{"event", "copy"}, {"model", model},         {"from", from},
                {"first", first},  {"positions", positions}, {"to", to}};
  };
  CHECK(of_kind(read_events(file), "copy") ==
        std::vector<json>{copied("target", 0, 0, 3, 3), copied("target", 3, 0, 3, 1),
                          copied("target", 3, 2, 1, 3), copied("draft", 0, 0, 3, 1)});
}

TEST_CASE("the blocks of each row are in the trace, whenever they have changed") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  TraceFile trace(file);
  Model model = Model::load(kSource / "models/tales-1m", make_test_device(1));
  model.after_pass(trace.watcher("a model"));
  StaticKvCache without(model, 1);
  PagedKvCache cache(model, 2, 5);
  const Tokens text(kBlockSize + 1, 5), one{6}, none;
  const auto pass = [&](const Tokens& first, const Tokens& second) {
    const std::vector<std::span<const int>> batch{first, second};
    model.next_logits(batch, cache);
  };
  model.next_logits(text, without);
  REQUIRE(cache.reserve(0, kBlockSize + 1));
  REQUIRE(cache.reserve(1, 1));
  pass(text, one);
  cache.remember(0, text);
  pass(one, none);
  cache.truncate(1, 0);  // its row keeps its place in the batch, without a block
  pass(one, none);
  cache.share(1, text);
  REQUIRE(cache.reserve(1, kBlockSize + 1));
  pass(one, one);
  const auto event = [](const std::vector<Tokens>& rows) {
    return json{{"event", "blocks"}, {"model", "a model"}, {"pool", 5}, {"size", 16}, {"rows", rows}};
  };
  const std::vector<json> events = read_events(file), blocks = of_kind(events, "blocks");
  CHECK(blocks == std::vector<json>{event({{0, 1}, {2}}), event({{0, 1}, {}}), event({{0, 1}, {0, 2}})});
  std::vector<std::string> kinds;
  for (const json& line : events) {
    if (line["event"] != "logits") kinds.push_back(line["event"]);
  }
  CHECK(kinds ==
        std::vector<std::string>{"pass", "pass", "blocks", "pass", "pass", "blocks", "pass", "blocks"});
}

/// What each row holds after each pass of the first search, from the trace: with a cache the fed tokens after
/// those of the copied row, and without one the fed tokens.
std::vector<std::vector<Tokens>> texts_of_rows(const std::vector<json>& events) {
  std::vector<std::vector<Tokens>> passes;
  std::map<int, Tokens> held;
  for (const json& event : events) {
    if (event["event"] == "copy") held[event["to"]] = held.at(event["from"]);
    if (event["event"] != "pass") continue;
    passes.emplace_back();
    for (const json& row : event["rows"]) {
      Tokens& tokens = held[row["row"]];
      tokens.resize(row["start"].get<std::size_t>(), -1);
      for (const json& token : row["tokens"]) tokens.push_back(token);
      passes.back().push_back(tokens);
    }
    CHECK(event["batch"] == event["rows"].size());
  }
  return passes;
}

TEST_CASE("a trace shows the experts that transformers' routers choose, in each block") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  Model model = Model::load(kSource / "models/tales-moe-1m", make_test_device(1));
  const Tokens tokens{2054, 687, 258, 516, 427, 307, 258, 881, 2724, 386, 339, 258, 773, 13};
  {
    TraceFile trace(file);
    model.after_pass(trace.watcher("a mixture"));
    model.next_logits(tokens);
    model.last_logits(tokens, 3);
  }
  // The indices of the two largest of output_router_logits.
  const json want = json::parse(
      R"([[[0,4],[0,1],[1,0],[2,0],[1,0],[1,6],[1,0],[0,2],[0,2],[1,7],[1,7],[1,0],[0,2],[4,1]],
          [[5,6],[3,5],[3,2],[5,6],[4,5],[7,3],[3,2],[3,5],[4,5],[4,3],[3,7],[3,2],[4,5],[2,5]],
          [[4,1],[4,0],[0,4],[4,6],[4,1],[4,1],[0,4],[1,0],[1,5],[4,6],[4,7],[0,7],[1,3],[2,4]],
          [[2,6],[3,2],[7,6]]])");
  const std::vector<json> events = of_kind(read_events(file), "experts");
  REQUIRE(events.size() == 8);
  for (int block = 0; block < 4; ++block) {
    CAPTURE(block);
    CHECK(events[block]["model"] == "a mixture");
    CHECK(events[block]["block"] == block);
    // In the last block only the tokens with logits go as far as the router.
    if (block < 3) CHECK(events[block]["tokens"] == want[block]);
    CHECK(events[4 + block]["tokens"] == want[block]);
  }
  CHECK(events[3]["tokens"] == json::parse("[[7,6]]"));
}

TEST_CASE("a ring of blocks is no paged cache, and has no event") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  Model model = Model::load(kSource / "models/tales-window-1m", make_test_device(1));
  {
    TraceFile trace(file);
    model.after_pass(trace.watcher("a model"));
    RingKvCache cache(model);
    model.next_logits(Tokens{5, 6, 7}, cache);
  }
  const std::vector<json> events = read_events(file);
  CHECK(of_kind(events, "pass").size() == 1);
  CHECK(of_kind(events, "blocks").empty());
}

TEST_CASE("a trace shows which beam each beam continues, with a cache and without") {
  const Tokens prompt{32, 1423};
  for (const bool use_cache : {true, false}) {
    CAPTURE(use_cache);
    const TemporaryFolder folder;
    const std::string file = folder.path() / "trace";
    TraceFile trace(file);
    Model model = Model::load(kSource / "models/tales-1m", make_test_device(1));
    model.after_pass(trace.watcher("model"));
    model.device().watch_copies(trace.copy_watcher());
    StaticKvCache cache(model, 5);
    NoCache none;
    RowOptions options;
    options.stopping.max_new_tokens = 30;
    BeamOptions search;
    search.num_beams = 5;
    std::vector<std::vector<Tokens>> grown{{prompt}};  // by their length, as in the search itself
    beam_search(model, tales_tokenizer(), prompt, options, search,
                use_cache ? static_cast<KvCache&>(cache) : none, [&](const Beam& beam) {
                  grown.resize(std::max(grown.size(), beam.chosen.size() + 1));
                  if (!beam.finished) grown[beam.chosen.size()].push_back(beam.tokens);
                });
    const std::vector<json> events = read_events(file);
    CHECK(of_kind(events, "copy").empty() == !use_cache);
    std::vector<std::vector<Tokens>> fed = texts_of_rows(events);
    REQUIRE(fed.size() == 30);
    for (std::size_t pass = 0; pass < fed.size(); ++pass) {
      std::ranges::sort(fed[pass]);
      std::ranges::sort(grown[pass]);
      CHECK(fed[pass] == grown[pass]);
    }
  }
}

TEST_CASE("the end of a text has its score, if there is one") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  TraceFile trace(file);
  trace.end(1, FinishReason::kEos, -0.5);
  trace.end(2, FinishReason::kLength);
  const std::vector<json> ends = of_kind(read_events(file), "end");
  CHECK(ends.at(0) == json{{"event", "end"}, {"text", 1}, {"finish_reason", "eos"}, {"score", -0.5}});
  CHECK(!ends.at(1).contains("score"));
}

TEST_CASE("if a trace cannot be written, the program reports why") {
  std::vector<std::pair<std::string, std::string>> wrong{
      {"--trace /no/such/folder/trace", "--trace /no/such/folder/trace: the file cannot be written: No such"},
      {"--trace /", "--trace /: the file cannot be written: Is a directory"}};
  if (std::filesystem::exists("/dev/full")) {  // not on a Mac
    wrong.emplace_back("--trace /dev/full", "--trace /dev/full: the file cannot be extended: No space left");
  }
  for (const auto& [arguments, sentence] : wrong) {
    const ProgramRun run = run_program(STAIRCASE_WHOLE_PROGRAM, "--model tales-1m --device cpu " + arguments);
    CHECK(run.status == 1);
    CHECK_MESSAGE(run.err.find("error: " + sentence) != std::string::npos, run.err);
    CHECK(run.out == "");
  }
  const std::vector<std::pair<std::string, std::string>> misused{
      {"--trace=", "--trace: the name is empty"},
      {"--trace -", "--trace -: a trace needs the name of a file"},
      {"--trace-attention 0,1", "--trace-attention needs --trace, the file it writes to"}};
  for (const auto& [arguments, sentence] : misused) {
    const ProgramRun run = run_program(STAIRCASE_WHOLE_PROGRAM, "--model tales-1m " + arguments);
    CHECK(run.status == 2);
    CHECK(run.err == "error: " + sentence + "\n");
  }
}

TEST_CASE("a trace replaces an older one, and nothing else") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "notes";
  const auto content = [&] {
    std::ifstream stream(file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  const auto run = [&] {
    return run_program(STAIRCASE_WHOLE_PROGRAM, "--model tales-1m --device cpu --trace " + file);
  };
  std::ofstream(file) << "";
  CHECK(run().status == 0);
  const std::string first = content();
  CHECK(run().status == 0);
  CHECK(content() == first);
  for (const std::string notes :
       {"x", "{\"event\":\"pass\",\"model\":\"m\"}", "my notes of a whole year\n"}) {
    std::ofstream(file) << notes;
    const ProgramRun refused = run();
    CHECK(refused.status == 1);
    CHECK(refused.err.find("error: --trace " + file + ": this file exists and is not a trace") !=
          std::string::npos);
    CHECK(content() == notes);
  }
  const ProgramRun pipe = run_program("/bin/sh", fmt::format("-c '{} --model tales-1m --device cpu --trace "
                                                             "/dev/stdout | cat'",
                                                             STAIRCASE_WHOLE_PROGRAM));
  CHECK(begins_with(pipe.out, "{\"event\":\"start\","));
}

TEST_CASE("a head that a trace shows must be one of the model") {
  const TemporaryFolder folder;
  for (const std::string head : {"", ",", "1", "1,", ",1", "a,b", "1,x", "0x1,1", "2,0", "0,2", "-1,0",
                                 "1.0,1", "0,1,1", "1;1", " 1,1", "1,1 ", "+1,1", "99999999999999999999,0"}) {
    const ProgramRun run = run_program(STAIRCASE_WHOLE_PROGRAM,
                                       fmt::format("--model tales-1m --trace '{}' --trace-attention '{}'",
                                                   (folder.path() / "t").string(), head));
    CHECK(run.status == 2);
    CHECK(run.err ==
          fmt::format("error: --trace-attention {}: tales-1m needs a layer from 0 to 1 and a head from 0 "
                      "to 1, as 1,1\n",
                      typed(head)));
  }
  CHECK(!std::filesystem::exists(folder.path() / "t"));
}

TEST_CASE("a trace shows what a head attended to, each token once") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  Model model = Model::load(kSource / "models/tales-1m", make_test_device(1));
  std::vector<std::vector<float>> seen;  // the newest of each pass
  {
    TraceFile trace(file);
    const auto write = trace.watcher("a model");
    const auto watch = [&](const ForwardPass& pass) {
      write(pass);
      for (const AttentionWeights& one : pass.attention) {
        if (!one.rows.empty()) seen.push_back(one.rows.back());
      }
    };
    model.after_pass(watch, AttentionHead{1, 0});
    model.next_logits(Tokens{5, 6, 7});
    model.next_logits(Tokens{5, 6, 7, 8, 9});
    model.next_logits(Tokens{5, 6, 7, 8, 9});
    StaticKvCache cache(model, 2);
    const Tokens one{5}, none, two{5, 5};
    model.next_logits(std::vector<std::span<const int>>{none, two}, cache);
    model.next_logits(std::vector<std::span<const int>>{one, one}, cache);
    cache.slide(1, 1);
    model.next_logits(std::vector<std::span<const int>>{two, one}, cache);
    model.after_pass(watch);
    model.next_logits(Tokens{5});
  }
  const std::vector<json> found = of_kind(read_events(file), "attention");
  const std::vector<std::pair<std::size_t, Tokens>> rows{
      {0, {5, 6, 7}}, {0, {5, 6, 7, 8, 9}}, {0, {5, 6, 7, 8, 9}}, {1, {5, 5}},
      {0, {5}},       {1, {5, 5, 5}},       {0, {5, 5, 5}},       {1, {5, 5, 5}}};
  const std::vector<std::size_t> shown{3, 2, 1, 2, 1, 1, 2, 1};
  REQUIRE(found.size() == rows.size());
  REQUIRE(seen.size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i]["row"] == rows[i].first);
    CHECK(found[i]["tokens"].get<Tokens>() == rows[i].second);
    const auto weights = found[i]["weights"].get<std::vector<std::vector<float>>>();
    REQUIRE(weights.size() == shown[i]);
    for (std::size_t w = 0; w < weights.size(); ++w) {
      CHECK(weights[w].size() == rows[i].second.size() - weights.size() + w + 1);
    }
    CHECK(weights.back() == seen[i]);
  }
}

TEST_CASE("a text of a request has the options of its line") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace", requests = folder.path() / "requests";
  std::ofstream(requests) << R"({"prompt": "A", "temperature": 0.5, "stop": ["x", "y"]}
{"prompt": "B", "temperature": "hot"}
{"prompt": "C"}
{"prompt": "D", "max_new_tokens": 2}
)";
  run_program(STAIRCASE_WHOLE_PROGRAM, "--model tales-1m --device cpu --trace-attention 1,1 --requests " +
                                           requests + " --trace " + file);
  const std::vector<json> events = read_events(file), texts = of_kind(events, "text");
  CHECK(events.at(0)["options"]["--trace-attention"] == "1,1");
  REQUIRE(texts.size() == 3);
  CHECK(texts[0]["options"] == json{{"--temperature", "0.5"}, {"--stop", "x,y"}});
  CHECK(texts[1]["options"] == json::object());
  CHECK(texts[2]["options"] == json{{"--max-new-tokens", "2"}});
}

TEST_CASE("a trace is made whatever bytes the command line has") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "trace";
  const ProgramRun run =
      run_program(STAIRCASE_WHOLE_PROGRAM, "--model tales-1m --device cpu --prompt 'A\xff' --trace " + file);
  CHECK(run.status == 0);
  CHECK(read_events(file).at(0)["options"]["--prompt"] == "A\uFFFD");
}

}  // namespace
}  // namespace staircase
