#include "bench/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/decoding/logprobs.h"
#include "common/decoding/static_kv_cache.h"
#include "common/measure/measurement.h"
#include "common/model/model.h"
#include "common/program/loading.h"
#include "common/text/tokenizer.h"

namespace staircase::bench {
namespace {

using nlohmann::json;

constexpr int kAnswer = 12;       // tokens, enough for five digits
constexpr int kChunk = 64;        // tokens per pass in a window
constexpr int kWholeChunk = 256;  // tokens per pass in a cache that keeps everything
constexpr int kSinks = 4;         // sinks of a window with sinks
constexpr int kFirstBand = 256;   // positions; each further band is as long as all previous bands together
constexpr std::array kDepths = {0, 25, 50, 75, 100};  // percent

/// A cache that drops positions: it keeps the first `sinks` and the newest ones, `window` positions in total.
class SlidingCache : public StaticKvCache {
 public:
  SlidingCache(Model& model, int window, int sinks)
      : StaticKvCache(model), model_(model), window_(window), sinks_(sinks) {}

  void clear() {
    truncate(0, 0);
    set_slid(0, 0);
  }

  /// The number of tokens per pass. All tokens of a pass enter the cache before the first one attends, so
  /// passes in a window must be short.
  std::size_t chunk() const { return window_ < model_.config().n_positions ? kChunk : kWholeChunk; }

  /// Drops as many positions as `count` new ones need.
  void make_room(int count) {
    const int dropped = length(0) + count - window_;
    if (dropped <= 0) return;
    const int moved = length(0) - sinks_ - dropped;
    for (int l = 0; l < model_.config().n_layer; ++l) {
      const KeysValues both = layer(l);
      for (Tensor entries : {both.keys, both.values})
        model_.device().copy_positions(entries, sinks_ + dropped, moved, entries, sinks_);
    }
    set_slid(0, slid(0) + dropped);
    truncate(0, sinks_ + moved);
  }

 private:
  Model& model_;
  int window_, sinks_;
};

struct Way {
  std::string name;
  DType dtype;
  int window = 0, sinks = 0;  // 0: keep the whole text
};

std::vector<Way> ways_of(const Model& model, int longest) {
  const DType own = model.kv_dtype();
  std::vector<Way> ways = {{.name = std::string(to_string(own)), .dtype = own}};
  for (const DType dtype : cache_dtypes()) {
    if (is_quantized(dtype)) ways.push_back({.name = std::string(to_string(dtype)), .dtype = dtype});
  }
  const int window = std::max(2 * kChunk, longest / 8);
  for (const int sinks : {0, kSinks}) {
    ways.push_back(
        {.name = fmt::format("window of {}{}", window, sinks ? fmt::format(", {} sinks", sinks) : ""),
         .dtype = own,
         .window = window,
         .sinks = sinks});
  }
  return ways;
}

/// Reads a text into an empty cache, in passes that fit into a window. `visit` receives the tokens of each
/// pass and the index of the first one, computes the pass and returns logits. The result is what it returns
/// for the last pass.
template <class Visit>
std::span<const float> read(SlidingCache& cache, std::span<const int> text, Visit visit) {
  cache.clear();
  std::span<const float> last;
  for (std::size_t begin = 0; begin < text.size(); begin += cache.chunk()) {
    const std::span<const int> pass = text.subspan(begin, std::min(cache.chunk(), text.size() - begin));
    cache.make_room(static_cast<int>(pass.size()));
    last = visit(pass, begin);
  }
  return last;
}

/// Returns the greedy tokens after the prompt.
std::vector<int> answer(Model& model, SlidingCache& cache, std::span<const int> prompt) {
  std::span<const float> logits = read(
      cache, prompt, [&](std::span<const int> pass, std::size_t) { return model.next_logits(pass, cache); });
  std::vector<int> tokens = {argmax(logits)};
  while (std::ssize(tokens) < kAnswer) {
    cache.make_room(1);
    tokens.push_back(argmax(model.next_logits({&tokens.back(), 1}, cache)));
  }
  return tokens;
}

/// Returns the perplexity of the tokens in each band of positions: 1 to 255, 256 to 511, 512 to 1023, ...
json perplexities(Model& model, SlidingCache& cache, std::span<const int> text) {
  const auto vocab_size = static_cast<std::size_t>(model.config().vocab_size);
  std::vector<double> losses;
  read(cache, text, [&](std::span<const int> pass, std::size_t begin) {
    const std::span<const float> logits = model.last_logits(pass, static_cast<int>(pass.size()), cache);
    for (std::size_t i = 0; i < pass.size() && begin + i + 1 < text.size(); ++i) {
      const auto next = static_cast<std::size_t>(text[begin + i + 1]);
      losses.push_back(-log_softmax(logits.subspan(i * vocab_size, vocab_size))[next]);
    }
    return logits;
  });
  json bands = json::array();
  for (std::size_t from = 1, to = kFirstBand; from <= losses.size(); from = to, to *= 2) {
    const std::size_t end = std::min(to, losses.size() + 1);
    double sum = 0;
    for (std::size_t i = from; i < end; ++i) sum += losses[i - 1];
    bands.push_back(
        {{"from", from}, {"to", end - 1}, {"perplexity", std::exp(sum / static_cast<double>(end - from))}});
  }
  return bands;
}

std::vector<std::vector<int>> paragraphs_of(const std::string& text, const Tokenizer& tokenizer) {
  std::vector<std::vector<int>> paragraphs;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find("\n\n", begin), text.size());
    if (end > begin) paragraphs.push_back(tokenizer.encode(text.substr(begin, end - begin) + "\n\n"));
    begin = end + 2;
  }
  return paragraphs;
}

