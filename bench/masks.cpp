#include "bench/masks.h"

#include "bench/timing.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/decoding/constraint.h"
#include "common/model/config.h"
#include "common/program/loading.h"
#include "common/text/tokenizer.h"

namespace staircase::bench {
namespace {

using nlohmann::json;

/// Whether the constraint allows the whole text. Appends the time of each mask, in microseconds, to `times`.
bool accepts(Constraint& constraint, const std::vector<int>& text, json& times) {
  Constraint::Place place;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const TokenBits* allowed = nullptr;
    try {
      times.push_back(1e6 *
                      seconds_of([&] { allowed = &constraint.allowed(std::span(text).first(i), place); }));
    } catch (const Error&) {
      return false;
    }
    const auto token = static_cast<std::size_t>(text[i]);
    if (((*allowed)[token / 64] >> token % 64 & 1) == 0) return false;
  }
  return true;
}

json measured(const json& line, const Tokenizer& tokenizer,
              const std::shared_ptr<const SortedTokens>& tokens) {
  json result = {{"compile_us", 0.0}, {"masks_us", json::array()}, {"wrong", json::array()}};
  std::shared_ptr<Constraint> constraint;
  try {
    result["compile_us"] = 1e6 * seconds_of([&] {
                             constraint =
                                 Constraint::of_json_schema(line.at("schema").get<std::string>(), tokens);
                           });
  } catch (const Error& error) {
    result["refused"] = error.what();
    return result;
  }
  const json& tests = line.at("tests");
  for (std::size_t i = 0; i < tests.size(); ++i) {
    std::vector<int> text = tokenizer.encode(tests[i].at("text").get<std::string>());
    text.push_back(*tokens->ends.begin());
    const bool is_valid = tests[i].at("valid").get<bool>();
    const bool is_accepted = accepts(*constraint, text, result["masks_us"]);
    if (is_accepted != is_valid) result["wrong"].push_back({i, is_valid, is_accepted});
  }
  return result;
}

}  // namespace

json measure_masks(const MaskOptions& options) {
  const ModelConfig config = read_config(options.model);
  if (config.end_tokens.empty()) throw Error("the model has no end-of-text token, so no text could end");
  const Tokenizer tokenizer = load_tokenizer(options.model, config);
  const auto tokens = std::make_shared<const SortedTokens>(tokenizer, config.end_tokens);
  json results = json::array();
  const std::string lines = read_file(options.schemas);
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', begin), lines.size());
    results.push_back(measured(parse_json_object(lines.substr(begin, end - begin), options.schemas.string()),
                               tokenizer, tokens));
    begin = end + 1;
  }
  return results;
}

}  // namespace staircase::bench
