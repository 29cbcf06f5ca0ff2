#include "common/program/trace.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/error.h"
#include "common/base/quoted.h"
#include "common/program/json_output.h"

namespace staircase {
namespace {

using Json = nlohmann::ordered_json;

/// The beginning of every trace.
constexpr std::string_view kStart = R"({"event":"start",)";

const char* name(Origin origin) {
  switch (origin) {
    case Origin::kModel:
      return "model";
    case Origin::kAccepted:
      return "accepted";
    case Origin::kCorrected:
      return "corrected";
    case Origin::kBonus:
      return "bonus";
  }
  return "";
}

/// The text of each token by itself.
Json vocabulary(const Tokenizer& tokenizer, int size) {
  Json texts = Json::array();
  for (int id = 0; id < size; ++id) texts.push_back(tokenizer.decode({&id, 1}));
  return texts;
}

/// The row of `keys`, [n_rows, n_kv_head, capacity, head_size], that `view` is part of; nothing if it is not.
std::optional<std::int64_t> row_of(const Tensor& view, const Tensor& keys) {
  if (keys.size() == 0) return {};
  const auto address = [](const Tensor& tensor) {
    return reinterpret_cast<std::intptr_t>(tensor.data<void>());
  };
  const auto offset = static_cast<std::int64_t>(address(view) - address(keys));
  const auto row_bytes = static_cast<std::int64_t>(keys.bytes()) / keys.dim(0);
  if (offset < 0 || offset >= keys.dim(0) * row_bytes) return {};
  return offset / row_bytes;
}

Json object(const OptionTexts& options) {
  Json values = Json::object();
  for (const auto& [option, value] : options) values[option] = value;
  return values;
}

/// An event as one line; invalid UTF-8 from a command line becomes �.
std::string line(const Json& event) {
  return event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Whether a trace may replace the file: an old trace, an empty file, or anything other than a regular file,
/// such as a terminal.
bool may_be_overwritten(const std::string& file) {
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(file, unknown)) return true;
  std::string start(kStart.size(), ' ');
  std::ifstream content(file);
  const bool is_trace = content.read(start.data(), std::ssize(start)) && start == kStart;
  return is_trace || std::filesystem::file_size(file, unknown) == 0;
}

/// The blocks of the batch's rows after a pass; nothing for a cache without blocks.
std::vector<std::vector<int>> blocks_of(const ForwardPass& pass) {
  if (pass.cache.layer(0).blocks.size() == 0) return {};
  std::vector<std::vector<int>> rows;
  for (int row = 0; row < std::ssize(pass.sequences); ++row) rows.push_back(pass.cache.row_blocks(row));
  if (std::ranges::all_of(rows, [](const std::vector<int>& row) { return row.empty(); })) return {};
  return rows;
}

/// The attention of one row as one line, from new token `first` on.
std::string attention_line(std::size_t row, const AttentionWeights& attention, std::size_t first) {
  std::string weights;
  for (std::size_t i = first; i < attention.rows.size(); ++i) {
    weights += fmt::format("{}[{}]", i == first ? "" : ",", fmt::join(attention.rows[i], ","));
  }
  return fmt::format(R"({{"event":"attention","row":{},"tokens":[{}],"weights":[{}]}})", row,
                     fmt::join(attention.tokens, ","), weights);
}

/// The whole number in `text` if it lies from 0 to `end` - 1.
std::optional<int> number_below(int end, std::string_view text) {
  int number = -1;
  const char* const last = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), last, number);
  if (fault != std::errc() || rest != last || number < 0 || number >= end) return {};
  return number;
}

}  // namespace

AttentionHead traced_head(const std::string& text, const ModelConfig& config, const std::string& model) {
  const std::size_t comma = std::min(text.find(','), text.size() - 1);
  const std::optional<int> layer = number_below(config.n_layer, std::string_view(text).substr(0, comma));
  const std::optional<int> head = number_below(config.n_head, std::string_view(text).substr(comma + 1));
  if (layer && head) return AttentionHead{*layer, *head};
  throw UsageError("--trace-attention {}: {} needs a layer from 0 to {} and a head from 0 to {}, as {},{}",
                   typed(text), typed(model), config.n_layer - 1, config.n_head - 1, config.n_layer - 1,
                   config.n_head - 1);
}

TraceFile::TraceFile(const std::string& file) : name_(file), file_(nullptr, std::fclose) {
  if (!may_be_overwritten(file)) {
    throw Error("--trace {}: this file exists and is not a trace; choose another name", typed(name_));
  }
  file_.reset(std::fopen(file.c_str(), "w"));
  if (!file_) throw Error("--trace {}: the file cannot be written: {}", typed(name_), std::strerror(errno));
}

void TraceFile::write(const std::string& line) {
  if (std::fputs((line + "\n").c_str(), file_.get()) == EOF || std::fflush(file_.get()) != 0) {
    throw Error("--trace {}: the file cannot be extended: {}", typed(name_), std::strerror(errno));
  }
}