/// Returns the first `context` tokens of the hay, with the needle between the two paragraphs nearest to
/// `depth`.
std::vector<int> hidden(const std::vector<std::vector<int>>& paragraphs, int context, int depth,
                        const std::vector<int>& needle) {
  const auto place = static_cast<std::size_t>(context) * static_cast<std::size_t>(depth) / 100;
  std::vector<int> hay, text;
  std::size_t at = 0;
  for (const std::vector<int>& paragraph : paragraphs) {
    if (hay.size() >= static_cast<std::size_t>(context)) break;
    if (hay.size() <= place) at = hay.size();
    hay.insert(hay.end(), paragraph.begin(), paragraph.end());
  }
  hay.resize(static_cast<std::size_t>(context));
  if (depth == 100) at = hay.size();
  text.assign(hay.begin(), hay.begin() + static_cast<std::ptrdiff_t>(at));
  text.insert(text.end(), needle.begin(), needle.end());
  text.insert(text.end(), hay.begin() + static_cast<std::ptrdiff_t>(at), hay.end());
  return text;
}

struct Text {
  int context, depth;
  std::string number;
  std::vector<int> prompt;
};

std::vector<Text> hide(const NeedleOptions& options, const std::vector<std::vector<int>>& paragraphs,
                       const Tokenizer& tokenizer) {
  std::vector<Text> texts;
  std::mt19937 choice(1);
  const std::string question = "The magic number of the miller is";
  for (const int context : options.contexts) {
    for (const int depth : kDepths) {
      for (int i = 0; i < options.needles; ++i) {
        std::string number;
        for (int digit = 0; digit < 5; ++digit) number += static_cast<char>('1' + choice() % 9);
        std::vector<int> prompt =
            hidden(paragraphs, context, depth, tokenizer.encode(fmt::format("{} {}.\n\n", question, number)));
        const std::vector<int> end = tokenizer.encode("\n\n" + question);
        prompt.insert(prompt.end(), end.begin(), end.end());
        texts.push_back({context, depth, number, prompt});
      }
    }
  }
  return texts;
}

void print_found(const json& result, const std::vector<Text>& texts, int context) {
  std::vector<std::string> columns = {fmt::format("found after {} tokens", context)};
  for (const int depth : kDepths) columns.push_back(fmt::format("{} %", depth));
  Table table(columns);
  for (const auto& [name, cache] : result["caches"].items()) {
    std::vector<Table::Cell> row = {name};
    for (const int depth : kDepths) {
      int found = 0, all = 0;
      for (std::size_t i = 0; i < texts.size(); ++i) {
        if (texts[i].context != context || texts[i].depth != depth) continue;
        ++all;
        found += cache["found"][i].get<bool>() ? 1 : 0;
      }
      row.push_back(fmt::format("{} of {}", found, all));
    }
    table.add(row);
  }
  fmt::print("{}\n", table.text());
}

void print_perplexities(const json& result) {
  std::vector<std::string> columns = {"perplexity"};
  for (const json& band : result["caches"].front()["perplexity"])
    columns.push_back(fmt::format("{}–{}", band["from"].get<int>(), band["to"].get<int>()));
  Table table(columns);
  for (const auto& [name, cache] : result["caches"].items()) {
    std::vector<Table::Cell> row = {name};
    for (const json& band : cache["perplexity"]) row.push_back(band["perplexity"].get<double>());
    table.add(row);
  }
  fmt::print("{}", table.text());
}

}  // namespace

json measure_needles(const NeedleOptions& options) {
  Model model = Model::load(options.model, make_cpu_device(options.threads), options.dtype);
  const Tokenizer tokenizer = load_tokenizer(options.model, model.config());
  const std::vector<std::vector<int>> paragraphs = paragraphs_of(read_file(options.text), tokenizer);
  std::vector<int> hay;
  for (const std::vector<int>& paragraph : paragraphs)
    hay.insert(hay.end(), paragraph.begin(), paragraph.end());
  const int longest = *std::ranges::max_element(options.contexts);
  if (longest > std::ssize(hay))
    throw UsageError("--context {}: {} has {} tokens", longest, options.text.string(), hay.size());
  hay.resize(static_cast<std::size_t>(longest));
  const std::vector<Text> texts = hide(options, paragraphs, tokenizer);
  for (const Text& text : texts) {
    const auto needed = std::ssize(text.prompt) + kAnswer;
    if (needed > model.config().n_positions)
      throw UsageError(
          "--context {}: with the question and its answer, {} positions are needed, but the model has {}",
          text.context, needed, model.config().n_positions);
  }

  json result = {{"texts", json::array()}, {"caches", json::object()}};
  for (const Text& text : texts)
    result["texts"].push_back(
        {{"context", text.context}, {"depth", text.depth}, {"number", text.number}, {"prompt", text.prompt}});
  for (const Way& way : ways_of(model, longest)) {
    model.use_cache_dtype(way.dtype);
    SlidingCache cache(model, way.window ? way.window : model.config().n_positions, way.sinks);
    json& figures = result["caches"][way.name];
    figures["found"] = json::array();
    for (const Text& text : texts) {
      const std::string said = tokenizer.decode(answer(model, cache, text.prompt));
      figures["found"].push_back(said.find(text.number) != std::string::npos);
    }
    figures["perplexity"] = perplexities(model, cache, hay);
  }
  for (const int context : options.contexts) print_found(result, texts, context);
  print_perplexities(result);
  return result;
}

}  // namespace staircase::bench
