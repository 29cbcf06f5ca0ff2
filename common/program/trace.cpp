#include "common/program/trace.h"

#include <fmt/ranges.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/program/json_output.h"

namespace staircase {
namespace {

using Json = nlohmann::ordered_json;

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

/// The text of each token alone.
Json vocabulary(const Tokenizer& tokenizer, int size) {
  Json texts = Json::array();
  for (int id = 0; id < size; ++id) texts.push_back(tokenizer.decode({&id, 1}));
  return texts;
}

/// Which row of these keys, [n_rows, n_head, capacity, head_size], the view is, if it is one.
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

}  // namespace

TraceFile::TraceFile(const std::string& file)
    : name_(file), file_(std::fopen(file.c_str(), "w"), std::fclose) {
  if (!file_) throw Error("--trace {}: the file cannot be written: {}", name_, std::strerror(errno));
}

void TraceFile::write(const std::string& line) {
  if (std::fputs((line + "\n").c_str(), file_.get()) == EOF || std::fflush(file_.get()) != 0) {
    throw Error("--trace {}: the file takes no more: {}", name_, std::strerror(errno));
  }
}

void TraceFile::start(const std::vector<std::pair<std::string, std::string>>& options,
                      const Gpt2Config& config, const Tokenizer& tokenizer, const Prompts& prompts) {
  Json values = Json::object();
  for (const auto& [option, value] : options) values[option] = value;
  write(Json{{"event", "start"},
             {"options", values},
             {"n_positions", config.n_positions},
             {"eos_token_id", config.eos_token_id},
             {"prompts", prompts},
             {"vocabulary", vocabulary(tokenizer, config.vocab_size)}}
            .dump());
}

std::function<void(const ForwardPass&)> TraceFile::watcher(const std::string& model) {
  return [this, model](const ForwardPass& pass) {
    caches_[model] = pass.cache != nullptr ? pass.cache->layer(0).keys : Tensor();
    Json rows = Json::array();
    for (std::size_t r = 0; r < pass.sequences.size(); ++r) {
      if (pass.sequences[r].empty()) continue;
      rows.push_back({{"row", r}, {"start", pass.starts[r]}, {"tokens", pass.sequences[r]}});
    }
    write(Json{{"event", "pass"}, {"model", model}, {"batch", pass.sequences.size()}, {"rows", rows}}.dump());
    const auto count = static_cast<std::size_t>(pass.count);
    const std::size_t vocab_size = pass.logits.size() / (count * pass.sequences.size());
    for (std::size_t r = 0; r < pass.sequences.size(); ++r) {
      const std::size_t length = pass.sequences[r].size();
      for (std::size_t i = 0; i < count && length > 0; ++i) {
        // By fmt, since a float has fewer digits than the double that JSON would make of it.
        write(fmt::format(R"({{"event":"logits","row":{},"position":{},"logits":[{}]}})", r,
                          static_cast<std::size_t>(pass.starts[r]) + length - count + i,
                          fmt::join(pass.logits.subspan((r * count + i) * vocab_size, vocab_size), ",")));
      }
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
  write(Json{{"event", "text"}, {"text", number}, {"prompt", prompt}}.dump());
}

void TraceFile::add(int number, const Token& token) {
  write(
      Json{{"event", "token"}, {"text", number}, {"token", token.id}, {"origin", name(token.origin)}}.dump());
}

void TraceFile::end(int number, FinishReason reason, std::optional<double> score) {
  Json event{{"event", "end"}, {"text", number}, {"finish_reason", to_string(reason)}};
  if (score) event["score"] = *score;
  write(event.dump());
}

}  // namespace staircase