void TraceFile::start(const OptionTexts& options, const ModelConfig& config, const Tokenizer& tokenizer,
                      const Prompts& prompts, std::vector<OptionTexts> own_options) {
  own_options_ = std::move(own_options);
  write(line({{"event", "start"},
              {"options", object(options)},
              {"n_positions", config.n_positions},
              {"n_head", config.n_head},
              {"n_kv_head", config.n_kv_head},
              {"eos_token_id", config.eos_token_id},
              {"prompts", prompts},
              {"vocabulary", vocabulary(tokenizer, config.vocab_size)}}));
}

std::function<void(const ForwardPass&)> TraceFile::watcher(const std::string& model) {
  std::map<std::size_t, std::vector<int>> seen;  // the tokens of each row in the previous pass
  std::vector<std::vector<int>> blocks;          // the blocks of each row, as the newest event shows them
  return [this, model, seen, blocks](const ForwardPass& pass) mutable {
    const Tensor& keys = caches_[model] = pass.cache.layer(0).keys;
    Json rows = Json::array();
    for (std::size_t r = 0; r < pass.sequences.size(); ++r) {
      if (pass.sequences[r].empty()) continue;
      rows.push_back({{"row", r}, {"start", pass.starts[r]}, {"tokens", pass.sequences[r]}});
    }
    write(Json{{"event", "pass"}, {"model", model}, {"batch", pass.sequences.size()}, {"rows", rows}}.dump());
    std::vector<std::vector<int>> now = blocks_of(pass);
    if (!now.empty() && now != blocks) {
      write(Json{
          {"event", "blocks"}, {"model", model}, {"pool", keys.dim(0)}, {"size", keys.dim(2)}, {"rows", now}}
                .dump());
      blocks = std::move(now);
    }
    for (const ChosenExperts& chosen : pass.experts) {
      Json tokens = Json::array();
      for (auto first = chosen.experts.begin(); first != chosen.experts.end(); first += chosen.per_token)
        tokens.push_back(std::vector<int>(first, first + chosen.per_token));
      write(Json{{"event", "experts"}, {"model", model}, {"block", chosen.block}, {"tokens", tokens}}.dump());
    }
    const auto all = static_cast<std::size_t>(std::reduce(pass.counts.begin(), pass.counts.end()));
    const std::size_t vocab_size = pass.logits.size() / all;
    std::size_t first = 0;  // the first row of logits of the sequence
    for (std::size_t r = 0; r < pass.sequences.size(); ++r) {
      const std::size_t length = pass.sequences[r].size(), count = static_cast<std::size_t>(pass.counts[r]);
      for (std::size_t i = 0; i < count && length > 0; ++i) {
        // fmt formats the numbers: a float needs fewer digits than the double that JSON would convert it to.
        write(fmt::format(R"({{"event":"logits","row":{},"position":{},"logits":[{}]}})", r,
                          static_cast<std::size_t>(pass.starts[r]) + length - count + i,
                          fmt::join(pass.logits.subspan((first + i) * vocab_size, vocab_size), ",")));
      }
      first += count;
    }
    for (std::size_t r = 0; r < pass.attention.size(); ++r) {
      const AttentionWeights& attention = pass.attention[r];
      if (attention.rows.empty()) continue;
      const std::vector<int> before = std::exchange(seen[r], attention.tokens);
      // A pass without a cache repeats what the previous pass has shown, so that part is left out.
      const auto shown = std::ranges::mismatch(attention.tokens, before).in1 - attention.tokens.begin();
      const std::ptrdiff_t first = pass.starts[r] > 0 ? 0 : std::min(shown, std::ssize(attention.rows) - 1);
      write(attention_line(r, attention, static_cast<std::size_t>(first)));
    }
  };
}

Device::CopyWatcher TraceFile::copy_watcher() {
  return [this](const Tensor& from, std::int64_t first, std::int64_t count, const Tensor& to, std::int64_t) {
    for (const auto& [model, keys] : caches_) {
      const std::optional<std::int64_t> source = row_of(from, keys), target = row_of(to, keys);
      if (!source || !target) continue;
      write(Json{{"event", "copy"},
                 {"model", model},
                 {"from", *source},
                 {"first", first},
                 {"positions", count},
                 {"to", *target}}
                .dump());
    }
  };
}

void TraceFile::begin(int number, int prompt) {
  const auto own = static_cast<std::size_t>(prompt);
  write(line({{"event", "text"},
              {"text", number},
              {"prompt", prompt},
              {"options", own < own_options_.size() ? object(own_options_[own]) : Json::object()}}));
}

void TraceFile::mask(int state, std::vector<int> allowed) {
  mask_ = {state, std::move(allowed)};
}

void TraceFile::add(int number, const Token& token) {
  if (const auto mask = std::exchange(mask_, {})) {
    const auto& [state, allowed] = *mask;
    write(Json{{"event", "mask"}, {"text", number}, {"state", state}, {"allowed", allowed}}.dump());
  }
  write(
      Json{{"event", "token"}, {"text", number}, {"token", token.id}, {"origin", name(token.origin)}}.dump());
}

void TraceFile::end(int number, FinishReason reason, std::optional<double> score) {
  Json event{{"event", "end"}, {"text", number}, {"finish_reason", to_string(reason)}};
  if (score) event["score"] = *score;
  write(event.dump());
}

}  // namespace staircase
